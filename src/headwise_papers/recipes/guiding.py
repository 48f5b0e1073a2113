"""Guidance of a training by settings, such as plan="next=1,prev=1"."""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from torch import nn

from headwise.guidance import (
    CONSTANT_FOR,
    ConventionName,
    Guidance,
    Plan,
    Schedule,
    Strength,
    convention_of,
    guide,
)
from headwise.sites import find_sites
from headwise.training import Summed
from headwise_papers.ops.named import is_positional

Tokens = Mapping[str, Sequence[int]]  # ids of the patterns "delim" and "period"

ANY: Tokens = {"delim": (0,), "period": (0,)}  # where only the form of a plan is checked


@dataclass(frozen=True)
class GuideSettings:
    """Settings of guidance: heads, patterns and weight; see `headwise.guidance`."""

    plan: str = ""  # heads of each layer to guide, as `Plan.parse` reads it; "" guides none
    alpha: float = 1.0  # weight of guidance at the start
    schedule: Schedule | None = None  # how the weight falls; None: that of the convention
    constant_for: int = CONSTANT_FOR  # updates before it falls, with constant_then_linear
    where: str = "encoder.*"  # pattern of the sites whose heads are guided
    convention: ConventionName = "mean"  # how the loss is normalised

    def check(
        self,
        attention: Mapping[str, str],
        *,
        heads: int,
        steps: int,
        causal: Collection[str] = (),
    ) -> None:
        """Raise for settings that guiding would refuse, before a run folder is created.

        Args:
            attention: attention of each site of the model, by the site's name.
            heads: number of heads of each site.
            steps: updates of the training.
            causal: names of the causal sites.
        """
        if not self.plan:
            return
        schedule = self.schedule or convention_of(self.convention).schedule
        Strength(self.alpha, schedule, steps, self.constant_for)
        plan = Plan.parse(self.plan, tokens=ANY)
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
                    f"guide.plan cannot guide heads that are hard-coded, as those of {name} are "
                    f"({attention[name]}); leave guide.plan out, or choose others with guide.where."
                )
            if name in causal and any((aim.offset or 0) > 0 for aim in plan.aims.values()):
                raise ValueError(
                    f"guide.plan={self.plan!r} wants heads that attend to 'next', but {name} is "
                    "causal; leave it out, or choose other sites with guide.where."
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
    """Guide a model inside a `with` block, as `headwise.guide` does; yield None without a plan.

    Args:
        model: a model with sites.
        settings: heads, patterns and weight.
        steps: updates of the training.
        tokens: tokens of the patterns, by stack, "encoder" or "decoder".
        padding: the padding token, whose positions do not count.
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
    """Parse the plan; raise if it needs a token that the vocabulary does not have."""
    wanted = {aim.name for aim in Plan.parse(settings.plan, tokens=ANY).aims.values()}
    for name, numbers in tokens.items():
        if not numbers and name in wanted:
            raise ValueError(
                f"guide.plan={settings.plan!r} wants heads that attend to {name!r}, but no token "
                "of the vocabulary is one; leave it out."
            )
    return Plan.parse(settings.plan, tokens=tokens)


def with_guidance(value: Summed, guidance: Guidance | None) -> Summed:
    """Add the guidance loss to the mean loss of a batch; batches are weighted by words."""
    if guidance is None:
        return value
    return Summed(value.total + value.number * guidance.loss(), value.number)
