"""Follow the score and embedding norm of topic words in your own classifier, against Eq. 10.

The model knows nothing of headwise and is trained by plain SGD. Two functions tell the recorder
where its scores and vectors are; the curves then lie on the one of "On the Dynamics of Training
Attention Models" (Lu et al., ICLR 2021), with nothing fitted.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise_papers.data.synthetic import TopicTask
from headwise_papers.measures.sen_curves import SenCurves
from headwise_papers.ops.sen import deviation, theoretical_norm


class OwnClassifier(nn.Module):
    """Words pooled by the softmax of their scores, then a linear layer."""

    def __init__(self, words: int, classes: int, width: int = 15) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.score = nn.Embedding(words, 1)
        self.read = nn.Linear(width, classes, bias=False)
        nn.init.normal_(self.embed.weight, std=1e-3)
        nn.init.zeros_(self.score.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        weights = self.score(tokens).softmax(dim=1)
        return self.read((weights * self.embed(tokens)).sum(dim=1))


torch.manual_seed(0)
task = TopicTask(others=20, dictionary=2000, train=400, test=100)
drawn = task.draw([0])
tokens, labels = drawn.train.tokens[0], drawn.train.labels[0]
model = OwnClassifier(task.vocabulary, task.topics)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
curves = SenCurves(
    torch.arange(task.topic_words),
    scores=lambda model: model.score.weight[:, 0],
    vectors=lambda model: model.embed.weight,
    every=100,
)
for epoch in range(1001):
    curves(epoch, model)
    optimizer.zero_grad()
    cross_entropy(model(tokens), labels).backward()
    optimizer.step()

recorded = curves.tensors()
score, norm = recorded["score"][:, 0], recorded["norm"][:, 0]  # epochs, words
print("epoch  score   norm  Eq. 10   (of topic word 0)")
theory = theoretical_norm(score, task.others)
for row, epoch in enumerate(recorded["epoch"].tolist()):
    print(f"{epoch:5d} {score[row, 0]:6.3f} {norm[row, 0]:6.3f}  {theory[row, 0]:6.3f}")
off = deviation(score, norm, task.others)
print(f"largest deviation of the {task.topic_words} topic words: {off.largest.max():.3f}")
