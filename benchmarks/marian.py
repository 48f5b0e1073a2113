"""Hugging Face's Marian model as a peer: the same architecture, the same weights, at its best.

A Marian model is a post-norm Transformer with sinusoidal positions, so it can hold the weights of
ours and must then give the same scores. It attends with PyTorch's fused attention ("sdpa").
"""

import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MarianConfig,
    MarianMTModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from benchmarks import wait_for
from headwise_papers.data.batches import ParallelBatch
from headwise_papers.data.vocabulary import BOS, EOS, PAD
from headwise_papers.models import Transformer, TransformerConfig

WITH_TRAINER = "Marian with its Trainer"
AGREEMENT = 1e-3  # of scores in float32, relative to their largest
LAYER = {  # a layer of ours, and what Marian calls its parts
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.out_proj",
    "cross.query": "encoder_attn.q_proj",
    "cross.key": "encoder_attn.k_proj",
    "cross.value": "encoder_attn.v_proj",
    "cross.out": "encoder_attn.out_proj",
    "add_attention.norm": "self_attn_layer_norm",
    "add_cross.norm": "encoder_attn_layer_norm",
    "feed_forward.0": "fc1",
    "feed_forward.3": "fc2",
    "add_feed_forward.norm": "final_layer_norm",
}


def marian_like(model: Transformer) -> MarianMTModel:
    """A Marian model with the weights of ours, on the same device, in training mode."""
    shape = model.config
    if shape.norm != "post" or shape.share_embeddings != "all":
        raise ValueError(
            "A Marian model is post-norm and shares all embeddings; build ours so too, got "
            f"norm={shape.norm!r} and share_embeddings={shape.share_embeddings!r}."
        )
    config = _config(shape)
    config._attn_implementation = "sdpa"
    peer = MarianMTModel(config)
    state, ours = peer.state_dict(), model.state_dict()
    state["model.shared.weight"].copy_(ours["embed_target.words.weight"])
    for stack in ("encoder", "decoder"):
        for name in [name for name in ours if name.startswith(f"{stack}.")]:
            _, layer, part = name.split(".", 2)
            module, _, kind = part.rpartition(".")
            state[f"model.{stack}.layers.{layer}.{LAYER[module]}.{kind}"].copy_(ours[name])
    return peer.to(model.read_out.weight.device).train()


def _config(shape: TransformerConfig) -> MarianConfig:
    return MarianConfig(
        vocab_size=shape.source_vocab,
        d_model=shape.width,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.feed_forward,
        decoder_ffn_dim=shape.feed_forward,
        max_position_embeddings=shape.max_length,
        activation_function="relu",
        dropout=shape.dropout,
        attention_dropout=shape.attention_dropout,
        activation_dropout=shape.feed_forward_dropout,
        scale_embedding=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
    )


def marian_scores(model: nn.Module, batch: ParallelBatch) -> Tensor:
    """Scores of each next word, as `headwise_papers.models.Transformer` gives them."""
    return model(
        input_ids=batch.source,
        attention_mask=(batch.source != PAD).long(),
        decoder_input_ids=batch.target_in,
        use_cache=False,
    ).logits


@torch.no_grad()
def check_scores(model: Transformer, batch: ParallelBatch) -> None:
    """Marian with our weights must give our scores, in float32, where there are words."""
    peer, real_BT = marian_like(model).eval(), batch.target_out != PAD
    ours = model.eval()(batch.source, batch.source_lengths, batch.target_in)[real_BT]
    theirs = marian_scores(peer, batch)[real_BT]
    apart = ((ours - theirs).abs().max() / ours.abs().max()).item()
    if not apart <= AGREEMENT:
        raise SystemExit(f"Marian's scores are {apart:.1e} off ours: nothing is reported.")


class _EndsAtSourceLength(LogitsProcessor):
    """Ends outputs at the length of their sources, like `sparse_transformer/speed`."""

    def __init__(self, lengths_B: Tensor, beams: int) -> None:
        self.lengths_X = lengths_B.repeat_interleave(beams)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, EOS] = torch.where(self.lengths_X <= input_ids.shape[1], 1e4, -torch.inf)
        return scores


@torch.no_grad()
def marian_translated(
    model: MarianMTModel, source: Tensor, lengths: Tensor, *, beams: int
) -> list[list[int]]:
    """Beam search by `generate`; words without marks."""
    found: Any = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
        input_ids=source,
        attention_mask=(source != PAD).long(),
        num_beams=beams,
        do_sample=False,
        early_stopping=True,
        max_new_tokens=int(lengths.max()),
        logits_processor=LogitsProcessorList([_EndsAtSourceLength(lengths, beams)]),
    )
    rows: list[list[int]] = found[:, 1:].tolist()  # without the beginning mark
    return [row[: row.index(EOS)] if EOS in row else row for row in rows]


class _Stopwatch(TrainerCallback):
    """Notes the time after every so many steps."""

    def __init__(self, every: int, device: torch.device) -> None:
        self.every, self.device = every, device
        self.times: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            wait_for(self.device)
            self.times.append(time.perf_counter())


def trainer_seconds(
    model: MarianMTModel,
    batches: Sequence[ParallelBatch],
    *,
    turns: int,
    warm: int = 1,
    log_every: int | None = None,
) -> list[float]:
    """How long the Trainer takes for all batches once, a value a turn.

    It gets the batches as they are, from memory.

    Args:
        model: is trained.
        batches: of a turn.
        turns: that count.
        warm: turns before them that do not.
        log_every: after so many steps it logs, and after every turn it saves a checkpoint; by
            default it does neither.
    """
    device = model.device
    watch = _Stopwatch(len(batches), device)
    items = [_item(batch) for batch in batches] * (warm + turns + 1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=_arguments(folder, len(batches), len(items), log_every, device.type == "cuda"),
            train_dataset=items,  # pyright: ignore[reportArgumentType]
            data_collator=lambda listed: listed[0],
            callbacks=[watch],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    spent = [after - before for before, after in zip(watch.times, watch.times[1:], strict=False)]
    return spent[warm:]


def _arguments(
    folder: str, turn: int, steps: int, log_every: int | None, cuda: bool
) -> TrainingArguments:
    told = "steps" if log_every else "no"
    return TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=1,  # an item is a batch
        bf16=cuda,
        optim="adamw_torch_fused" if cuda else "adamw_torch",
        learning_rate=1e-4,
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        lr_scheduler_type="constant",
        label_smoothing_factor=0.1,
        max_grad_norm=1.0,
        logging_strategy=told,
        logging_steps=log_every or turn,
        save_strategy=told,
        save_steps=turn,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=cuda,
        use_cpu=not cuda,
    )


def _item(batch: ParallelBatch) -> dict[str, Tensor]:
    labels = batch.target_out.masked_fill(batch.target_out == PAD, -100)
    return {
        "input_ids": batch.source.cpu(),
        "attention_mask": (batch.source != PAD).long().cpu(),
        "decoder_input_ids": batch.target_in.cpu(),
        "labels": labels.cpu(),
    }
