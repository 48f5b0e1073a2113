"""Which tokens does the last layer of a BERT classifier attend to, and which speak for the label?

For every head of the last layer: how often its attention is largest at a token whose value, taken
alone along the head's value path, speaks most strongly for the right label; and how often the
gradient of the loss agrees. The model here is small and untrained, so expect the random baseline;
load a trained classifier instead, and nothing else changes.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification

import headwise as hw
from headwise_papers.measures.relevance import expected_floor, highly_ranked, token_influence
from headwise_papers.measures.value_path import value_path

torch.manual_seed(0)
shape = BertConfig(
    vocab_size=200,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
)
model = hw.adopt(BertForSequenceClassification(shape)).eval()

lengths = torch.randint(10, 31, (64,))
real = torch.arange(30) < lengths[:, None]
ids = torch.randint(1, 200, (64, 30)).masked_fill(~real, 0)
batch = {"input_ids": ids, "attention_mask": real.long()}
labels = torch.randint(0, 2, (64,))

looked = value_path(model, batch, labels).looked()  # heads stand where seeds usually do
agrees = highly_ranked(looked.alpha, looked.beta, looked.lengths)
influence = token_influence(model, batch, labels)
follows = highly_ranked(influence, looked.beta, looked.lengths)
print("head               attention on relevance   influence on relevance")
for head in hw.find_sites(model)[-1].heads:
    shares = (x[head.index].double().mean().item() for x in (agrees, follows))
    print(f"{head!s:18} {next(shares):22.2f} {next(shares):24.2f}")
print(f"random baseline    {expected_floor(looked.lengths):22.2f}")
