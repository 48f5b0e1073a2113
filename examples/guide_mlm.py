"""Guide heads of a masked language model to the next and previous word, with the Trainer.

    python examples/guide_mlm.py

In the language here a word is one or two above the one before it, so a masked word is known from
its neighbours. The same model is trained plainly, and with one head per layer guided to each.
"""

import tempfile

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

import headwise as hw
from headwise.guidance import GuidanceCallback, Plan

WORDS, MASK, LENGTH = 24, 24, 16
CONFIG = {
    "vocab_size": WORDS + 1,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": LENGTH,
    "hidden_dropout_prob": 0.0,
    "initializer_range": 0.15,
}


def collate(starts: list[int]) -> dict[str, torch.Tensor]:
    texts = [torch.tensor(starts)]
    for _ in range(LENGTH - 1):
        texts.append((texts[-1] + torch.randint(1, 3, texts[-1].shape)) % WORDS)
    ids = torch.stack(texts, dim=1)
    masked = torch.rand(ids.shape) < 0.15
    return {"input_ids": ids.masked_fill(masked, MASK), "labels": ids.masked_fill(~masked, -100)}


def train(folder: str, *, guided: bool) -> list[float]:
    torch.manual_seed(0)
    model = hw.adopt(BertForMaskedLM(BertConfig(**CONFIG)))
    guidance = hw.guide(model, Plan(next=1, prev=1), alpha=10.0 if guided else 0.0)
    args = TrainingArguments(
        folder, max_steps=120, per_device_train_batch_size=32, learning_rate=6e-3, report_to=[],
        use_cpu=True, logging_steps=30, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    callback = GuidanceCallback(guidance)
    trainer = Trainer(model, args, collate, list(range(WORDS)) * 160, callbacks=[callback])
    trainer.train()
    return [row["own_loss"] for row in trainer.state.log_history if "own_loss" in row]


with tempfile.TemporaryDirectory() as folder:
    losses = {way: train(folder, guided=way == "guided") for way in ("plain", "guided")}
for way, by_time in losses.items():
    print(f"loss {way:7}", *(f"{loss:.2f}" for loss in by_time))
