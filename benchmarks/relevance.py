"""Recurrent attention models, many at once: against `nn.LSTM` models one after the other.

And alpha and beta of a test set: against a loop over its sentences. Of the models in sequence a few
are trained, and what one of them takes is counted as often as there are models.
"""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from rich.table import Table
from torch import Tensor, nn

from benchmarks import SEED, Measured, name_of, wait_for
from benchmarks.alone import Batch, Trainee, classified, copied, in_sequence, unpacked
from benchmarks.looking import look_at_batches, look_at_sentences
from headwise_papers.data.synthetic import copying, synclf
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig, Seq2Seq, Seq2SeqConfig
from headwise_papers.models.rnn_stack import RnnClassifierStack, Seq2SeqStack
from headwise_papers.ops.lstm import lstm

Model = TypeVar("Model", bound=nn.Module)

AIM = 20  # of the classifiers on a GPU, and of reading alpha and beta
TYPES, WORDS = 40, 17_550  # of SynClf and copying, and of SST
BATCHES = 2  # different ones, in turn
CHECKED = 4  # updates whose losses must agree before anything is timed


@dataclass(frozen=True)
class Sizes:
    """What is measured; the defaults are for a GPU."""

    classifiers: int = 50
    batch: int = 32
    hidden: int = 256
    copiers: int = 32
    copying_batch: int = 128
    copying_hidden: int = 256
    sentences: int = 400
    positions: int = 400 * 50  # of a batch of sentences; here all of them at once
    lstms: tuple[int, ...] = (50, 1)
    lstm_width: int = 128
    in_sequence: int = 3  # models
    warm: int = 3  # updates not counted: on a GPU the first two prepare the replay
    updates: int = 30  # updates counted
    agreement: float = 2e-2  # relative; TensorFloat-32


SIZES = {
    "cuda": Sizes(),
    "cpu": Sizes(
        copiers=8,
        copying_batch=16,
        copying_hidden=64,
        positions=2000,
        in_sequence=2,
        warm=1,
        updates=2,
        agreement=1e-3,
    ),
}


def measure(repeat: int, device: torch.device) -> Measured:
    """Check that both sides give the same, and time them."""
    sizes = SIZES[device.type]
    rows = [
        *_classifiers(sizes, repeat, device),
        _evaluation(sizes, repeat, device),
        *_copiers(sizes, repeat, device),
        *(_op(count, sizes, repeat, device) for count in sizes.lstms),
    ]
    return Measured(rows, _table(rows, device))


def _classifiers(sizes: Sizes, repeat: int, device: torch.device) -> list[dict[str, Any]]:
    count = sizes.classifiers
    config = RnnClassifierConfig(vocabulary=TYPES + 1, hidden=sizes.hidden)
    models = [_drawn(lambda: RnnClassifier(config), seed, device) for seed in range(count)]
    rng = torch.Generator().manual_seed(SEED)
    batches: list[Batch] = []
    for _ in range(BATCHES):
        drawn = synclf(count * sizes.batch, length=TYPES, generator=rng)
        tokens, labels = (x.unflatten(0, (count, -1)).to(device) for x in drawn)
        batches.append((tokens, torch.full_like(labels, TYPES), labels))
    stacked = Trainee(RnnClassifierStack(models), batches, replay=True)
    alone, whole = models[: sizes.in_sequence], [(batch[0], batch[2]) for batch in batches]
    own = in_sequence(alone, RnnClassifier.__call__, batches, replay=False)
    peers = {"RnnClassifier, in sequence": own, **unpacked(alone, classified, whole, device)}
    what = f"one update of {count} SynClf models"
    aim = AIM if device.type == "cuda" else None
    return _training(what, stacked, peers, sizes, repeat, counted=count, aim=aim)


def _copiers(sizes: Sizes, repeat: int, device: torch.device) -> list[dict[str, Any]]:
    count = sizes.copiers
    config = Seq2SeqConfig(
        vocabulary=TYPES + 2,
        hidden=sizes.copying_hidden,
        layers=1,
        bidirectional=False,
        combine="concat",
        dropout=0.0,
    )
    models = [_drawn(lambda: Seq2Seq(config), seed, device) for seed in range(count)]
    rng = torch.Generator().manual_seed(SEED)
    batches: list[Batch] = []
    for _ in range(BATCHES):
        drawn = copying("permutation", count * sizes.copying_batch, types=TYPES, generator=rng)
        batches.append(tuple(x.unflatten(0, (count, -1)).to(device) for x in drawn))
    stacked = Trainee(Seq2SeqStack(models), batches, replay=True)
    peers = unpacked(models[: sizes.in_sequence], copied, batches, device)
    what = f"one update, one of {count} copying models, D={config.hidden}, B={sizes.copying_batch}"
    return _training(what, stacked, peers, sizes, repeat, counted=1)


def _drawn(make: Callable[[], Model], seed: int, device: torch.device) -> Model:
    torch.manual_seed(seed)
    return make().to(device)


def _training(
    what: str,
    stacked: Trainee,
    peers: dict[str, list[Trainee]],
    sizes: Sizes,
    repeat: int,
    *,
    counted: int,
    aim: int | None = None,
) -> list[dict[str, Any]]:
    """A row for each peer: milliseconds of one update of `counted` models."""
    _refuse_unless_they_learn_alike(stacked, peers, sizes)
    contestants = {"headwise": [stacked], **peers}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeat):
        for name, trainees in contestants.items():
            turn = [x.update_ms(warm=sizes.warm, updates=sizes.updates) for x in trainees]
            times[name].append(sum(turn) / sum(x.stack.seeds for x in trainees) * counted)
    ours, measured = min(times["headwise"]), f"{sizes.in_sequence} models x {sizes.updates} updates"
    return [
        _row(what, name, ours, min(times[name]), aim=aim) | {"peer_measured": measured}
        for name in peers
    ]


def _refuse_unless_they_learn_alike(
    stacked: Trainee, peers: dict[str, list[Trainee]], sizes: Sizes
) -> None:
    ours_ES = stacked.losses(CHECKED)[:, : sizes.in_sequence]
    for name, trainees in peers.items():
        theirs_ES = torch.cat([trainee.losses(CHECKED) for trainee in trainees], dim=1)
        _refuse_unless_equal(name, ours_ES, theirs_ES, sizes.agreement)


def _refuse_unless_equal(name: str, ours: Tensor, theirs: Tensor, agreement: float) -> None:
    error = (ours - theirs).abs().max().item()
    if not error <= agreement * (1e-6 + theirs.abs().max().item()):
        raise SystemExit(
            f"{name}: results differ from ours by up to {error:.2g}. "
            "Fast only counts when right: nothing is reported."
        )


def _evaluation(sizes: Sizes, repeat: int, device: torch.device) -> dict[str, Any]:
    config = RnnClassifierConfig(vocabulary=WORDS, hidden=sizes.hidden)
    model = _drawn(lambda: RnnClassifier(config), SEED, device).eval()
    rng = torch.Generator().manual_seed(SEED)
    lengths = torch.randint(5, 51, (sizes.sentences,), generator=rng).tolist()
    texts = [torch.randint(1, WORDS, (length,), generator=rng) for length in lengths]
    labels = torch.randint(2, (sizes.sentences,), generator=rng).tolist()
    contestants = {
        "headwise": look_at_batches(model, texts, labels, sizes.positions, device),
        "a loop over sentences": look_at_sentences(model, texts, labels, device),
    }
    # in plain float32, since rounding can move the largest of a row
    with _products("highest"):
        seen = {name: look() for name, look in contestants.items()}
        if len(set(seen.values())) > 1:
            raise SystemExit(f"The measures differ, {seen}: nothing is reported.")
        best = _take_turns(contestants, device, repeat)
    what = f"alpha and beta of {sizes.sentences} sentences, one model"
    ours, peer = contestants
    acc, hr = seen[ours]
    row = _row(what, peer, best[ours], best[peer], aim=AIM)
    return row | {"mode_match": acc, "highly_ranked": hr}


def _op(count: int, sizes: Sizes, repeat: int, device: torch.device) -> dict[str, Any]:
    """The recurrence by itself, with its input layer, forward and backward."""
    width, batch = sizes.lstm_width, sizes.batch
    layers = [_drawn(lambda: nn.LSTM(width, width), seed, device) for seed in range(count)]
    x_STBM = torch.randn(count, TYPES, batch, width, device=device, requires_grad=True)
    upstream_STBD = torch.randn(count, TYPES, batch, width, device=device)
    weights = [
        torch.stack([getattr(layer, f"{name}_l0").detach() for layer in layers]).requires_grad_()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]

    def ours() -> Tensor:
        into_SGM, recurrent_SGD, bias_SG, other_SG = weights
        bias_S1G = (bias_SG + other_SG)[:, None]
        gates_SXG = torch.baddbmm(bias_S1G, x_STBM.flatten(1, 2), into_SGM.mT)
        out_STBD = lstm(gates_SXG.view(*x_STBM.shape[:3], -1), recurrent_SGD).hidden
        return torch.autograd.grad(out_STBD, [x_STBM, *weights], upstream_STBD)[0]

    def theirs() -> Tensor:
        gradients = [
            torch.autograd.grad(layer(x_TBM)[0], [x_TBM, *layer.parameters()], upstream_TBD)[0]
            for layer, x_TBM, upstream_TBD in zip(layers, alone, upstream_STBD, strict=True)
        ]
        return torch.stack(gradients)

    alone = [x_TBM.detach().requires_grad_() for x_TBM in x_STBM]
    name = "nn.LSTM, in sequence" if count > 1 else "nn.LSTM"
    contestants = {"headwise": ours, name: theirs}
    with _products("high"):
        _refuse_unless_equal(name, ours(), theirs(), sizes.agreement)
        best = _take_turns(contestants, device, repeat)
    what = f"ops.lstm, S={count}, B={batch}, T={TYPES}, D={width}, forward and backward"
    return _row(what, name, best["headwise"], best[name])


@contextmanager
def _products(precision: str) -> Generator[None]:
    """Compute products, cuDNN's too, in float32 ("highest") or TensorFloat-32 ("high")."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = precision == "high"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _take_turns(
    contestants: Mapping[str, Callable[[], object]], device: torch.device, repeat: int
) -> dict[str, float]:
    """The best time of each in milliseconds, after one turn that does not count."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeat + 1):
        for name, play in contestants.items():
            wait_for(device)
            start = time.perf_counter()
            play()
            wait_for(device)
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: min(turns[1:]) for name, turns in times.items()}


def _row(
    what: str, peer: str, ours: float, theirs: float, *, aim: int | None = None
) -> dict[str, Any]:
    return {
        "what": what,
        "peer": peer,
        "ours_ms": round(ours, 3),
        "peer_ms": round(theirs, 3),
        "speed_up": round(theirs / ours, 2),
        "aim": aim,
        "faster": "headwise" if ours < theirs else "peer",
    }


def _table(rows: list[dict[str, Any]], device: torch.device) -> Table:
    table = Table(
        title=f"Recurrent attention models, many at once, {name_of(device)}",
        caption="Of models in sequence a few are timed, and counted as often as there are models.",
    )
    for name in ("what", "peer"):
        table.add_column(name)
    for name in ("our ms", "peer's ms", "speed-up", "aim", "faster"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["what"],
            row["peer"],
            f"{row['ours_ms']:.2f}",
            f"{row['peer_ms']:.2f}",
            f"{row['speed_up']:.2f}x",
            f"{row['aim']}x" if row["aim"] else "",
            row["faster"],
        )
    return table
