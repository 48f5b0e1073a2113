"""Pictures of training_dynamics/transformer."""

from collections.abc import Mapping

import torch
from matplotlib.axes import Axes
from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.measures.sen import theoretical_norm
from headwise_papers.training_dynamics._first_layer import Words
from headwise_papers.training_dynamics._plots import draw_band, panels, save
from headwise_papers.training_dynamics._ranks import rank_correlation

__all__ = ["draw_correlations", "draw_curves", "draw_heads"]

SHOWN = 12  # pure words with a curve of their own, and as many mixed ones
PURE, MIXED = "tab:red", "tab:blue"
Curves = Mapping[str, Mapping[str, Tensor]]  # by variant, then as `centred` names them, seeds first


def draw_curves(curves: Curves, words: Words, names: list[str], run: Run, *, chosen: int) -> None:
    """Change of the value against growth of the score, through training, seed 0, mean of heads."""
    figure, (axes,) = panels(len(curves), width=4.4, height=3.8)
    pure, mixed = words.by_purity(chosen)
    for axis, (variant, curve) in zip(axes, curves.items(), strict=True):
        score_EW, change_EW = curve["score"][0].mean(1), curve["value change"][0].mean(1)
        for group, colour, label in ((pure, PURE, "pure words"), (mixed, MIXED, "mixed words")):
            common = group[words.occurrence_W[group].argsort(descending=True)][:SHOWN].tolist()
            for number, word in enumerate(common):
                axis.plot(
                    score_EW[:, word].tolist(),
                    change_EW[:, word].tolist(),
                    color=colour,
                    alpha=0.7,
                    linewidth=1,
                    label=label if number == 0 else None,
                )
                if number < 5:
                    end = (score_EW[-1, word].item(), change_EW[-1, word].item())
                    axis.annotate(names[word], end, fontsize=7, color=colour)
        _draw_theory(axis, score_EW.max().item(), words.m)
        axis.set(xlabel="growth of the score", ylabel="change of the value", title=variant)
    axes[0].legend(fontsize="small")
    save(figure, run, "sen-curves")


def draw_heads(curves: Curves, words: Words, run: Run) -> None:
    """Every word at the end of training, seed 0: a row a variant, a column a head."""
    heads = next(iter(curves.values()))["score"].shape[2]
    figure, axes = panels(heads, len(curves), width=2.8, height=2.5)
    for row, (variant, curve) in zip(axes, curves.items(), strict=True):
        score_HW, change_HW = curve["score"][0, -1], curve["value change"][0, -1]
        for head, axis in enumerate(row):
            axis.scatter(
                score_HW[head].tolist(),
                change_HW[head].tolist(),
                c=words.purity_W.tolist(),
                s=5,
                cmap="coolwarm",
                vmin=0,
                vmax=1,
            )
            rho = rank_correlation(score_HW[head], change_HW[head]).item()
            _draw_theory(axis, score_HW[head].max().item(), words.m)
            axis.set_ylim(0, 1.1 * change_HW[head].max().item())
            axis.set_title(f"head {head}, rank correlation {rho:.2f}", fontsize=9)
        row[0].set_ylabel(f"{variant}\nchange of the value", fontsize=9)
        figure.colorbar(row[-1].collections[0], ax=row[-1], label="purity")
    for axis in axes[-1]:
        axis.set_xlabel("growth of the score")
    save(figure, run, "sen-heads")


def draw_correlations(curves: Curves, words: Words, run: Run, *, chosen: int) -> None:
    """The rank correlation over words through training, mean of heads, with intervals."""
    figure, (axes,) = panels(len(curves), width=3.8, height=3.0)
    pure, _ = words.by_purity(chosen)
    every = torch.arange(len(words.numbers_W))
    for axis, (variant, curve) in zip(axes, curves.items(), strict=True):
        score_SEHW, change_SEHW = curve["score"][:, 1:], curve["value change"][:, 1:]
        epoch_E = (1 + torch.arange(score_SEHW.shape[1]).double()) / 2
        for group, colour, label in ((every, "k", "all words"), (pure, PURE, "pure words")):
            rho_SEH = rank_correlation(score_SEHW[..., group], change_SEHW[..., group])
            draw_band(axis, epoch_E, rho_SEH.mean(-1).T, label=label, colour=colour)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set(xlabel="epoch", title=variant, ylim=(-1, 1))
    axes[0].set_ylabel("rank correlation")
    axes[0].legend(fontsize="small")
    save(figure, run, "correlations")


def _draw_theory(axis: Axes, farthest: float, m: float) -> None:
    reach = torch.linspace(0, max(farthest, 0.1), 200, dtype=torch.float64)
    axis.plot(reach.tolist(), theoretical_norm(reach, m).tolist(), "k--", lw=1, label="Eq. 10")
