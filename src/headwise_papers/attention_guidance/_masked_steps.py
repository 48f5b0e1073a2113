"""Training steps of a masked language model: plain, guided, and guided from attention matrices.

Two hosts with the same weights: our `Encoder`, and Hugging Face's RoBERTa. Weights and texts are
random: nothing is downloaded. In bfloat16 by autocast on a GPU, in float32 elsewhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, float32, nn
from torch.nn.functional import cross_entropy
from torch.nn.functional import dropout as dropped
from transformers import PreTrainedModel

from headwise.guidance import Plan, guide
from headwise.hf import adopt
from headwise.ops import Attended, Scores
from headwise.ops.guidance import FIRST, NEXT, PREVIOUS, targets
from headwise.ops.rows import softmax_rows
from headwise.sites import in_backward, replace
from headwise_papers.models import Encoder, EncoderConfig, MaskedLM
from headwise_papers.models.encoder_weights import to_hugging_face

__all__ = [
    "ENCODER",
    "FIRST_WORD",
    "ROBERTA",
    "Batch",
    "Host",
    "Settings",
    "Trainee",
    "drawn_batch",
    "drawn_model",
    "from_matrices",
    "guided",
    "own_loss",
    "plain",
]

SEED = 0
MASKED = 0.15  # of words
FIRST_WORD = 4  # the numbers before it mean padding and the like
ALPHA = 10.0  # the guidance loss is multiplied by it
ROBERTA_BASE = EncoderConfig.roberta(50_265)
WRITTEN = {"next": NEXT, "prev": PREVIOUS, "first": FIRST}

Host = Literal["RoBERTa", "Encoder"]
ROBERTA: Host = "RoBERTa"
ENCODER: Host = "Encoder"


class Batch(NamedTuple):
    """Masked texts, and what was there."""

    ids: Tensor
    places: Tensor  # of masks, in the flat batch
    words: Tensor  # at these places
    labels: Tensor  # the same as transformers wants it: -100 elsewhere


@dataclass(frozen=True)
class Settings:
    """A model and its batch, RoBERTa-base and 32 texts of 512 tokens unless given."""

    config: EncoderConfig = ROBERTA_BASE
    batch: int = 32
    length: int = 512

    @property
    def plan(self) -> Plan:
        """Half the heads, as in the paper."""
        return Plan.fraction(1 / 2, heads=self.config.heads)


@dataclass(frozen=True)
class Trainee:
    """A model in training."""

    step: Callable[[], object]
    own: float  # its own loss before training, with dropout off
    guidance: float | None = None  # and the guidance loss, without alpha


def drawn_batch(
    vocab: int, *, texts: int, length: int, generator: torch.Generator, device: torch.device
) -> Batch:
    """Draw random texts with the same number of masks in each, 15 % of their words."""
    shape = texts, length
    masks = max(1, round(MASKED * length))
    ids_BT = torch.randint(FIRST_WORD, vocab, shape, generator=generator)
    column_BN = torch.rand(shape, generator=generator).argsort(dim=1)[:, :masks]
    places_N = (column_BN + length * torch.arange(texts)[:, None]).flatten()
    words_N = ids_BT.flatten()[places_N]
    labels_BT = torch.full(shape, -100).flatten().index_copy(0, places_N, words_N).view(shape)
    masked_BT = ids_BT.flatten().index_fill(0, places_N, FIRST_WORD - 1).view(shape)
    parts = masked_BT, places_N, words_N, labels_BT
    return Batch(*(tensor.to(device) for tensor in parts))


def drawn_model(
    config: EncoderConfig, device: torch.device, *, checkpointing: bool = False
) -> MaskedLM:
    """Return a model with the same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return MaskedLM(Encoder(config, checkpointing=checkpointing)).to(device)


def own_loss(model: nn.Module, called: Any = None) -> Callable[[Batch], Tensor]:
    """Return a function from a batch to a model's cross-entropy of what was masked.

    Args:
        model: `MaskedLM`, or one of transformers.
        called: in its place, e.g. the same model compiled.
    """
    call: Callable[..., Any] = model if called is None else called
    if isinstance(model, MaskedLM):
        return lambda batch: cross_entropy(call(batch.ids, batch.places), batch.words)
    # without a mask of ones: transformers would read it, and the device would be waited for
    return lambda batch: call(input_ids=batch.ids, labels=batch.labels).loss


def plain(
    settings: Settings,
    device: torch.device,
    *,
    host: Host = ROBERTA,
    compiled: bool = False,
    checkpointing: bool = False,
    adopted: bool = False,
) -> Trainee:
    """Run the usual step; adopted, RoBERTa makes no masks that a compiled graph must obey."""
    model, batch = _model(settings, device, host, checkpointing), _batch(settings, device)
    if adopted:
        adopt(model)
    ask = own_loss(model, torch.compile(model) if compiled else None)
    own, _ = _quiet(model, lambda: (own_loss(model)(batch), None), device)
    return Trainee(_stepper(model, lambda: ask(batch), device), own)


def guided(
    settings: Settings,
    device: torch.device,
    *,
    host: Host = ROBERTA,
    compiled: bool = False,
    checkpointing: bool = False,
) -> Trainee:
    """Return a model whose guidance loss is computed from q and k; attention keeps its backend.

    A compiled model hands q and k out of its graph; the loss is computed after it.
    """
    model, batch = _model(settings, device, host, checkpointing), _batch(settings, device)
    if host == ROBERTA:
        adopt(model)
    guidance = guide(model, settings.plan, alpha=ALPHA, schedule="constant")
    ask = own_loss(model, torch.compile(model) if compiled else None)

    def both() -> tuple[Tensor, Tensor]:
        return own_loss(model)(batch), guidance.unscaled

    step = _stepper(model, lambda: ask(batch) + guidance.loss(), device)
    return Trainee(step, *_quiet(model, both, device))


def from_matrices(
    settings: Settings,
    device: torch.device,
    *,
    host: Host = ROBERTA,
    compiled: bool = False,
    checkpointing: bool = False,
) -> Trainee:
    """Guide in the usual way: eager attention returns its matrices, and the loss is theirs."""
    model, batch = _model(settings, device, host, checkpointing), _batch(settings, device)
    ask, measure = _asking_for_matrices(model), _distance(settings, device)
    called = model
    if compiled:
        called, measure = torch.compile(model), torch.compile(measure)

    def both(call: Any) -> tuple[Tensor, Tensor]:
        own, matrices = ask(batch, call)
        return own, torch.stack([measure(weights_BHQK) for weights_BHQK in matrices]).sum()

    def loss() -> Tensor:
        own, guidance = both(called)
        return own + ALPHA * guidance

    return Trainee(_stepper(model, loss, device), *_quiet(model, lambda: both(model), device))


def _model(
    settings: Settings, device: torch.device, host: Host, checkpointing: bool
) -> MaskedLM | PreTrainedModel:
    ours = drawn_model(settings.config, device, checkpointing=checkpointing)
    if host == ENCODER:
        return ours.train()
    theirs = to_hugging_face(ours).train()
    if checkpointing:
        theirs.config.use_cache = False  # which transformers would do itself, with a warning
        theirs.gradient_checkpointing_enable({"use_reentrant": False})
    return theirs


def _batch(settings: Settings, device: torch.device) -> Batch:
    return drawn_batch(
        settings.config.vocab,
        texts=settings.batch,
        length=settings.length,
        generator=torch.Generator().manual_seed(SEED),
        device=device,
    )


def _asking_for_matrices(
    model: MaskedLM | PreTrainedModel,
) -> Callable[[Batch, Any], tuple[Tensor, list[Tensor]]]:
    """Return a function from a batch to a model's loss and the weights of each layer, (B, H, Q, K).

    What is called comes second: the model, or the same compiled.
    """
    if isinstance(model, PreTrainedModel):
        model.set_attn_implementation("eager")

        def ask_theirs(batch: Batch, call: Any) -> tuple[Tensor, list[Tensor]]:
            given = call(input_ids=batch.ids, labels=batch.labels, output_attentions=True)
            return given.loss, list(given.attentions)

        return ask_theirs
    kept = MatricesKept()
    replace(model, kept)

    def ask_ours(batch: Batch, call: Any) -> tuple[Tensor, list[Tensor]]:
        loss = own_loss(model, call)(batch)
        return loss, kept.drain()

    return ask_ours


class MatricesKept:
    """An op for `replace`: two products and a softmax between, whose result is kept.

    Weights are those after dropout, as eager implementations return them. Where gradient
    checkpointing computes a layer again, nothing is kept a second time.
    """

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def __call__(
        self,
        q: Float[Tensor, "B H Q D"],
        k: Float[Tensor, "B H K D"],
        v: Float[Tensor, "B H K E"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        lengths: Int[Tensor, " B"] | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Attended:
        """Attend to all keys."""
        assert mask is None and bias is None and lengths is None and not causal
        scores_BHQK = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        weights_BHQK = dropped(scores_BHQK.softmax(dim=-1, dtype=float32).to(q.dtype), dropout)
        if not in_backward():
            self._kept.append(weights_BHQK)
        return Attended(weights_BHQK @ v, Scores(q, k, scale=scale), softmax_rows)

    def drain(self) -> list[Tensor]:
        """Return the weights since the last drain, in the order of the calls."""
        kept, self._kept = self._kept, []
        return kept


def _distance(settings: Settings, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return a function from a layer's weights to its guidance loss, by the convention "mean"."""
    aims = list(settings.plan.aims.values())
    count, length = len(aims), settings.length
    blank = torch.zeros(1, count, length, 1, device=device)
    everything = torch.ones(1, count, length, length, dtype=torch.bool, device=device)
    patterns = tuple(WRITTEN[aim.name] for aim in aims)
    target_NQK = targets(Scores(blank, blank), everything, patterns, None)[0].float()
    # the heads of a pattern share one weight
    weight_N = torch.tensor([1 / aims.count(aim) for aim in aims], device=device)

    def measure(weights_BHQK: Tensor) -> Tensor:
        squares_N = (weights_BHQK[:, :count] - target_NQK).square().mean(dim=(0, 2, 3))
        return (squares_N * weight_N).sum()

    return measure


def _stepper(
    model: nn.Module, loss: Callable[[], Tensor], device: torch.device
) -> Callable[[], object]:
    cuda = device.type == "cuda"
    descent = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=cuda)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            total = loss()
        total.backward()
        descent.step()
        descent.zero_grad()

    return step


def _quiet(
    model: nn.Module, both: Callable[[], tuple[Tensor, Tensor | None]], device: torch.device
) -> tuple[float, float | None]:
    """Return losses with dropout off; with gradients, as guidance keeps nothing without."""
    model.eval()
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        own, guidance = both()
    model.train()
    return own.item(), None if guidance is None else guidance.item()
