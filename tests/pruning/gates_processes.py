"""Gates in two processes on the CPU, as DistributedDataParallel trains them.

    python -m tests.pruning.gates_processes FOLDER

FOLDER gets rank 0's and rank 1's draws and gates after each update, and those of one process that
saw both halves of every batch.
"""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from headwise.pruning import Gates, Target
from tests.alone import in_two_processes
from tests.support.small_transformer import SmallConfig, SmallTransformer

UPDATES = 6


def batch(update: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(update)
    source = torch.randint(9, (4, 5), generator=generator)
    return source, torch.full((4,), 5), torch.randint(9, (4, 3), generator=generator)


def train(path: Path, *, rank: int | None) -> None:
    torch.manual_seed(0)
    model = SmallTransformer(SmallConfig(encoder_layers=1)).train()
    gates = Gates(model, initial=0.5)
    target = Target(gates, 6, steps=UPDATES, warmup=0.0, initial=0.1, settle=0.9)
    called = model if rank is None else nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(gates.parameter_groups(model, learning_rate=0.5), lr=0.01)
    torch.manual_seed(rank or 0)  # as dropout would have it, and gates must not care
    seen: dict[str, Tensor] = {}
    for update in range(UPDATES):
        target.step()
        rows = slice(None) if rank is None else slice(2 * rank, 2 * rank + 2)
        scores = called(*(tensor[rows] for tensor in batch(update)))
        seen[f"draw.{update}"] = torch.cat([gates.of(site)().detach() for site in gates.sites])
        optimizer.zero_grad()
        (scores.square().mean() + target.loss()).backward()
        optimizer.step()
        seen[f"log_alpha.{update}"] = gates.log_alpha().detach()
    save_file(seen, path)


def main(folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "localhost"}
    train(folder / "one.safetensors", rank=None)
    in_two_processes(
        lambda rank: train(folder / f"{rank}.safetensors", rank=rank), folder / "meeting"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
