"""GatesCallback in the Trainer of transformers, in two processes on the CPU.

    python -m tests.pruning.trainer_processes FOLDER

FOLDER gets rank 0's and rank 1's gates after some updates, and those of one process that saw the
batches of both.
"""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForSequenceClassification, Trainer

import headwise as hw
from headwise.pruning import Gates, GatesCallback, Target
from tests.alone import in_two_processes
from tests.hf.families import randomised
from tests.pruning.test_trainer import SIZES, Rows, arguments

STEPS = 6
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def train(folder: Path, name: str, *, batch: int) -> None:
    torch.manual_seed(0)
    config = BertConfig(num_attention_heads=4, **SIZES, **STILL)
    model = hw.adopt(randomised(BertForSequenceClassification(config)))
    gates = Gates(model, initial=0.5)
    gentle = {"warmup": 0.0, "initial": 0.1, "integral": 3.0, "proportional": 1.0}
    target = Target(gates, 3, steps=2 * STEPS, **gentle)
    groups = gates.parameter_groups(model, learning_rate=2.0)
    start = gates.log_alpha().detach().clone()
    settings = {
        "max_steps": STEPS,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "ddp_backend": "gloo" if torch.distributed.is_initialized() else None,
        # else it multiplies this loss by the number of processes, as if it were a part of a sum
        "average_tokens_across_devices": False,
        "lr_scheduler_type": "constant",
    }
    trainer = Trainer(
        model,
        arguments(folder / name, **settings),
        train_dataset=Rows(),
        optimizers=(torch.optim.SGD(groups, lr=0.01), None),
        callbacks=[GatesCallback(gates, target)],
    )
    trainer.train()
    noise = torch.cat([gates.of(site).noise for site in gates.sites])
    seen = {"start": start, "noise": noise, "log_alpha": gates.log_alpha().detach()}
    assert not target.settled
    save_file(seen, folder / f"{name}.safetensors")


def as_rank(folder: Path, rank: int) -> None:
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ |= {name: str(value) for name, value in ranks.items()}
    train(folder, str(rank), batch=4)
    sys.stdout.flush()


def main(folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "localhost"}
    in_two_processes(lambda rank: as_rank(folder, rank), folder / "meeting")
    train(folder, "one", batch=8)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
