"""Guidance as settings of a training: from text like "next=1,prev=1" to a part of its loss."""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from torch import nn

from headwise.guidance import Guidance, Plan, guide
from headwise.guidance.schedule import (
    CONSTANT_FOR,
    ConventionName,
    Schedule,
    Strength,
    convention_of,
)
from headwise.ops.named import is_positional
from headwise.sites import find_sites
from headwise.training import Summed

__all__ = ["GuideSettings", "Tokens", "check_used", "guided", "with_guidance"]

Tokens = Mapping[str, Sequence[int]]  # of the patterns "delim" and "period"

SOME: Tokens = {"delim": (0,), "period": (0,)}  # where only the form of a plan is looked at


@dataclass(frozen=True)
class GuideSettings:
    """Which heads a training guides, where to, and how much; see `headwise.guidance`."""

    plan: str = ""  # heads of each layer to guide, as `Plan.parse` reads it; "" guides none
    alpha: float = 1.0  # weight of guidance at the start
    schedule: Schedule | None = None  # how it falls; None: as the convention has it
    constant_for: int = CONSTANT_FOR  # updates before it falls, with constant_then_linear
    where: str = "encoder.*"  # pattern of the sites whose heads are guided
    convention: ConventionName = "mean"  # how that loss is counted

    def check(
        self,
        attention: Mapping[str, str],
        *,
        heads: int,
        steps: int,
        causal: Collection[str] = (),
    ) -> None:
        """Raise for what guiding would refuse, before there is a folder.

        Args:
            attention: of each site that there will be, by the site's name.
            heads: of each site.
            steps: updates of the training.
            causal: names of sites that see no later keys.
        """
        if not self.plan:
            return
        schedule = self.schedule or convention_of(self.convention).schedule
        Strength(self.alpha, schedule, steps, self.constant_for)
        plan = Plan.parse(self.plan, tokens=SOME)
        wanted = len(plan.heads)
        if wanted > heads:
            raise ValueError(
                f"guide.plan={self.plan!r} wants {wanted} heads, but a layer has {heads}."
            )
        chosen = [name for name in attention if fnmatchcase(name, self.where)]
        if not chosen:
            raise ValueError(
                f"guide.where={self.where!r} is the name of no attention here; there are "
                f"{', '.join(attention)}."
            )
        for name in chosen:
            if is_positional(attention[name]):
                raise ValueError(
                    f"guide.plan has nothing to teach heads that are hard-coded, as those of {name} are "
                    f"({attention[name]}); leave guide.plan out, or choose others with guide.where."
                )
            if name in causal and any((aim.offset or 0) > 0 for aim in plan.aims.values()):
                raise ValueError(
                    f"guide.plan={self.plan!r} wants heads that look at 'next', but {name} is causal "
                    "and sees no later keys; leave it out, or choose others with guide.where."
                )


def check_used(settings: GuideSettings, default: GuideSettings) -> None:
    """Raise if settings of guidance differ from the default while nothing is guided."""
    for field in fields(GuideSettings):
        given = getattr(settings, field.name)
        if given != getattr(default, field.name) and not settings.plan:
            raise ValueError(
                f"guide.{field.name}={given} is a setting of guidance, but no heads are guided; "
                f"say which with guide.plan, e.g. next=1,prev=1, or leave {field.name} out."
            )


@contextmanager
def guided(
    model: nn.Module,
    settings: GuideSettings,
    *,
    steps: int,
    tokens: Mapping[str, Tokens],
    padding: int | None = None,
) -> Generator[Guidance | None]:
    """Guide a model inside a `with` block, as `headwise.guide` does; gives None without a plan.

    Args:
        model: anything with sites.
        settings: which heads, where to and how much.
        steps: updates of the training.
        tokens: those of the patterns, in the text of each stack, "encoder" or "decoder".
        padding: the token of positions that do not count.
    """
    if not settings.plan:
        yield None
        return
    sites = find_sites(model, where=settings.where)
    by_stack = {keys: _plan(settings, tokens[keys]) for keys in {site.keys for site in sites}}
    with guide(
        model,
        {site.name: by_stack[site.keys] for site in sites},
        alpha=settings.alpha,
        steps=steps,
        schedule=settings.schedule,
        constant_for=settings.constant_for,
        convention=settings.convention,
        padding=padding,
    ) as guidance:
        yield guidance


def _plan(settings: GuideSettings, tokens: Tokens) -> Plan:
    """Raises where a text has no such token: a plan without it would be another."""
    wanted = {aim.name for aim in Plan.parse(settings.plan, tokens=SOME).aims.values()}
    for name, numbers in tokens.items():
        if not numbers and name in wanted:
            raise ValueError(
                f"guide.plan={settings.plan!r} wants heads that look at {name!r}, but no piece of the "
                "text is one; leave it out."
            )
    return Plan.parse(settings.plan, tokens=tokens)


def with_guidance(value: Summed, guidance: Guidance | None) -> Summed:
    """A batch's loss and that of guidance, which is added to its mean: batches weigh by words."""
    if guidance is None:
        return value
    return Summed(value.total + value.number * guidance.loss(), value.number)
