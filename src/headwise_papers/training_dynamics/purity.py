"""Section 5.2: does attention move from common words to words that tell the class?

Purity is |share of positive - share of negative| among the SST2 training sentences with a word,
occurrence their number. In each sentence the word with the largest score is attended.

    headwise reproduce training_dynamics/purity    # the models of `sst`

- "At first" is the first tenth of training without epoch 0, where all scores are equal.
- Fig. 6 is about sentences with one of the five words of the largest scores.
- A word is pure from 0.8 on; 0.9 was tried first, but "worst" has 0.85 itself.
- Seeds differ by noise alone, hence the narrow intervals.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Result, curve, draw_lines, minus, panels, share
from headwise_papers.training_dynamics._sst import SMOKE, Corpus, SstConfig, Trained, read_corpus

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = ("FC", "TC")
TOP = 5
PAPERS_TOP = {"worst", "mess", "stupid", "suffers", "solid"}  # Attn-TC, Fig. 6
PURE = 0.8
EARLY = 0.1  # share of training that is "at first"

CLAIMS = (
    *(
        claim
        for model in MODELS
        for beside, number, where in ((" beside the five", 61, "Fig. 6"), ("", 62, "Fig. 7"))
        for claim in (
            Claim.direction(f"{model} purity{beside}: end - first", number=number, where=where,
                            text="Purity of attended words rises"),
            Claim.direction(f"{model} occurrence{beside}: end - first", sign=-1, number=number,
                            where=where, text="Their occurrence drops"),
        )
    ),
    *(
        claim
        for model in MODELS
        for claim in (
            Claim.value(f"{model} purity beside the five at the end", 1.0, margin=0.1, number=61,
                        where="Fig. 6", text="Final purity"),
            Claim.value(f"{model} pure words attended beside the five, share at the end", 1.0,
                        margin=0.1, number=61, where="Fig. 6",
                        text="Pure words at the end"),
            Claim.direction(f"{model} purity at the end: all - beside the five", sign=-1,
                            number=62, where="Fig. 7", text="Final purity is lower than in Fig. 6"),
        )
    ),
    Claim.share("TC words of Fig. 6 among our five", threshold=0.9, number=61, where="Fig. 6",
                text="Attn-TC's five words"),
)  # fmt: skip


def run(config: SstConfig, out: Run) -> dict[str, Result]:
    """Measure the words that both models attend to."""
    results: dict[str, Result] = {}
    for model, training in config.trainings().items():
        trained, corpus = Trained.of(training), read_corpus(training)
        own = measures(trained, corpus)
        results |= {f"{model} {name}": result for name, result in own.items()}
        if model == "TC":
            top_SK, spelled = trained.score_SV.topk(TOP).indices, corpus.sst.vocabulary.words
            known = [[spelled[word] in PAPERS_TOP for word in top_K] for top_K in top_SK.tolist()]
            results["TC own five words among the paper's"] = Result([sum(x) / TOP for x in known])
            results["TC words of Fig. 6 among our five"] = share(known[0])
    return results


def measures(trained: Trained, corpus: Corpus) -> dict[str, Result]:
    """Return the results of one model; those beside the five words are means over the five."""
    epoch_E, word_ESN = trained.attended()
    top_SK = trained.score_SV.topk(TOP).indices
    first = max(EARLY * epoch_E[-1].item(), epoch_E[1].item())
    early_E = (epoch_E > 0) & (epoch_E <= first)
    results: dict[str, Result] = {}
    for name, measure_V in (("purity", corpus.purity_V), ("occurrence", corpus.occurrence_V)):
        x_ESN = measure_V.double()[word_ESN]
        beside_ESK = mean_beside(x_ESN, top_SK, corpus)
        for where, x_ESX in (("", x_ESN.mean(-1, keepdim=True)), (" beside the five", beside_ESK)):
            start = Result(x_ESX[early_E].mean(0).mean(-1).tolist())
            end = Result(x_ESX[-1].mean(-1).tolist())
            results |= {
                f"{name}{where} at first": start,
                f"{name}{where} at the end": end,
                f"{name}{where}: end - first": minus(end, start),
            }
    pure_1SN = (corpus.purity_V[word_ESN[-1:]] >= PURE).double()
    pure_S = mean_beside(pure_1SN, top_SK, corpus)[0].mean(-1)
    return results | {
        "purity at the end: all - beside the five": minus(
            results["purity at the end"], results["purity beside the five at the end"]
        ),
        "pure words attended beside the five, share at the end": Result(pure_S.tolist()),
    }


def mean_beside(x_ESN: Tensor, words_SK: Tensor, corpus: Corpus) -> Tensor:
    """Return (E, S, K): means over the training sentences with each of some words."""
    train = corpus.sst.train
    real_NT = torch.arange(train.tokens.shape[-1]) < train.lengths[0, :, None]
    member_SKN = torch.stack(
        [
            torch.stack([((train.tokens[0] == word) & real_NT).any(-1) for word in words_K])
            for words_K in words_SK
        ]
    ).to(x_ESN)
    share_SKN = member_SKN / member_SKN.sum(-1, keepdim=True)
    return torch.einsum("esn,skn->esk", x_ESN, share_SKN)


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 6 (sentences with each of five words) and Fig. 7 (all sentences)."""
    config = from_json(SstConfig, out.config())
    beside, rows = panels(TOP, len(MODELS), width=2.9, height=2.4)
    everywhere, (all_axes,) = panels(len(MODELS), width=3.2, height=2.7)
    for number, (model, training) in enumerate(config.trainings().items()):
        trained, corpus = Trained.of(training), read_corpus(training)
        epoch_E, word_ESN = trained.attended()
        shown_K = trained.score_SV.mean(0).topk(TOP).indices
        purity_ESN, occurrence_ESN = (
            measure_V.double()[word_ESN] for measure_V in (corpus.purity_V, corpus.occurrence_V)
        )
        both_ES = (purity_ESN.mean(-1), occurrence_ESN.mean(-1))
        draw_two(all_axes[number], epoch_E, *both_ES, title=f"Attn-{model}, all sentences")
        words_SK = shown_K.expand(training.seeds, -1)
        purity_ESK = mean_beside(purity_ESN, words_SK, corpus)
        occurrence_ESK = mean_beside(occurrence_ESN, words_SK, corpus)
        for index, (axes, word) in enumerate(zip(rows[number], shown_K.tolist(), strict=True)):
            both_ES = (purity_ESK[..., index], occurrence_ESK[..., index])
            title = f"“{corpus.sst.vocabulary.words[word]}”, Attn-{model}"
            draw_two(axes, epoch_E, *both_ES, title=title)
    return {"fig6-attended-beside-five-words": beside, "fig7-attended-in-all-sentences": everywhere}


def draw_two(
    axes: "Axes", epoch_E: Tensor, purity_ES: Tensor, occurrence_ES: Tensor, *, title: str
) -> None:
    """Draw purity in red on the left axis, occurrence in blue on the right."""
    right = axes.twinx()
    for own, name, colour, x_ES in (
        (axes, "mean purity", "tab:red", purity_ES),
        (right, "mean occurrence", "tab:blue", occurrence_ES),
    ):
        lines = {name: curve(epoch_E / 1000, x_ES)}
        draw_lines(own, lines, xlabel="thousand epochs", colours={name: colour}, legend=False)
        own.set_ylabel(name, color=colour)
        own.set_ylim(bottom=0)
    axes.set_ylim(top=1.03)
    axes.set_title(title, fontsize="small")


experiment = Experiment(SstConfig(), SMOKE, SstConfig.models, run, draw, CLAIMS)
