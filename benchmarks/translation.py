"""Training and beam search of Transformer-base, against Hugging Face's Marian model.

Marian gets our weights and must give our scores; then both train on the same batches, as long as
sentences of Multi30k: bf16 by autocast, label smoothing, clipping and fused AdamW, batches already
on the device. So there is a Marian without its Trainer's overhead, compiled and not, and a row with
its Trainer, which takes the same batches from memory, and whose turns come after the others'. On a
GPU our steps are also replayed as CUDA graphs, recorded before the clock starts; `headwise bench
fit` has whole trainings so.

Beam search is by our `beam`, which on a GPU records its step in every search and replays it for
every word, and by `generate` with its usual cache; neither is compiled, weights are in bf16 on a
GPU. Random weights end no sentence, so all are made to end as long as their sources. In
float32 both must find the same translations, but for a few that are as good as others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from transformers import MarianMTModel

from benchmarks import Measured, name_of
from benchmarks.marian import (
    WITH_TRAINER,
    check_scores,
    marian_like,
    marian_scores,
    marian_translated,
    trainer_seconds,
)
from benchmarks.peers import FAILURES
from headwise_papers.models import Transformer, TransformerConfig
from headwise_papers.sparse_transformer._speed import (
    Training,
    drawn_batches,
    drawn_sources,
    make_model,
    take_turns,
    translated,
)

ATTENTIONS = ("softmax", "topk:8")
CORPUS = "multi30k"  # whose lengths sentences have
CHECKED, SAME = 16, 0.75  # sentences, and which share must be translated the same
MARIAN = "Marian"
AIMS = {  # a contestant, what it is divided by, and the aim
    "training": (
        ("softmax", WITH_TRAINER, 2.0),
        ("softmax, compiled", WITH_TRAINER, 2.0),
        ("softmax, replayed", WITH_TRAINER, 2.0),
        ("topk:8", "softmax", 1 / 1.05),
        ("topk:8, compiled", "softmax, compiled", 1 / 1.05),
        ("topk:8, replayed", "softmax, replayed", 1 / 1.05),
    ),
    "beam search": (("softmax", MARIAN, 2.0), ("topk:8", "softmax", 0.94)),
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """What is measured; the defaults are for a GPU."""

    size: str = "base"
    changes: tuple[tuple[str, int], ...] = ()  # to that size
    vocab: int = 10_000
    tokens: int = 4096  # of a batch, the longer side, padding included
    batches: int = 20  # all of them are trained on in a turn
    sentences: int = 128
    beams: int = 4
    compiled: bool = True
    replayed: bool = True  # also ours as CUDA graphs
    trainer: bool = True


SIZES = {
    "cuda": Sizes(),
    "cpu": Sizes(
        size="small",
        tokens=512,
        batches=2,
        sentences=8,
        compiled=False,
        replayed=False,
        vocab=1000,
        trainer=True,
    ),
}


def measure(repeat: int, device: torch.device, *, only: tuple[str, ...] = ()) -> Measured:
    """Check that all compute the same, and time them in turns."""
    sizes = SIZES[device.type]
    parts: dict[str, Callable[[Sizes, int, torch.device], list[Row]]] = {
        "training": _training,
        "decoding": _decoding,
    }
    check_scores(_model(sizes, "softmax", device), _batches(sizes, device)[0])
    rows = [row for name in only or tuple(parts) for row in parts[name](sizes, repeat, device)]
    return Measured(rows, _table(rows, device), sum(bool(row.get("wrong")) for row in rows))


def _model(sizes: Sizes, attention: str, device: torch.device) -> Transformer:
    shape: TransformerConfig = getattr(TransformerConfig, sizes.size)(
        sizes.vocab,
        sizes.vocab,
        norm="post",
        share_embeddings="all",
        encoder_attention=attention,
        decoder_attention=attention,
        cross_attention=attention,
        **dict(sizes.changes),
    )
    return make_model(shape, device)


def _batches(sizes: Sizes, device: torch.device) -> list[Any]:
    return drawn_batches(
        CORPUS, vocab=sizes.vocab, tokens=sizes.tokens, count=sizes.batches, device=device
    )


def _training(sizes: Sizes, repeat: int, device: torch.device) -> list[Row]:
    """A row a contestant: target words a second."""
    batches = _batches(sizes, device)
    contestants = _contestants(sizes, batches, device)
    before = {name: one.evaluated(batches[0]) for name, one in contestants.items()}
    contestants, reasons = _able(contestants)
    speeds = take_turns(contestants, device, turns=repeat)
    tokens = sum(int(batch.target_lengths.sum()) for batch in batches)
    if sizes.trainer:
        peer = marian_like(_model(sizes, "softmax", device))
        seconds = trainer_seconds(peer, batches, turns=repeat)
        speeds[WITH_TRAINER] = [tokens / spent for spent in seconds]
    rows = _rows("training", speeds, tokens / len(batches))
    for row in rows:
        one = contestants.get(row["contestant"])
        if one is not None:
            after = one.evaluated(batches[0])
            row |= {"loss_before": before[row["contestant"]], "loss_after": after}
            row["wrong"] = not after < before[row["contestant"]]
    return rows + [_failed("training", name, reason) for name, reason in reasons.items()]


def _contestants(sizes: Sizes, batches: list[Any], device: torch.device) -> dict[str, Training]:
    """Everybody but Marian with its Trainer; a turn is all batches once."""
    found: dict[str, Training] = {}
    turn = len(batches)
    for compiled in (False, True) if sizes.compiled else (False,):
        said = ", compiled" if compiled else ""
        for name in ATTENTIONS:
            model = _model(sizes, name, device)
            found[name + said] = Training(model, batches, steps=turn, compiled=compiled)
        peer = marian_like(_model(sizes, "softmax", device))
        found[MARIAN + said] = Training(peer, batches, marian_scores, steps=turn, compiled=compiled)
    for name in ATTENTIONS if sizes.replayed else ():
        model = _model(sizes, name, device)
        found[f"{name}, replayed"] = Training(model, batches, steps=turn, replayed=True)
    return found


def _able(contestants: dict[str, Training]) -> tuple[dict[str, Training], dict[str, str]]:
    """Those that can train at all, and why others cannot; compiling and recording happen here."""
    able: dict[str, Training] = {}
    reasons: dict[str, str] = {}
    for name, one in contestants.items():
        try:
            for _ in range(2):  # what is replayed is recorded the second time
                one()
            able[name] = one
        except FAILURES as problem:
            reasons[name] = f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}"
    return able, reasons


def _decoding(sizes: Sizes, repeat: int, device: torch.device) -> list[Row]:
    """A row a contestant: words a second of beam search."""
    source, lengths = drawn_sources(CORPUS, vocab=sizes.vocab, count=sizes.sentences, device=device)
    wanted = [length - 1 for length in lengths.tolist()]  # without the end mark
    models = {name: _model(sizes, name, device).eval() for name in ATTENTIONS}
    peer = marian_like(models["softmax"]).eval()
    _check_translations(models["softmax"], peer, source, lengths, beams=sizes.beams)
    if device.type == "cuda":
        for model in (*models.values(), peer):
            model.bfloat16()
    searches: dict[str, Callable[[], list[list[int]]]] = {
        name: lambda model=model: _words(model, source, lengths, sizes.beams)
        for name, model in models.items()
    }
    searches[MARIAN] = lambda: marian_translated(peer, source, lengths, beams=sizes.beams)
    found = {name: search() for name, search in searches.items()}
    wrong = {name: [len(ids) for ids in rows] != wanted for name, rows in found.items()}

    def play(search: Callable[[], list[list[int]]]) -> int:
        search()
        return sum(wanted) + len(wanted)

    plays = {n: lambda s=s: play(s) for n, s in searches.items() if not wrong[n]}
    speeds = take_turns(plays, device, turns=repeat)
    rows = _rows("beam search", speeds, sum(wanted) + len(wanted))
    rows += [
        _failed("beam search", name, "sentences did not end as long as asked for") | {"wrong": True}
        for name, is_wrong in wrong.items()
        if is_wrong
    ]
    return rows


def _check_translations(
    model: Transformer, peer: MarianMTModel, source: Tensor, lengths: Tensor, *, beams: int
) -> None:
    few = source[:CHECKED], lengths[:CHECKED]
    ours, theirs = _words(model, *few, beams), marian_translated(peer, *few, beams=beams)
    same = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
    if same < SAME:
        raise SystemExit(
            f"Of {len(ours)} sentences {same:.0%} are translated as by Marian: nothing is reported."
        )


def _words(model: Transformer, source: Tensor, lengths: Tensor, beams: int) -> list[list[int]]:
    return [one.ids for one in translated(model, source, lengths, beams=beams)]


def _rows(what: str, speeds: dict[str, list[float]], tokens: float) -> list[Row]:
    """Medians; ratios are medians of those turn by turn."""
    aims = {(name, other): aim for name, other, aim in AIMS[what]}
    rows: list[Row] = []
    for name, own in speeds.items():
        row: Row = {
            "what": what,
            "contestant": name,
            "tokens_per_second": round(median(own)),
            "ms": round(1000 * tokens / median(own), 3),
        }
        for other, theirs in speeds.items():
            if other != name and (
                other in ("softmax", MARIAN, WITH_TRAINER) or (name, other) in aims
            ):
                ratios = [a / b for a, b in zip(own, theirs, strict=True)]
                row[f"over {other}"] = round(median(ratios), 3)
        row["aims"] = {
            f"over {other}": round(aim, 3) for (n, other), aim in aims.items() if n == name
        }
        rows.append(row)
    return rows


def _failed(what: str, name: str, reason: str) -> Row:
    return {"what": what, "contestant": name, "reason": reason}


def _table(rows: list[Row], device: torch.device) -> Table:
    table = Table(title=f"Transformer translation, {name_of(device)}")
    for name in ("what", "contestant"):
        table.add_column(name, no_wrap=True)
    for name in ("tokens/s", "ms a step or search", "over softmax", "over Marian", "over Trainer"):
        table.add_column(name, justify="right")
    table.add_column("aims, or why not")
    for row in rows:
        ratios = [row.get(f"over {other}") for other in ("softmax", MARIAN, WITH_TRAINER)]
        aims = [
            f"{name} {row.get(name, 'not measured')} (aim {aim})"
            for name, aim in row.get("aims", {}).items()
        ]
        speed = row.get("tokens_per_second")
        table.add_row(
            row["what"],
            row["contestant"],
            "" if speed is None else f"{speed:,}",
            "" if speed is None else f"{row['ms']:.1f}",
            *("" if ratio is None else f"{ratio:.2f}x" for ratio in ratios),
            row.get("reason", "; ".join(aims)),
        )
    return table
