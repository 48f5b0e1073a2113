"""Batches come in order, one ahead, and errors come through."""

import threading

import pytest
import torch

from headwise.training.fit import feed, one_ahead


def test_batches_come_in_order_and_are_made_on_another_thread():
    threads = []

    def make(number):
        threads.append(threading.current_thread())
        return number * 10

    assert list(one_ahead(make, range(3, 20, 4))) == [30, 70, 110, 150, 190]
    assert threading.current_thread() not in threads and len(set(threads)) == 1
    assert list(one_ahead(make, [])) == []


def test_one_batch_and_no_more_is_made_ahead():
    made = threading.Semaphore(0)
    numbers = []

    def make(number):
        numbers.append(number)
        made.release()
        return number

    coming = one_ahead(make, range(10))
    assert next(coming) == 0
    for _ in range(2):
        assert made.acquire(timeout=10)
    assert numbers == [0, 1]
    coming.close()
    assert numbers == [0, 1]
    assert not any(thread.name.startswith("batches") for thread in threading.enumerate())


def test_what_goes_wrong_in_a_batch_is_raised_where_it_is_asked_for():
    def make(number):
        if number == 1:
            raise ValueError("no batch 1")
        return number

    coming = one_ahead(make, range(3))
    assert next(coming) == 0
    with pytest.raises(ValueError, match="no batch 1"):
        next(coming)


def test_on_a_cpu_batches_are_made_when_asked_for():
    numbers = []
    coming = feed(numbers.append, range(5), device=torch.device("cpu"))
    assert numbers == []
    next(coming)
    assert numbers == [0]


@pytest.mark.gpu
def test_for_a_gpu_batches_are_pinned():
    batch = {"ids": torch.arange(3), "there": (torch.zeros(2, device="cuda"), "name")}
    (got,) = feed(lambda number: batch, [0], device=torch.device("cuda"))
    assert got["ids"].is_pinned() and torch.equal(got["ids"], batch["ids"])
    assert got["there"] == batch["there"]
