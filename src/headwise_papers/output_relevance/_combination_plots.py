"""Pictures of which combinations of heads fail: `output_relevance/multihead`."""

from collections.abc import Sequence

import torch

from headwise.recording.run import Run
from headwise_papers.core.base import Estimate
from headwise_papers.output_relevance._combining import Outcome, fails
from headwise_papers.output_relevance._plots import panels, save

BAD_ONLY, WITH_GOOD = "bad heads only", "one good head or more"


def draw_sizes(outcomes: Sequence[Outcome], run: Run) -> None:
    """Failure against the number of heads, with 95 % intervals over combinations."""
    figure, ((axis,),) = panels(1, width=5.5, height=3.6)
    most = max(x.good + x.bad for x in outcomes)
    kinds = ((BAD_ONLY, False, "tab:red"), (WITH_GOOD, True, "tab:blue"))
    for label, with_good, colour in kinds:
        for_sizes = [
            (size, Estimate.of(fails(some)))
            for size in range(1, most + 1)
            if (some := [x for x in outcomes
                         if x.good + x.bad == size and bool(x.good) == with_good])
        ]  # fmt: skip
        sizes, shares = [size for size, _ in for_sizes], [x for _, x in for_sizes]
        means = [x.mean for x in shares]
        errors = [[x.mean - x.low for x in shares], [x.high - x.mean for x in shares]]
        axis.errorbar(sizes, means, yerr=errors, color=colour, label=label, marker="o", capsize=3)
    axis.set(xlabel="heads", ylabel="share of combinations that fail", ylim=(-0.03, 1.03))
    axis.set_xticks(range(1, most + 1))
    axis.legend(frameon=False, fontsize=8)
    save(figure, run, "sizes")


def draw_grid(outcomes: Sequence[Outcome], run: Run) -> None:
    """Failure by how many good and how many bad heads there are."""
    figure, ((axis,),) = panels(1, width=5.0, height=4.2)
    most_good, most_bad = max(x.good for x in outcomes), max(x.bad for x in outcomes)
    share = torch.full((most_good + 1, most_bad + 1), torch.nan)
    for good in range(most_good + 1):
        for bad in range(most_bad + 1):
            some = fails([x for x in outcomes if (x.good, x.bad) == (good, bad)])
            if some:
                share[good, bad] = sum(some) / len(some)
                shown = f"{sum(some):.0f}/{len(some)}"
                dark = "white" if share[good, bad] > 0.6 else "black"
                axis.text(bad, good, shown, ha="center", va="center", fontsize=8, color=dark)
    image = axis.imshow(share.numpy(), vmin=0, vmax=1, cmap="Reds", origin="lower", aspect="auto")
    axis.set(xlabel="bad heads", ylabel="good heads")
    axis.set_xticks(range(most_bad + 1))
    axis.set_yticks(range(most_good + 1))
    figure.colorbar(image, label="share of combinations that fail")
    save(figure, run, "grid")
