"""The models whose training steps are compared: RoBERTa with random weights, plain and guided."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import RobertaConfig, RobertaForMaskedLM

from benchmarks import SEED
from benchmarks.gpu_cases import guided_half
from headwise.hf import adopt
from headwise.ops import Attended, softmax_attention
from headwise.ops._impl import Impl
from headwise.ops.guidance import GuidedHeads, guidance_loss
from headwise.ops.guidance.reference import targets
from headwise.ops.scores import Scores
from headwise.sites import Site, observe, replace

STRENGTH = 10.0  # the guidance loss is multiplied by it


@dataclass(frozen=True)
class Settings:
    """The model and its batch; tests make them small."""

    config: RobertaConfig
    batch: int = 32
    length: int = 512
    impl: Impl = "triton"
    compiled: bool = True  # also compiled steps


class Total:
    """The guidance loss so far, of the sites that were called.

    One tensor and no list: a function that lengthens a list is compiled anew for every length.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.clear()

    def clear(self) -> None:
        """Begin a step; the last one is not looked at, as it has a gradient and the first none."""
        self.loss = torch.zeros((), device=self.device)

    def add(self, loss: Tensor) -> None:
        """Of one site."""
        self.loss = self.loss + loss


@dataclass(frozen=True)
class Trainee:
    """A model in training."""

    step: Callable[[], object]
    guidance: float | None = None  # the guidance loss before training, with dropout off


def base_settings() -> Settings:
    """RoBERTa-base, 32 texts of 512 tokens."""
    config = RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
    return Settings(config)


def _model(settings: Settings, device: torch.device, backend: str) -> RobertaForMaskedLM:
    torch.manual_seed(SEED)
    config = RobertaConfig(**settings.config.to_dict())  # adopting marks the configuration
    config._attn_implementation = backend
    with device:  # drawn where it stays: the weights of all contestants are the same ones
        return RobertaForMaskedLM(config).train()


def _batch(settings: Settings, device: torch.device) -> dict[str, Tensor]:
    """Random tokens; 15 % are to be guessed."""
    rng = torch.Generator().manual_seed(SEED)
    size = (settings.batch, settings.length)
    # the first few numbers mean padding and the like
    ids_BT = torch.randint(4, settings.config.vocab_size, size, generator=rng)
    labels_BT = ids_BT.masked_fill(torch.rand(size, generator=rng) > 0.15, -100)
    return {"input_ids": ids_BT.to(device), "labels": labels_BT.to(device)}


def _stepper(
    model: RobertaForMaskedLM, loss: Callable[[], Tensor], device: torch.device
) -> Callable[[], object]:
    descent = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            total = loss()
        total.backward()
        descent.step()
        descent.zero_grad()

    return step


def plain(settings: Settings, device: torch.device, *, compiled: bool = False) -> Trainee:
    """What everybody does."""
    model, batch = _model(settings, device, "sdpa"), _batch(settings, device)
    call = torch.compile(model) if compiled else model
    return Trainee(_stepper(model, lambda: call(**batch).loss, device))


def guided(settings: Settings, device: torch.device) -> Trainee:
    """A watcher at every site reads q and k, and leaves a loss."""
    model, batch = adopt(_model(settings, device, "sdpa")), _batch(settings, device)
    chosen = guided_half(settings.config.num_attention_heads, device)
    total = Total(device)

    def watch(site: Site, attended: Attended) -> None:
        total.add(_loss(attended.scores, chosen, settings.impl))

    observe(model, watch)
    loss = _with_guidance(model, batch, total)
    return Trainee(_stepper(model, loss, device), _quiet(model, loss, total, device))


def guided_inside(settings: Settings, device: torch.device) -> Trainee:
    """A watcher is never compiled; an op that also computes the loss is, with the whole model."""
    model, batch = adopt(_model(settings, device, "sdpa")), _batch(settings, device)
    chosen = guided_half(settings.config.num_attention_heads, device)
    total = Total(device)

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None,
        bias: Tensor | None,
        causal: bool,
        lengths: Tensor | None,
        scale: float | None,
        dropout: float,
    ) -> Attended:
        attended = softmax_attention(
            q, k, v, mask=mask, causal=causal, scale=scale, dropout=dropout, impl="torch"
        )
        total.add(_loss(attended.scores, chosen, settings.impl))
        return attended

    replace(model, attend)
    loss = _with_guidance(model, batch, total)
    step = _stepper(model, torch.compile(loss), device)
    return Trainee(step, _quiet(model, loss, total, device))


def _with_guidance(
    model: RobertaForMaskedLM, batch: dict[str, Tensor], total: Total
) -> Callable[[], Tensor]:
    """A model's loss and what its sites add to a total meanwhile."""

    def loss() -> Tensor:
        total.clear()
        guessing = model(**batch).loss
        return guessing + STRENGTH * total.loss

    return loss


def from_matrices(settings: Settings, device: torch.device) -> Trainee:
    """The usual way to guide: eager attention returns its matrices."""
    model, batch = _model(settings, device, "eager"), _batch(settings, device)
    chosen = guided_half(settings.config.num_attention_heads, device)
    count, length = len(chosen.heads), settings.length
    blank = torch.zeros(1, count, length, 1, device=device)
    everything = torch.ones(1, count, length, length, dtype=torch.bool, device=device)
    target_NQK = targets(Scores(blank, blank), everything, chosen.patterns, None)[0].float()
    total = Total(device)

    def loss() -> Tensor:
        given = model(**batch, output_attentions=True)
        total.clear()
        for weights_BHQK in given.attentions:
            total.add((weights_BHQK[:, :count] - target_NQK).square().mean(dim=(0, 2, 3)).sum())
        return given.loss + STRENGTH * total.loss

    return Trainee(_stepper(model, loss, device), _quiet(model, loss, total, device))


def _loss(scores: Scores, chosen: GuidedHeads, impl: Impl) -> Tensor:
    """The mean squared distance of every guided head from its pattern, summed over heads."""
    return guidance_loss(
        scores.q,
        scores.k,
        chosen,
        mask=scores.mask,
        scale=scores.scale,
        reduction="mean",
        impl=impl,
    ).sum()


@torch.no_grad()
def _quiet(
    model: RobertaForMaskedLM,
    loss: Callable[[], object],
    total: Total,
    device: torch.device,
) -> float:
    """The guidance loss with dropout off."""
    model.eval()
    with torch.autocast(device.type, torch.bfloat16):
        loss()
    model.train()
    return total.loss.item()
