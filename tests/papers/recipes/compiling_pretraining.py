"""The loss of pre-training is one compiled graph, guided or not, and the same as without compiling.

    python -m tests.papers.recipes.compiling_pretraining FOLDER

Runs in a process of its own, as what checks shapes in tests cannot be compiled.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch._dynamo.utils import counters

from headwise_papers.recipes.pretraining import PretrainingConfig, pretrain
from tests.papers.recipes.configured import configured

TASKS = {"mlm": {}, "pairs": {"next_sentence": True}, "electra": {"objective": "electra"}}
ARMS = {"plain": "", "guided": "next=1,prev=1"}
STEPS = 3


def main(folder: Path) -> None:
    text = folder / "text.txt"
    text.write_text("".join(f"ann saw bob and {n % 7} ran .\n\n" for n in range(300)))
    # the backend that needs no compiler, where the whole loss must be one graph
    torch.compile = partial(torch.compile, backend="aot_eager", fullgraph=True)
    torch._dynamo.config.error_on_recompile = True
    for task, changes in TASKS.items():
        for arm, guide in ARMS.items():
            torch.compiler.reset()
            counters.clear()
            plain, compiled = (
                losses(folder / f"{task}-{arm}-{compile}", text, changes, guide, compile=compile)
                for compile in (False, True)
            )
            assert counters["stats"]["unique_graphs"] == 1, (task, arm, counters)
            assert len(plain) > STEPS + 2
            torch.testing.assert_close(torch.tensor(compiled), torch.tensor(plain))


def losses(
    folder: Path, text: Path, changes: dict[str, object], guide: str, *, compile: bool
) -> list[float]:
    """On the validation part after every step, and of the training with its gradient."""
    config = configured(
        PretrainingConfig,
        corpus="file",
        file=str(text),
        vocab_size=280,
        width=64,
        heads=4,
        feed_forward=128,
        layers=2,
        max_length=24,
        batch_size=4,
        steps=STEPS,
        warmup=1,
        dropout=0.0,  # a compiled model drops others
        attention_dropout=0.0,
        evaluate_every=1,
        checkpoint_every=STEPS,
        plan=guide,
        compile=compile,
        **changes,
    )
    rows = pretrain(config, folder).metrics()
    every = [item for row in rows for item in row.items()]
    return [value for name, value in every if name.endswith("loss") or name == "gradient_norm"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
