"""What Headwise offers, tried on one model: each verb passes, is refused, or raises `Wrong`."""

import copy
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import headwise as hw
from headwise import pruning
from headwise.guidance import Plan

LINES = ["the small dog saw some cats .", "a cat slept .", "it ran and the birds slept ."]
HOME = str(Path(hw.__file__).parent)


class Wrong(Exception):
    """Headwise did something that it must not do."""


class Skip(Exception):
    """A verb has no meaning for this model (state "none"), or the host fails alone ("host")."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state = state


@dataclass(frozen=True)
class Cell:
    """How one verb went with one backend: "ok", "refused", "host", "none" or "wrong"."""

    state: str
    reason: str = ""


@dataclass
class Trial:
    """One model in its plain form, and a batch for it. Verbs work on copies."""

    plain: PreTrainedModel
    batch: dict[str, Any]
    backend: str
    notes: list[str] = field(default_factory=list)

    def fresh(self, *, adopted: bool = True) -> PreTrainedModel:
        """Copy the model."""
        model = copy.deepcopy(self.plain)
        return hw.adopt(model) if adopted else model

    def outputs(self, model: nn.Module) -> list[Tensor]:
        """Every tensor that the model returns, without gradients and from one random state."""
        torch.manual_seed(0)
        with torch.no_grad():
            return tensors(model(**self.batch))

    @cached_property
    def expected(self) -> list[Tensor]:
        """The outputs of the plain model."""
        return self.outputs(self.plain)

    @cached_property
    def running(self) -> list[tuple[str, int]]:
        """Sites whose modules the batch reaches, with their numbers of heads, in order."""
        model, ran = self.fresh(), dict[str, int]()

        def note(module: nn.Module, _: object) -> None:
            site = module.__dict__["site"]
            ran[site.name] = site.num_heads

        for _, module in holders(model):
            module.register_forward_pre_hook(note)
        self.outputs(model)
        return list(ran.items())

    @cached_property
    def effects(self) -> dict[str, tuple[list[Tensor], list[Tensor]] | None]:
        """Outputs of the plain model without head 0, and without any, of up to three sites.

        None for a site that is not on transformers' interface, where the survey cannot zero heads.
        """
        if not self.running:
            raise Skip("none", "the batch reaches no site")
        names = [name for name, _ in self.running]
        paths = {_site(module): path for path, module in self.fresh().named_modules()}
        found: dict[str, tuple[list[Tensor], list[Tensor]] | None] = {}
        for name in (names[0], names[len(names) // 2], names[-1]):
            module = self.plain.get_submodule(paths[name])
            with zeroed(module, slice(0, 1)) as calls:
                one = self.outputs(self.plain)
            with zeroed(module, slice(None)):
                found[name] = (one, self.outputs(self.plain)) if calls else None
        return found


def holders(model: nn.Module) -> Iterator[tuple[hw.Site, nn.Module]]:
    """Each site with the module that calls it."""
    for module in model.modules():
        if isinstance(module.__dict__.get("site"), hw.Site):
            yield module.__dict__["site"], module


def _site(module: nn.Module) -> str:
    return getattr(module.__dict__.get("site"), "name", "")


@contextmanager
def zeroed(module: nn.Module, heads: slice) -> Iterator[list[int]]:
    """Let the host's attention function return zeros for heads of one module, without Headwise."""
    original, calls = AttentionInterface.get_interface, list[int]()

    def get_interface(self: AttentionInterface, *args: Any) -> Callable[..., Any]:
        function = original(self, *args)

        def attend(caller: nn.Module, *args: Any, **options: Any) -> Any:
            out, *rest = function(caller, *args, **options)
            if caller is module:
                calls.append(1)
                out = out.clone()
                out[:, :, heads] = 0
            return (out, *rest)

        return attend

    AttentionInterface.get_interface = get_interface
    try:
        yield calls
    finally:
        AttentionInterface.get_interface = original


def tensors(output: Any) -> list[Tensor]:
    """Every tensor in a model's output, in order, without caches and attention weights.

    Some hosts return weights with eager attention unasked; replaced and pruned ones cannot.
    """
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = [value for name, value in output.items() if not name.endswith("attentions")]
    return [t for part in output for t in tensors(part)] if isinstance(output, list | tuple) else []


def gap(first: list[Tensor], second: list[Tensor]) -> float:
    """The largest difference, relative where values exceed 1; NaN at the same places is equal."""
    if [t.shape for t in first] != [t.shape for t in second]:
        return float("inf")
    return max((_gap(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def _gap(a: Tensor, b: Tensor) -> float:
    if torch.equal(a, b):
        return 0.0
    a, b = a.double(), b.double()
    differs = (a != b) & ~(a.isnan() & b.isnan())
    if not differs.any():
        return 0.0
    scale = a[a.isfinite()].abs().max().clamp(min=1).item() if a.isfinite().any() else 1.0
    found = ((a - b)[differs].abs().max() / scale).item()
    return found if found == found else float("inf")


def same(first: list[Tensor], second: list[Tensor], what: str, within: float = 0.0) -> None:
    """Raise Wrong if outputs differ by more than this."""
    found = gap(first, second)
    if not found <= within:
        raise Wrong(f"{what}: outputs differ by {found:.1e}")


def adopt(trial: Trial) -> None:
    model = trial.fresh()
    same(trial.expected, trial.outputs(model), "adopted")
    if not hw.find_sites(model):
        raise Wrong("adopted without sites")


def observe(trial: Trial) -> None:
    model, seen = trial.fresh(), dict[str, list[Tensor]]()

    def watch(site: hw.Site, attended: hw.Attended) -> None:
        seen.setdefault(site.name, []).append(attended.weights)

    with hw.observe(model, watch):
        same(trial.expected, trial.outputs(model), "observed")
    if missing := [name for name, _ in trial.running if name not in seen]:
        raise Wrong(f"{len(missing)} of {len(trial.running)} sites were not shown: {missing[0]}")
    if not seen:
        raise Skip("none", "the batch reaches no site")
    parity = hw.check_parity(trial.fresh(adopted=False), trial.batch)
    if not parity.equal or not parity.calls_seen:
        raise Wrong(f"check_parity: {parity}")
    if trial.backend == "eager":
        _compare_weights(trial, [weights for several in seen.values() for weights in several])


def _compare_weights(trial: Trial, seen: list[Tensor]) -> None:
    """Hold observed weights to what the host returns; queries that see nothing are left out."""
    try:
        torch.manual_seed(0)
        with torch.no_grad():
            output = trial.plain(**trial.batch, output_attentions=True)
    except Exception:
        trial.notes.append("the host does not return attentions")
        return
    named = output.items() if isinstance(output, Mapping) else ()
    for weights in tensors([v for k, v in named if k.endswith("attentions") and v is not None]):
        alike = [own for own in seen if own.shape == weights.shape]
        # Granite returns weights of keys alone, and lowers the output by what its sink takes
        alike += [own / own.sum(-1, keepdim=True).clamp(min=1e-9) for own in alike]
        gaps = [((own - weights).abs() * (own.sum(-1, keepdim=True) > 0)).max() for own in alike]
        if gaps and not min(gaps) < 1e-5:
            raise Wrong(f"weights differ from output_attentions by {min(gaps):.1e}")


def mask(trial: Trial) -> None:
    model, heads = trial.fresh(), dict(trial.running)
    for name, without in trial.effects.items():
        with hw.masked(model, {name: [0]}):
            one = trial.outputs(model)
        with hw.masked(model, {name: range(heads[name])}):
            every = trial.outputs(model)
        if without is not None:
            same(without[0], one, f"head 0 of {name} masked", 1e-5)
            same(without[1], every, f"all heads of {name} masked", 1e-5)
        elif not gap(trial.expected, one) or not gap(trial.expected, every):
            raise Wrong(f"masking heads of {name} changed nothing")
    same(trial.expected, trial.outputs(model), "mask undone")


def replace(trial: Trial) -> None:
    model = trial.fresh()
    with hw.replace(model, hw.softmax_attention):
        replaced = trial.outputs(model)
    if gap(trial.expected, replaced) > 1e-4:  # in double precision, where rounding is no excuse
        exact = Trial(copy.deepcopy(trial.plain).double(), doubled(trial.batch), trial.backend)
        with hw.replace(model.double(), hw.softmax_attention):
            same(exact.expected, exact.outputs(model), "softmax_attention", 1e-6)
        model = trial.fresh()
    effects = trial.effects.values()
    matters = any(outs is None or gap(trial.expected, outs[1]) > 1e-4 for outs in effects)
    with hw.replace(model, partial(hw.topk_attention, keep=2)):
        changed = gap(trial.expected, trial.outputs(model))
    if matters and not changed and not all_tie(trial):  # keys that tie for the last place are kept
        raise Wrong("topk_attention changed nothing")
    same(trial.expected, trial.outputs(model), "replacement undone")


def all_tie(trial: Trial) -> bool:
    """Say whether every query attends to all keys it sees alike."""
    even: list[Tensor] = []
    model = trial.fresh()
    with hw.observe(model, lambda site, seen: even.append(seen.peak * (seen.weights > 0).sum(-1))):
        trial.outputs(model)
    return all(bool(((row - 1).abs() < 1e-4).logical_or(row == 0).all()) for row in even)


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with its floating-point tensors in double precision."""
    return {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in batch.items()
    }


def guide(trial: Trial) -> None:
    model = trial.fresh()
    guidance = hw.guide(model, Plan(first=1), where="*", schedule="constant")
    torch.manual_seed(0)
    output = tensors(model(**trial.batch))
    same(trial.expected, [t.detach() for t in output], "guided", 1e-5)
    loss = guidance.loss()
    if not loss.isfinite():
        raise Wrong(f"the guidance loss is {loss.item()}")
    loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    if not any(bool(grad.any()) for grad in grads):
        raise Wrong("the guidance loss has no gradient")
    if not all(bool(grad.isfinite().all()) for grad in grads):
        raise Wrong("the gradient of the guidance loss is not finite")


def prune(trial: Trial) -> None:
    heads = {name: count for name, count in trial.running if count > 1}
    keep = {name: list(range(0, count, 2)) for name, count in heads.items()}
    refusals = dict[str, ValueError]()
    for name in keep:  # each site alone, to know which of them cannot be pruned
        try:
            hw.prune(trial.fresh(), {name: keep[name]})
        except ValueError as error:
            if not refused(error):
                raise
            refusals[name] = error
    possible = {name: heads for name, heads in keep.items() if name not in refusals}
    if not possible:
        raise next(iter(refusals.values()), Skip("none", "no site has two heads"))
    if refusals:
        trial.notes.append(f"{len(possible)} of {len(keep)} sites: {next(iter(refusals.values()))}")
    model, masked = trial.fresh(), trial.fresh()
    hw.prune(model, possible)
    cut = trial.outputs(model)
    off = {name: list(range(1, heads[name], 2)) for name in possible}
    with hw.masked(masked, off):
        same(trial.outputs(masked), cut, "pruned", 1e-4)
    with tempfile.TemporaryDirectory() as folder:
        pruning.save(model, Path(folder) / "model")
        loaded = pruning.load(Path(folder) / "model")
    if gap(cut, trial.outputs(loaded)) > 1e-4:
        loaded.set_attn_implementation(trial.backend)
        same(cut, trial.outputs(loaded), "loaded", 1e-4)
        raise Wrong("loaded with another backend, which this host computes differently")


def inspect(trial: Trial) -> None:
    framed = "<s> $A </s>" if not trial.plain.can_generate() else "$A"
    framed = "$A </s>" if trial.plain.config.is_encoder_decoder else framed
    model = trial.fresh(adopted=False)
    table = hw.inspect(
        model, tokenizer(framed), LINES, sample=1, steps=1, ablation_lines=1, batch_size=2
    )
    if not len(table.heads):
        raise Wrong("the table is empty")
    same(trial.expected, trial.outputs(model), "inspected")


def tokenizer(frame: str) -> PreTrainedTokenizerFast:
    """Make a tokenizer of the words of `LINES`, with the ids that tiny models have."""
    words = sorted({word for line in LINES for word in line.split()})
    ids = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4}
    ids |= {word: place for place, word in enumerate(words, 10)}
    fast = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.post_processor = processors.TemplateProcessing(
        single=frame, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    names = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    named = {f"{name}_token": text for name, text in names.items()}
    return PreTrainedTokenizerFast(tokenizer_object=fast, model_max_length=40, **named)


def generate(trial: Trial) -> None:
    if not trial.plain.can_generate():
        raise Skip("none", "does not generate")
    batch = {k: v for k, v in trial.batch.items() if not k.startswith("decoder_")}
    adopted, text = trial.fresh(), trial.plain.config.get_text_config()
    marked = "input_ids" in batch and bool((batch["input_ids"] > 60).any())
    # a generated image token would ask for another image
    unmarked = {"suppress_tokens": list(range(61, text.vocab_size))} if marked else {}
    for use_cache in (True, False):
        plain = trial.fresh(adopted=False)
        options = {"max_new_tokens": 3, "do_sample": False, "use_cache": use_cache, **unmarked}
        torch.manual_seed(0)
        try:
            expected = tensors(plain.generate(**copy.deepcopy(batch), **options))
        except Exception as error:
            raise Skip("host", f"{type(error).__name__}: {error}") from error
        torch.manual_seed(0)
        found = tensors(adopted.generate(**copy.deepcopy(batch), **options))
        same(expected, found, f"generated with use_cache={use_cache}")


def release(trial: Trial) -> None:
    model = trial.fresh(adopted=False)
    before = settings(model)
    hw.adopt(model)
    trial.outputs(model)
    hw.release(model)
    same(trial.expected, trial.outputs(model), "released")
    if settings(model) != before:
        raise Wrong("the configuration is not as it was")
    if list(holders(model)):
        raise Wrong("sites are left")


def settings(model: nn.Module) -> list[tuple[str, str]]:
    """Everything that configurations of a model say, and their backends."""
    held = [getattr(module, "config", None) for module in model.modules()]
    unique = {id(config): config for config in held if isinstance(config, PreTrainedConfig)}
    return [(str(config.to_dict()), config._attn_implementation) for config in unique.values()]


Verb = Callable[[Trial], None]
VERBS: dict[str, Verb] = {
    verb.__name__: verb
    for verb in (adopt, observe, mask, replace, guide, prune, inspect, generate, release)
}


def refused(error: ValueError) -> bool:
    """Whether Headwise itself raised it, and nothing that it called."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename.startswith(HOME)


def attempt(verb: Verb, trial: Trial) -> Cell:
    """Try a verb; whatever is neither right nor refused by a sentence is wrong."""
    trial.notes.clear()
    try:
        verb(trial)
    except Skip as skip:
        return Cell(skip.state, str(skip))
    except Wrong as wrong:
        return Cell("wrong", str(wrong))
    except Exception as error:
        if isinstance(error, ValueError) and refused(error):
            return Cell("refused", str(error))
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return Cell("wrong", f"{type(error).__name__} at {where}: {error}")
    return Cell("ok", "; ".join(trial.notes))
