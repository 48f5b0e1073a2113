"""See that a model learns which positions matter before it attends to them.

Eight BiLSTM classifiers with attention learn at once whether the token "1" occurs. After each of
the first updates we ask where attention (alpha) and output relevance (beta) are largest. Beta is
how strongly one position alone predicts the right label: it finds the "1" first, and attention
follows ("Understanding Attention Training via Output Relevance").
"""

import torch

from headwise_papers.data.synthetic import IMPORTANT, synclf
from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig
from headwise_papers.models.rnn_stack import RnnClassifierStack
from headwise_papers.recipes.stacked import train_stack

SEEDS, BATCH, LENGTH, UPDATES = 8, 32, 20, 12

torch.manual_seed(0)
shape = RnnClassifierConfig(vocabulary=21, embedding=64, hidden=64, attention=64)
stack = RnnClassifierStack([RnnClassifier(shape) for _ in range(SEEDS)])

draw = torch.Generator().manual_seed(0)
drawn = synclf(UPDATES * SEEDS * BATCH, length=LENGTH, types=20, generator=draw)
tokens = drawn.tokens.view(UPDATES, SEEDS, BATCH, LENGTH)
labels = drawn.labels.view(UPDATES, SEEDS, BATCH)
lengths = torch.full((SEEDS, BATCH), LENGTH)

test = synclf(300, length=LENGTH, types=20, generator=draw)
test_lengths = torch.full((300,), LENGTH)
curves = RelevanceCurves(
    lambda stack: [stack.look(test.tokens, test_lengths, test.labels)], schedule(1)
)
train_stack(
    stack,
    lambda step: (tokens[step], lengths, labels[step]),
    steps=UPDATES,
    rate=3e-3,
    recorders=[curves],
)

recorded = curves.tensors()
positive = test.labels == 1
print('update  accuracy  beta on a "1"  alpha on a "1"')
for row, step in enumerate(recorded["step"].tolist()):
    found = [
        (test.tokens.gather(1, recorded[f"{name}_peak"][row].long().T) == IMPORTANT)[positive]
        for name in ("beta", "alpha")
    ]
    beta, alpha = (x.double().mean().item() for x in found)
    print(f"{step:6d}  {recorded['accuracy'][row].mean():8.2f}  {beta:13.2f}  {alpha:14.2f}")
