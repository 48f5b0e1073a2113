"""guide: let heads of a model in training look where they are told (Deshpande & Narasimhan, 2020).

loss  ->  loss + alpha_t * sum over sites of the distance of guided heads from their patterns
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from operator import index
from types import TracebackType
from typing import Any, SupportsIndex, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.guidance.counting import holding
from headwise.guidance.inputs import Inputs, vocabulary
from headwise.guidance.measuring import Measure, Noted, SitePlan, Texts, site_plan
from headwise.guidance.patterns import check_token
from headwise.guidance.plan import Plan
from headwise.guidance.schedule import (
    CONSTANT_FOR,
    Convention,
    ConventionName,
    Schedule,
    Strength,
    check_alpha,
    convention_of,
)
from headwise.ops._impl import Number
from headwise.ops.scores import Scores
from headwise.sites import Site, Where, find_sites, in_backward, tapped


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

    Attention stays with its backend; the loss is computed beside it from q and k, from weights
    before dropout, and without the matrix. Guide a model before it is compiled or wrapped.

    Args:
        model: anything with sites; a Hugging Face model must be adopted before.
        plan: which head gets which pattern, at all chosen sites; or `{where: plan}`, for plans of
            their own in layers or stacks. A text like "next=1,prev=1" is read by `Plan.parse`.
        alpha: the weight of the loss at the start. The paper has 10 for 12 and 16 layers and 100
            for 8, which belong to the conventions "mean" and "reference_code" and to texts of 512
            tokens: their loss falls as 1/n, so with n tokens start from 10 n / 512, and not so
            high that alpha times that loss exceeds the model's own at the first update. With small
            updates 10 was too weak and 30 right: look at `by_pattern`.
        steps: updates of the whole training, at the end of which alpha is 0. `GuidanceCallback`
            fills it in.
        schedule: "linear" to 0, "constant_then_linear" or "constant"; unless given, the
            convention's.
        constant_for: updates before alpha begins to fall with "constant_then_linear".
        where: the sites of one plan, e.g. "decoder.*.self" or "*.cross"; "encoder.*" unless given.
        convention: how the loss is counted, see `CONVENTIONS`. "mean": patterns as in the paper,
            and for each pattern of a site the mean over texts, heads, queries and keys they see.
            "paper": the sum over queries and keys of a text and over heads. "reference_code": as
            "mean", but targets are 1 at every aimed key and rows without one have the target 0,
            and alpha is constant for 20,000 updates.
        padding: positions with this token do not count as queries; for padding that neither an
            attention mask nor lengths tell of.
    """
    _check_model(model)
    if padding is not None:
        check_token("padding", padding)
    counted = convention_of(convention)
    plans = _plans_by_site(model, _by_place(plan, where), counted)
    strength = Strength(float(alpha), schedule or counted.schedule, steps, constant_for)
    return Guidance(model, plans, counted, strength, padding=padding)


class Guidance:
    """The handle of `guide`: gives the loss of the model's last forward pass.

    It belongs to the last forward pass that was made with gradients, also where gradients of
    several batches are accumulated: add `loss()` to each batch's own loss. In forward passes
    without gradients nothing is kept and nothing computed.
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
        self._told = not strength.falls  # what alpha is by now
        self._steps_given = strength.steps is not None
        # alpha_t where a recorded CUDA graph reads it, and the last losses of patterns where it
        # writes them; both are made by the first step, which is never recorded
        self._weight: Tensor | None = None
        self._unscaled_P: Tensor | None = None
        self._inputs, self._measure = Inputs(model), Measure(plans, convention)
        self._open = False  # while the model computes
        self._noted: list[tuple[Site, Scores]] | None = None  # of the last forward pass
        self._caught: dict[str, Tensor] = {}
        self._loss: Tensor | None = None
        self._change = tapped(model, self._note, where=lambda site: site.name in plans)
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end),
        ]

    def loss(self) -> Float[Tensor, ""]:
        """alpha_t times the guidance loss of the last forward pass, to add to the training loss."""
        measured = self._measured()
        if not self._told:
            raise ValueError(
                f"alpha falls by the schedule {self.strength.schedule!r}, but nothing said how far "
                "the training is; call guidance.at_step(updates done) before each update, or guide "
                "with schedule='constant'."
            )
        if self._weight is None or self._weight.device != measured.device:
            self._weight = torch.full_like(measured.detach(), self._alpha)
        return self._weight.clone() * measured  # a copy: alpha may be set before the backward pass

    @property
    def unscaled(self) -> Float[Tensor, ""]:
        """The guidance loss of the last forward pass without alpha and gradient, for logs."""
        return self._parts().sum()

    @property
    def by_pattern(self) -> dict[str, float]:
        """The same of each pattern, by its name: which of them heads follow by now.

        With the conventions of means a head that looks everywhere alike among n keys has 1/n, and
        one that follows its pattern 0; each pattern has the sum over its sites.
        """
        return dict(zip(self._measure.labels, self._parts().tolist(), strict=True))

    @property
    def alpha(self) -> float:
        """The weight of the loss by now, alpha_t. It can be set, until `at_step` is called."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: Number) -> None:
        check_alpha(alpha)
        self._alpha, self._told = float(alpha), True
        if self._weight is not None:
            self._weight.fill_(self._alpha)

    def at_step(self, step: SupportsIndex) -> None:
        """Set alpha to what it is after so many updates."""
        self.alpha = self.strength(index(step))

    def for_steps(self, steps: int) -> None:
        """Say how many updates the next training has, unless `guide` was told."""
        if not self._steps_given:
            self.strength = replace(self.strength, steps=steps)

    def log(self) -> dict[str, float]:
        """The figures of the last forward pass by name; raises if the loss is no finite number."""
        return {"guidance_loss": finite(self.unscaled.item()), "guidance_alpha": self.alpha}

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
        self._open, self._noted, self._caught, self._loss = False, None, {}, None

    def __enter__(self) -> "Guidance":
        self._check_in_use()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()

    def __getstate__(self) -> dict[str, Any]:
        """Without what a forward pass left: tensors with a history cannot be copied."""
        left = {"_open": False, "_noted": None, "_caught": {}, "_loss": None}
        return {**self.__dict__, **left}

    def _begin(self, model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        _check_alone(model)
        if torch.is_grad_enabled() and not in_backward():
            self._open, self._noted, self._loss = True, [], None
            self._caught = self._inputs.caught(args, named)

    def _note(self, site: Site, scores: Scores) -> None:
        if self._open and self._noted is not None and torch.is_grad_enabled():
            self._noted.append((site, scores))

    def _end(self, model: nn.Module, args: object, output: object) -> None:
        self._open = False

    def _measured(self) -> Tensor:
        self._check_in_use()
        if self._loss is None:
            noted = self._noted_by_now()
            texts = Texts(self._ids, self._real)
            with torch.enable_grad():  # whoever asks first, and be it for a log
                loss_P = self._measure([Noted(*call) for call in noted], texts)
                self._loss = loss_P.sum()
            self._noted, self._caught = None, {}  # the graph keeps what the gradient needs
            self._write_down(loss_P.detach())
        return self._loss

    def _check_in_use(self) -> None:
        if self.undone:
            raise ValueError("This guidance was undone already; guide the model again.")

    def _noted_by_now(self) -> list[tuple[Site, Scores]]:
        """What the last forward pass left; raises if that is nothing, or not all."""
        if self._noted is None:
            raise ValueError(
                "loss() needs a forward pass of the guided model, with gradients, before it."
            )
        if self._open:
            raise ValueError("The last forward pass did not end, so it has no guidance loss.")
        if not self._noted:
            find_sites(self.model)  # says so if a host no longer calls them
            raise ValueError(
                "The last forward pass computed no guided site with gradients; with gradient "
                "checkpointing use use_reentrant=False."
            )
        return self._noted

    def _parts(self) -> Tensor:
        """The last losses of patterns, (P,)."""
        self._measured()
        assert self._unscaled_P is not None
        return self._unscaled_P

    def _write_down(self, loss_P: Tensor) -> None:
        """In place: a step that is replayed runs no Python, and shares its memory with others."""
        held = self._unscaled_P
        if held is None or (held.device, held.dtype) != (loss_P.device, loss_P.dtype):
            held = self._unscaled_P = torch.empty_like(loss_P)
        held.copy_(loss_P)

    def _ids(self, stack: str) -> Tensor:
        ids = self._inputs.ids(self._caught, stack)
        if ids is None:
            named = " or ".join(self._inputs.names_of(stack))
            wanted = f"give it {named}" if named else "choose patterns of positions"
            raise ValueError(
                f"Patterns of tokens need the {stack}'s token ids, but the model was called "
                f"without them; {wanted}."
            )
        return ids

    def _real(self, stack: str, shape: tuple[int, int]) -> Tensor | None:
        """Which queries count by the model's inputs, (B, Q)."""
        mask, ids = (find(self._caught, stack) for find in (self._inputs.real, self._inputs.ids))
        real = mask != 0 if mask is not None and mask.shape == shape else None
        if self.padding is None:
            return real
        if ids is None or ids.shape != shape:
            given = "called without them" if ids is None else f"given ids of {tuple(ids.shape)}"
            raise ValueError(
                f"padding={self.padding} needs the token of each of the {stack}'s {shape} queries, "
                f"but the model was {given}; give it them, or leave padding= out."
            )
        own = ~holding(ids, (self.padding,))
        return own if real is None else real & own


def finite(figure: float) -> float:
    """The same, if it is a number."""
    if not math.isfinite(figure):
        raise ValueError(
            f"The guidance loss is {figure}: queries or keys of the model are not finite. The "
            "training has diverged; lower the learning rate or alpha."
        )
    return figure


def _check_model(model: nn.Module) -> None:
    _check_alone(model)
    if hasattr(model, "_orig_mod") or isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"The model is inside {type(model).__name__} already; guide it before it is compiled "
            "or wrapped."
        )


def _check_alone(model: nn.Module) -> None:
    """Refuse a model of which several devices have copies in one process, before and after."""
    if isinstance(model, nn.DataParallel) or getattr(model, "_is_replica", False):
        raise ValueError(
            "Guidance cannot follow a model inside DataParallel to several GPUs; start a process "
            "for each with torchrun, and wrap the guided model in DistributedDataParallel."
        )


def _by_place(
    plan: Plan | str | Mapping[str, Plan | str], where: Where | None
) -> list[tuple[Where, Plan]]:
    """Which plan is for which sites."""
    if not isinstance(plan, Mapping):
        return [("encoder.*" if where is None else where, _plan_of(plan))]
    for place in cast("Mapping[object, object]", plan):
        if not isinstance(place, str):
            raise ValueError(
                f"{{where: plan}} says where by names of sites like 'encoder.*', got {place!r}; "
                "patterns of heads are a plan, Plan({0: pattern('next')})."
            )
    if where is not None:
        raise ValueError(f"A plan for each of {', '.join(plan)} says where; leave where= out.")
    if not plan:
        raise ValueError("{where: plan} has no plan in it; say e.g. {'encoder.*': Plan(next=1)}.")
    return [(place, _plan_of(one)) for place, one in plan.items()]


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
    model: nn.Module, places: list[tuple[Where, Plan]], convention: Convention
) -> dict[str, SitePlan]:
    """Each chosen site's plan; sites with as many heads and one plan share it."""
    chosen: dict[str, tuple[Site, Plan]] = {}
    for where, plan in places:
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
    """Refuse tokens that no text can hold, as the model does not know them."""
    for head, aim in plan.aims.items():
        beyond = max(aim.tokens, default=0)
        if known is not None and beyond >= known:
            raise ValueError(
                f"Head {head} of {site.name} is to look at token {beyond}, but the {site.keys} "
                f"knows tokens 0 to {known - 1}; give numbers of its own tokenizer."
            )
