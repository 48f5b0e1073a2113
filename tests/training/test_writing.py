"""Writing beside a training: in order, one behind, and failures are heard of."""

import threading

import pytest
import torch

from headwise.training.checkpoint import Writer, on_cpu


def test_a_gpu_does_not_wait_and_files_come_in_order():
    write, may_go, done = Writer(torch.device("cuda")), threading.Event(), []
    write(lambda: (may_go.wait(), done.append("first")))
    assert not done  # it is on its way
    may_go.set()
    write(lambda: done.append("second"))
    assert done[0] == "first"
    write.wait()
    assert done == ["first", "second"]


def test_a_failed_piece_raises_at_the_next_one():
    write = Writer(torch.device("cuda"))

    def full():
        raise OSError("No space left on device")

    write(full)
    with pytest.raises(OSError, match="No space left"):
        write.wait()
    write.wait()


def test_on_a_cpu_writing_is_done_at_once():
    done = []
    Writer(torch.device("cpu"))(lambda: done.append(1))
    assert done == [1]
    weight = torch.ones(2)
    assert on_cpu({"weight": weight})["weight"] is weight
