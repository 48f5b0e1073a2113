"""Guidance of a model in training: `guide` and its handle (Deshpande & Narasimhan, 2020).

loss  ->  loss + alpha_t * sum over sites of the distance of guided heads from their patterns
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from operator import index
from typing import Any, SupportsIndex, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.guidance.loss import (
    GuidanceLoss,
    GuidedCall,
    SitePlan,
    Texts,
    has_token,
    site_plan,
)
from headwise.guidance.plan import (
    CONSTANT_FOR,
    Convention,
    ConventionName,
    Plan,
    Schedule,
    Strength,
    check_alpha,
    check_token,
    convention_of,
)
from headwise.ops._impl import Number
from headwise.ops.scores import Scores
from headwise.recording.run import NotFinite
from headwise.sites import Site, Where, find_sites, in_backward, tapped

IDS = ("input_ids", "ids", "source", "tokens")
DECODER_IDS = ("decoder_input_ids", "target")
MASK, DECODER_MASK = "attention_mask", "decoder_attention_mask"
LABELS = "labels"
IGNORED = -100  # the label of positions that are not predicted
# names of the vocabulary size in configs, that of the stack itself first
VOCABULARY = {
    "encoder": ("source_vocab", "src_vocab_size", "vocab", "vocab_size"),
    "decoder": ("target_vocab", "tgt_vocab_size", "decoder_vocab_size", "vocab", "vocab_size"),
}


def guide(
    model: nn.Module,
    plan: Plan | str | Mapping[str, Plan | str],
    *,
    alpha: Number = 10.0,
    steps: int | None = None,
    schedule: Schedule | None = None,
    constant_for: int = CONSTANT_FOR,
    where: Where | None = None,
    convention: ConventionName = "mean",
    padding: int | None = None,
) -> "Guidance":
    """Guide heads of a model in training: add the handle's `loss()` to the loss of each batch.

        guidance = hw.guide(model, Plan(next=1, prev=1, first=4), steps=10_000)
        for step, batch in enumerate(batches):
            guidance.at_step(step)
            loss = task_loss(model, batch) + guidance.loss()
            ...

    Attention keeps its backend. The loss is computed separately from q and k, on weights before
    dropout, without the (Q, K) matrix. Guide a model before it is compiled or wrapped.

    Args:
        model: anything with sites; a Hugging Face model must be adopted before.
        plan: the pattern of each guided head, at all chosen sites; or `{where: plan}`, for
            different plans in layers or stacks. `Plan.parse` reads text like "next=1,prev=1".
        alpha: the weight of the loss at the start. The paper uses 10 for 12 and 16 layers and 100
            for 8, with the conventions "mean" and "reference_code" and texts of 512 tokens. That
            loss falls as 1/n, so start from 10 n / 512 for n tokens. Keep alpha times the loss
            below the model's own loss at the first update. With small updates 10 was too weak and
            30 right: watch `by_pattern`.
        steps: updates of the whole training, after which alpha is 0; `GuidanceCallback` sets it.
        schedule: "linear" to 0, "constant_then_linear" or "constant"; by default the convention's.
        constant_for: updates before alpha begins to fall with "constant_then_linear".
        where: the sites of one plan, e.g. "decoder.*.self" or "*.cross"; by default "encoder.*".
        convention: how the loss is reduced, see `CONVENTIONS`. "mean": patterns as in the paper,
            and for each pattern of a site the mean over texts, heads, queries and visible keys.
            "paper": the sum over queries and keys of a text and over heads. "reference_code": like
            "mean", but targets are 1 at every aimed key and 0 in rows without one, and alpha is
            constant for 20,000 updates.
        padding: token id of padding, where neither an attention mask nor lengths show it.
    """
    _check_model(model)
    if padding is not None:
        check_token("padding", padding)
    counted = convention_of(convention)
    plans = _plans_by_site(model, _by_where(plan, where), counted)
    strength = Strength(float(alpha), schedule or counted.schedule, steps, constant_for)
    return Guidance(model, plans, counted, strength, padding=padding)


class Guidance:
    """Handle of `guide`, with the guidance loss of the model's last forward pass.

    The loss belongs to the last forward pass with gradients. When gradients of several batches are
    accumulated, add `loss()` to the loss of each batch. Forward passes without gradients keep and
    compute nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        plans: Mapping[str, SitePlan],
        convention: Convention,
        strength: Strength,
        *,
        padding: int | None = None,
    ) -> None:
        self.model, self.strength, self.padding = model, strength, padding
        self._alpha = float(strength.alpha)  # alpha_t
        self._alpha_is_set = not strength.falls  # for the next update
        self._steps_given = strength.steps is not None
        # Tensors that a recorded CUDA graph reads (alpha_t) and writes (losses of patterns). The
        # first step makes them, because it is never recorded.
        self._weight: Tensor | None = None
        self._unscaled_P: Tensor | None = None
        self._inputs, self._guidance_loss = Inputs(model), GuidanceLoss(plans, convention)
        self._in_forward = False
        self._calls: list[GuidedCall] | None = None  # of the last forward pass
        self._arguments: dict[str, Tensor] = {}
        self._loss: Tensor | None = None
        self._change = tapped(model, self._record, where=lambda site: site.name in plans)
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end),
        ]

    def loss(self) -> Float[Tensor, ""]:
        """Return alpha_t times the guidance loss of the last forward pass."""
        unscaled = self._unscaled()
        if not self._alpha_is_set:
            raise ValueError(
                f"alpha falls by the schedule {self.strength.schedule!r}, so the number of updates "
                "done is needed; call guidance.at_step(updates done) before each update, or guide "
                "with schedule='constant'."
            )
        if self._weight is None or self._weight.device != unscaled.device:
            self._weight = torch.full_like(unscaled.detach(), self._alpha)
        return self._weight.clone() * unscaled  # a copy: alpha may be set before the backward pass

    @property
    def unscaled(self) -> Float[Tensor, ""]:
        """Guidance loss of the last forward pass without alpha and gradient, for logs."""
        return self._pattern_losses().sum()

    @property
    def by_pattern(self) -> dict[str, float]:
        """Unscaled guidance loss of each pattern, summed over its sites.

        With the conventions of means, a head with uniform attention to n keys has 1/n, and a head
        that follows its pattern has 0.
        """
        losses = self._pattern_losses().tolist()
        return dict(zip(self._guidance_loss.labels, losses, strict=True))

    @property
    def alpha(self) -> float:
        """Current weight of the loss, alpha_t. A value set here holds until `at_step` is called."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: Number) -> None:
        check_alpha(alpha)
        self._alpha, self._alpha_is_set = float(alpha), True
        if self._weight is not None:
            self._weight.fill_(self._alpha)

    def at_step(self, step: SupportsIndex) -> None:
        """Set alpha to its value after this number of updates."""
        self.alpha = self.strength(index(step))

    def for_steps(self, steps: int) -> None:
        """Set the number of updates of the training, unless `guide` got it."""
        if not self._steps_given:
            self.strength = replace(self.strength, steps=steps)

    def log(self) -> dict[str, float]:
        """Return metrics of the last forward pass by name; raise if the loss is not finite."""
        return {"guidance_loss": check_finite(self.unscaled.item()), "guidance_alpha": self.alpha}

    @property
    def undone(self) -> bool:
        """Whether `undo` was called."""
        return not self._hooks

    def undo(self) -> None:
        """Stop guiding. A second call does nothing."""
        self._change.undo()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.__dict__.update(_no_pass())

    def __enter__(self) -> "Guidance":
        self._check_in_use()
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the last forward pass, whose tensors cannot be copied."""
        return self.__dict__ | _no_pass()

    def _begin(self, model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        _check_alone(model)
        if torch.is_grad_enabled() and not in_backward():
            self._in_forward, self._calls, self._loss = True, [], None
            self._arguments = self._inputs.of_call(args, named)

    def _record(self, site: Site, scores: Scores) -> None:
        if self._in_forward and self._calls is not None and torch.is_grad_enabled():
            self._calls.append(GuidedCall(site, scores))

    def _end(self, model: nn.Module, args: object, output: object) -> None:
        self._in_forward = False

    def _unscaled(self) -> Tensor:
        self._check_in_use()
        if self._loss is None:
            calls = self._calls_of_last_pass()
            texts = Texts(self._ids, self._real)
            with torch.enable_grad():  # a log may ask first, without gradients
                loss_P = self._guidance_loss(calls, texts)
                self._loss = loss_P.sum()
            self._calls, self._arguments = None, {}  # the graph keeps what the gradient needs
            self._store(loss_P.detach())
        return self._loss

    def _check_in_use(self) -> None:
        if self.undone:
            raise ValueError("This guidance was undone already; guide the model again.")

    def _calls_of_last_pass(self) -> list[GuidedCall]:
        """Return the guided calls of the last forward pass; raise if there are none."""
        if self._calls is None:
            raise ValueError(
                "loss() needs a forward pass of the guided model, with gradients, before it."
            )
        if self._in_forward:
            raise ValueError("The last forward pass did not end, so it has no guidance loss.")
        if not self._calls:
            find_sites(self.model)  # raises if the model was released
            raise ValueError(
                "The last forward pass computed no guided site with gradients; with gradient "
                "checkpointing use use_reentrant=False."
            )
        return self._calls

    def _pattern_losses(self) -> Tensor:
        """Return the last losses of patterns, (P,)."""
        self._unscaled()
        assert self._unscaled_P is not None
        return self._unscaled_P

    def _store(self, loss_P: Tensor) -> None:
        """Copy losses into one tensor in place, because a replayed step runs no Python."""
        held = self._unscaled_P
        if held is None or (held.device, held.dtype) != (loss_P.device, loss_P.dtype):
            held = self._unscaled_P = torch.empty_like(loss_P)
        held.copy_(loss_P)

    def _ids(self, stack: str) -> Tensor:
        ids = self._inputs.ids(self._arguments, stack)
        if ids is None:
            named = " or ".join(self._inputs.names_of(stack))
            wanted = f"give it {named}" if named else "choose patterns of positions"
            raise ValueError(
                f"Patterns of tokens need the {stack}'s token ids, but the model was called "
                f"without them; {wanted}."
            )
        return ids

    def _real(self, stack: str, shape: tuple[int, int]) -> Tensor | None:
        """Return a mask of the queries that are no padding by the model's inputs, (B, Q)."""
        mask = self._inputs.real(self._arguments, stack)
        ids = self._inputs.ids(self._arguments, stack)
        real = mask != 0 if mask is not None and mask.shape == shape else None
        if self.padding is None:
            return real
        if ids is None or ids.shape != shape:
            given = "called without them" if ids is None else f"given ids of {tuple(ids.shape)}"
            raise ValueError(
                f"padding={self.padding} needs the token of each of the {stack}'s {shape} queries, "
                f"but the model was {given}; give it them, or leave padding= out."
            )
        own = ~has_token(ids, (self.padding,))
        return own if real is None else real & own


class Inputs:
    """Arguments of a forward pass that guidance needs, found by their names."""

    def __init__(self, model: nn.Module) -> None:
        names = list(inspect.signature(model.forward).parameters)
        wanted = (*IDS, *DECODER_IDS, MASK, DECODER_MASK, LABELS)
        self.places = [(name, names.index(name) if name in names else None) for name in wanted]
        stacks = {site.queries for site in find_sites(model)}  # arguments of wrappers have no names
        self.two_stacks = any(name in names for name in DECODER_IDS) or len(stacks) > 1
        self.names = names

    def of_call(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the needed tensors of one call, by name."""
        found: dict[str, Tensor] = {}
        for name, place in self.places:
            given = named.get(name)
            if given is None and place is not None and place < len(args):
                given = args[place]
            if isinstance(given, Tensor):
                found[name] = given
        return found

    def ids(self, given: Mapping[str, Tensor], stack: str) -> Tensor | None:
        """Return the token ids of "encoder" or "decoder", (B, T)."""
        found = (given[name] for name in self._known(stack) if name in given)
        return next((ids for ids in found if ids.dim() == 2 and not ids.is_floating_point()), None)

    def names_of(self, stack: str) -> list[str]:
        """Return the argument names of these ids."""
        return [name for name in self._known(stack) if name in self.names]

    def _known(self, stack: str) -> tuple[str, ...]:
        return DECODER_IDS if self.two_stacks and stack == "decoder" else IDS

    def real(self, given: Mapping[str, Tensor], stack: str) -> Tensor | None:
        """Return the attention mask of a stack's positions, (B, T), if one was given.

        A second stack without a mask takes it from the labels, one per position. Labels of a model
        of one stack may ignore a prompt, whose positions are real.
        """
        mask = given.get(MASK)
        if self.two_stacks and stack == "decoder":
            labels = given.get(LABELS)
            mask = given.get(DECODER_MASK, None if labels is None else labels != IGNORED)
        return mask if mask is not None and mask.dim() == 2 else None


def vocabulary(model: nn.Module, stack: str) -> int | None:
    """Return the vocabulary size of "encoder" or "decoder", if the configuration has it."""
    holders: tuple[Any, ...] = (getattr(model, stack, None), model)
    configs = [holder.config for holder in holders if hasattr(holder, "config")]
    found = (getattr(c, name, None) for c in configs for name in VOCABULARY.get(stack, ()))
    return next((number for number in found if isinstance(number, int)), None)


def _no_pass() -> dict[str, Any]:
    """Return the attributes of a handle before any forward pass."""
    return {"_in_forward": False, "_calls": None, "_arguments": {}, "_loss": None}


def check_finite(loss: float) -> float:
    """Return the loss; raise if it is not a finite number."""
    if not math.isfinite(loss):
        raise NotFinite(
            f"The guidance loss is {loss}: queries or keys of the model are not finite. The "
            "training has diverged; lower the learning rate or alpha."
        )
    return loss


def _check_model(model: nn.Module) -> None:
    _check_alone(model)
    if hasattr(model, "_orig_mod") or isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"The model is inside {type(model).__name__} already; guide it before it is compiled "
            "or wrapped."
        )


def _check_alone(model: nn.Module) -> None:
    """Raise if the model has copies on several devices in one process."""
    if isinstance(model, nn.DataParallel) or getattr(model, "_is_replica", False):
        raise ValueError(
            "Guidance cannot follow a model inside DataParallel to several GPUs; start a process "
            "for each with torchrun, and wrap the guided model in DistributedDataParallel."
        )


def _by_where(
    plan: Plan | str | Mapping[str, Plan | str], where: Where | None
) -> list[tuple[Where, Plan]]:
    """Return the plans with the sites they are for."""
    if not isinstance(plan, Mapping):
        return [("encoder.*" if where is None else where, _plan_of(plan))]
    for chosen in cast("Mapping[object, object]", plan):
        if not isinstance(chosen, str):
            raise ValueError(
                f"{{where: plan}} wants names of sites like 'encoder.*' as keys, got {chosen!r}; "
                "patterns of heads are a plan, Plan({0: pattern('next')})."
            )
    if where is not None:
        raise ValueError(f"A plan for each of {', '.join(plan)} says where; leave where= out.")
    if not plan:
        raise ValueError("{where: plan} has no plan in it; say e.g. {'encoder.*': Plan(next=1)}.")
    return [(chosen, _plan_of(one)) for chosen, one in plan.items()]


def _plan_of(given: object) -> Plan:
    if isinstance(given, str):
        return Plan.parse(given)
    if not isinstance(given, Plan):
        raise ValueError(
            "A plan was wanted, Plan(next=1), Plan({0: pattern('next')}) or text like 'next=1', "
            f"got {given!r}."
        )
    return given


def _plans_by_site(
    model: nn.Module, plans: list[tuple[Where, Plan]], convention: Convention
) -> dict[str, SitePlan]:
    """Return the plan of each chosen site; sites with equal plan and heads share one object."""
    chosen: dict[str, tuple[Site, Plan]] = {}
    for where, plan in plans:
        for site in find_sites(model, where=where):
            if site.name in chosen:
                raise ValueError(f"{site.name} has two plans, the second by {where!r}.")
            _check_tokens(plan, site, known=vocabulary(model, site.keys))
            chosen[site.name] = (site, plan)
    made: dict[tuple[int, int], SitePlan] = {}
    for site, one in chosen.values():
        key = id(one), site.num_heads
        made.setdefault(key, site_plan(one, site, convention))
    return {name: made[id(one), site.num_heads] for name, (site, one) in chosen.items()}


def _check_tokens(plan: Plan, site: Site, *, known: int | None) -> None:
    """Raise if a token id is outside the vocabulary."""
    for head, aim in plan.aims.items():
        beyond = max(aim.tokens, default=0)
        if known is not None and beyond >= known:
            raise ValueError(
                f"Head {head} of {site.name} should attend to token {beyond}, but the {site.keys} "
                f"knows tokens 0 to {known - 1}; give ids of its own tokenizer."
            )
