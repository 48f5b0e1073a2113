"""Timing contestants in turns, so that whatever disturbs the machine disturbs all of them alike."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks import wait_for
from benchmarks.judging import Attend

FLUSHED_BYTES = 2**28  # more than any cache holds
CYCLES_A_MS = 2_000_000  # of a GPU's clock; it only sets how long the device sleeps
LONGEST_SLEEP = 12.0  # ms; a call that waits for the device itself gains nothing from sleep
LEAST_TURNS = 2
SLOW_SECONDS = 0.4  # after so much of its own time a contestant gets no more turns

Play = Callable[[], object]


class Time(NamedTuple):
    """What one contestant needed, in milliseconds."""

    ms: float  # median, on the device
    host_ms: float  # median, until the call came back: what launching costs
    turns: int


def take_turns(plays: Mapping[str, Play], device: torch.device, *, repeat: int) -> dict[str, Time]:
    """Median times. On a GPU caches are flushed before each call, and the device is kept asleep
    until the call is queued, so that its time is that of the kernels and not of launching them.
    """
    clock = _gpu_clock if device.type == "cuda" else _cpu_clock
    scratch = _scratch(device)
    hosts = {name: _warm_up(play, device) for name, play in plays.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in plays}
    for _ in range(repeat):
        for name, play in plays.items():
            done = times[name]
            if len(done) < LEAST_TURNS or sum(ms for ms, _ in done) < 1000 * SLOW_SECONDS:
                done.append(clock(play, scratch, hosts[name]))
                hosts[name] = max(hosts[name], done[-1][1])
    return {
        name: Time(median(ms for ms, _ in done), median(host for _, host in done), len(done))
        for name, done in times.items()
    }


def forward_play(attend: Attend, inputs: Sequence[Tensor]) -> Play:
    """The forward pass alone, nothing kept for a backward pass."""

    def play() -> object:
        with torch.no_grad():
            return attend(*inputs)

    return play


def backward_play(attend: Attend, inputs: Sequence[Tensor], leaves: int, through: int) -> Play:
    """Forward and backward, from the first outputs to the first inputs."""
    given = [x.detach().requires_grad_(at < leaves) for at, x in enumerate(inputs)]
    with torch.no_grad():
        upstream = [torch.randn_like(out) for out in attend(*inputs)[:through]]

    def play() -> object:
        return torch.autograd.grad(attend(*given)[:through], given[:leaves], upstream)

    return play


def _scratch(device: torch.device) -> Tensor:
    size = FLUSHED_BYTES if device.type == "cuda" else 0
    return torch.empty(size, dtype=torch.uint8, device=device)


def _warm_up(play: Play, device: torch.device) -> float:
    """How long a call takes to come back, in milliseconds, once it is compiled."""
    play()
    wait_for(device)
    start = time.perf_counter()
    play()
    host = 1000 * (time.perf_counter() - start)
    wait_for(device)
    return host


def _gpu_clock(play: Play, scratch: Tensor, host_ms: float) -> tuple[float, float]:
    scratch.zero_()
    torch.cuda._sleep(int(CYCLES_A_MS * min(LONGEST_SLEEP, 0.1 + 1.5 * host_ms)))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    start = time.perf_counter()
    play()
    host = 1000 * (time.perf_counter() - start)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end), host


def _cpu_clock(play: Play, scratch: Tensor, host_ms: float) -> tuple[float, float]:
    start = time.perf_counter()
    play()
    host = 1000 * (time.perf_counter() - start)
    return host, host
