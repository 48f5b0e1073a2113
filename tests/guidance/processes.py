"""Guidance in two processes on the CPU, as DistributedDataParallel trains.

    python -m tests.guidance.processes FOLDER

FOLDER gets the weights after the updates of rank 0, of rank 1, and of one process that saw both
halves of every batch.
"""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed, nn

import headwise as hw
from headwise.guidance import Plan
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
    children: list[int] = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            meeting = f"file://{folder / 'meeting'}"
            distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
            train(folder / f"{rank}.safetensors", rank=rank)
            distributed.destroy_process_group()
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
