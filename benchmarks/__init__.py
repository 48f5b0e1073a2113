"""How fast Headwise is, against its peers, in one run on one machine.

    python -m benchmarks                             # everything that can run here
    python -m benchmarks ops --threads 2 --repeat 5  # one of them
    python -m benchmarks ops --save                  # write benchmarks/results/ops-cpu.json
    python -m benchmarks ops --only topk,guidance    # some parts
    python -m benchmarks guided-step                 # a training step with guidance; needs a GPU
    python -m benchmarks guided-step --only usual    # without compiled steps: half a minute
    python -m benchmarks translation                 # a Transformer against Marian
    python -m benchmarks fit                         # a whole training, against the Trainer
    python -m benchmarks mlm                         # an encoder's training, against RoBERTa's
    python -m benchmarks inspect                     # all heads, against output_attentions=True
    python -m benchmarks prune                       # a pruned encoder, against Torch-Pruning

Trust the ratios more than the milliseconds: timing is interleaved and the best round counts, so
that a busy machine disturbs all of them alike. A contestant that gives wrong answers is not timed.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from rich.table import Table

SEED = 0


@dataclass(frozen=True)
class Measured:
    """What a benchmark found: rows for JSON, and the same for the eye."""

    rows: list[dict[str, Any]]
    table: Table
    wrong: int = 0  # contestants that gave wrong answers, and so have no times
    wrong_peers: int = 0  # others, that are told of apart: these are no fault of ours


class Parser(argparse.ArgumentParser):
    """Says what is in the way in one sentence, with exit code 2, as all commands do."""

    def error(self, message: str) -> NoReturn:
        """End, with this sentence."""
        print(f"headwise: {message}", file=sys.stderr)
        raise SystemExit(2)


# how often to repeat, and where -> what was found
Benchmark = Callable[[int, torch.device], Measured]


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was told: a clock read before that shows nothing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def name_of(device: torch.device) -> str:
    """For the title of a table."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{threads} CPU {'thread' if threads == 1 else 'threads'}"
