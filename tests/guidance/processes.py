"""Guidance in two processes on the CPU, as DistributedDataParallel trains.

    python -m tests.guidance.processes FOLDER

FOLDER gets the weights after the updates of rank 0, of rank 1, and of one process that saw both
halves of every batch.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import headwise as hw
from headwise.guidance import Plan
from tests.alone import in_two_processes
from tests.guidance.toy import Toy

PLAN = Plan(next=1, prev=1, first=1, period=1, tokens={"period": (3, 4)})
UPDATES = 3


def train(path: Path, *, rank: int | None) -> None:
    torch.manual_seed(0)
    model = Toy()
    guidance = hw.guide(model, PLAN, steps=UPDATES)
    called = model if rank is None else nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for update in range(UPDATES):
        ids = torch.randint(1, 8, (4, 5), generator=torch.Generator().manual_seed(update))
        guidance.at_step(update)
        own = called(ids if rank is None else ids[2 * rank : 2 * rank + 2]).square().mean()
        optimizer.zero_grad()
        (own + guidance.loss()).backward()
        optimizer.step()
    save_file(model.state_dict(), path)


def main(folder: Path) -> None:
    train(folder / "one.safetensors", rank=None)
    in_two_processes(
        lambda rank: train(folder / f"{rank}.safetensors", rank=rank), folder / "meeting"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
