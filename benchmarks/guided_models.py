"""The models whose training steps are compared: RoBERTa with random weights, plain and guided."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import RobertaConfig, RobertaForMaskedLM

from benchmarks import SEED
from benchmarks.gpu_cases import guided_half
from headwise.guidance import Plan, guide, pattern
from headwise.hf import adopt
from headwise.ops.guidance.reference import targets
from headwise.ops.scores import Scores

STRENGTH = 10.0  # the guidance loss is multiplied by it


@dataclass(frozen=True)
class Settings:
    """The model and its batch; tests make them small."""

    config: RobertaConfig
    batch: int = 32
    length: int = 512
    compiled: bool = True  # also compiled steps


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


def guided(settings: Settings, device: torch.device, *, compiled: bool = False) -> Trainee:
    """Attention stays with SDPA, and the loss is computed beside it from q and k of all layers.

    A compiled model hands q and k out of its graph; the loss is computed after it.
    """
    model, batch = adopt(_model(settings, device, "sdpa")), _batch(settings, device)
    plan = _half_the_heads(settings)
    guidance = guide(model, plan, alpha=STRENGTH, schedule="constant")
    call = torch.compile(model) if compiled else model

    def measured() -> Tensor:
        model(**batch)
        return guidance.unscaled

    step = _stepper(model, lambda: call(**batch).loss + guidance.loss(), device)
    return Trainee(step, _quiet(model, measured, device))


def _half_the_heads(settings: Settings) -> Plan:
    """What `guided_half` has, by name."""
    names = ("next", "prev", "first")
    guided_heads = max(1, settings.config.num_attention_heads // 2)
    return Plan({head: pattern(names[head % 3]) for head in range(guided_heads)})


def from_matrices(settings: Settings, device: torch.device) -> Trainee:
    """The usual way to guide: eager attention returns its matrices."""
    model, batch = _model(settings, device, "eager"), _batch(settings, device)
    chosen = guided_half(settings.config.num_attention_heads, device)
    count, length = len(chosen.heads), settings.length
    blank = torch.zeros(1, count, length, 1, device=device)
    everything = torch.ones(1, count, length, length, dtype=torch.bool, device=device)
    target_NQK = targets(Scores(blank, blank), everything, chosen.patterns, None)[0].float()
    weights = [1 / chosen.patterns.count(pattern) for pattern in chosen.patterns]
    weight_N = torch.tensor(weights, device=device)  # the heads of a pattern share one weight

    def of_layer(weights_BHQK: Tensor) -> Tensor:
        squares_N = (weights_BHQK[:, :count] - target_NQK).square().mean(dim=(0, 2, 3))
        return (squares_N * weight_N).sum()

    def both() -> tuple[Tensor, Tensor]:
        given = model(**batch, output_attentions=True)
        return given.loss, torch.stack([of_layer(layer) for layer in given.attentions]).sum()

    def loss() -> Tensor:
        own, guidance = both()
        return own + STRENGTH * guidance

    return Trainee(_stepper(model, loss, device), _quiet(model, lambda: both()[1], device))


def _quiet(
    model: RobertaForMaskedLM, guidance: Callable[[], Tensor], device: torch.device
) -> float:
    """The guidance loss with dropout off."""
    model.eval()
    with torch.autocast(device.type, torch.bfloat16):
        measured = guidance().item()
    model.train()
    return measured
