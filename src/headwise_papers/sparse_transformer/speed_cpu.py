"""How fast are the five ways to attend without a GPU?

Table 4 once more, as `sparse_transformer/speed` measures it and with the same rules, on a processor: a small
Transformer, few sentences, float32.

The commands:

    headwise reproduce sparse_transformer/speed-cpu           # 2 minutes on two cores
    headwise reproduce sparse_transformer/speed-cpu --smoke   # 5 seconds

No data are needed. The paper's speeds are of a GPU, so that its ratios stand beside ours without a
verdict.

What was chosen, beside what `sparse_transformer/speed` chooses: three and three layers of width 256, batches of
1,024 positions, two updates a turn, 16 sentences translated together; sentence lengths are those of
Multi30k.
"""

from headwise_papers.core.base import Expected, Experiment
from headwise_papers.sparse_transformer import speed

CORPUS = "multi30k"


def _beside(block: str) -> list[Expected]:
    """The paper's ratios."""
    return [
        Expected(
            f"{CORPUS}, {block}: {attention} over softmax, {phase}",
            None,
            f"{both[place] / speed.PAPER['softmax'][place]:.2f} on a GPU, Table 4",
        )
        for place, phase in enumerate(speed.PHASES)
        for attention, both in speed.PAPER.items()
        if attention != "softmax"
    ]


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=speed.Config(
        corpora=(CORPUS,),
        blocks=speed.BLOCKS,
        size="small",
        tokens=1024,
        steps=2,
        sentences=16,
        device="cpu",
    ),
    smoke=speed.experiment.smoke,
    reproduce=speed.reproduce,
    expected=tuple(item for block in speed.BLOCKS for item in _beside(block)),
)
