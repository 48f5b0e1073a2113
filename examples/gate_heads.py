"""Let gates find the heads a classifier can do without, with the Trainer of transformers.

    python examples/gate_heads.py

The task is small: do the two halves of a text start with the same word? So is the model.
"""

import tempfile

import torch
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import headwise as hw
from headwise.pruning import Gates, GatesCallback, Target

torch.manual_seed(0)
words = torch.randint(4, 12, (2048, 8))
words[::2, 4] = words[::2, 0]
same = (words[:, 0] == words[:, 4]).long()
data = TensorDataset(words, same)

config = BertConfig(
    vocab_size=12,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    hidden_dropout_prob=0.0,
)
model = hw.adopt(BertForSequenceClassification(config))


def collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    texts, labels = zip(*rows, strict=True)
    return {"input_ids": torch.stack(texts), "labels": torch.stack(labels)}


with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder, max_steps=300, per_device_train_batch_size=64, learning_rate=2e-3, report_to=[],
        use_cpu=True, logging_steps=60, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    gates = Gates(model)
    target = Target(gates, keep=3, steps=300)
    optimizer = torch.optim.AdamW(gates.parameter_groups(model, learning_rate=0.1), lr=2e-3)
    callback = GatesCallback(gates, target)
    trainer = Trainer(
        model, args, collate, data, optimizers=(optimizer, None), callbacks=[callback]
    )
    trainer.train()

model.eval()
with torch.no_grad():
    right = (model(words).logits.argmax(-1) == same).float().mean()
print(gates.table().sort("log_alpha"))
print(f"{gates.open_heads} of {gates.heads} heads kept, {right:.0%} right: {gates.keep()}")
