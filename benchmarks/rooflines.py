"""The least time kernels can take on an H200, estimated by counting what they do.

    python -m benchmarks.rooflines

Estimates, not measurements. A kernel does so much for every score, so much for every query
whatever the number of keys, and moves so many bytes. "Overlapped" lets every unit of the device
work at the same time, so the busiest decides; "in turn" lets one work after the other. Kernels
follow one another. 16,384 tokens, 16 heads of width 64, bfloat16.
"""

from typing import NamedTuple

from rich.console import Console
from rich.table import Table

CLOCKS = 132 * 1.75e9  # of all multiprocessors together, a second
RATES = {  # a clock and multiprocessor
    "products": 4096 / 128,  # of scores, each 2 * 64 operations of the tensor cores
    "exponentials": 16,
    "logic": 64,  # compare, min, max, select, bits, conversions
    "arithmetic": 128,
    "issue": 128,  # instructions of any of the last three kinds
}
CACHE, MEMORY = 5.5e12, 4.3e12  # bytes a second of the second-level cache, and of memory
QUERIES = 16384 * 16
LENGTHS = (512, 2048, 4096, 16384)


class Work(NamedTuple):
    """What a kernel does, for every score or for every query."""

    products: float = 0
    exponentials: float = 0
    logic: float = 0
    arithmetic: float = 0

    def clocks(self) -> tuple[float, float]:
        """Of a multiprocessor: overlapped and in turn."""
        instructions = self.exponentials + self.logic + self.arithmetic
        units = [amount / RATES[name] for name, amount in self._asdict().items()]
        return max(*units, instructions / RATES["issue"]), sum(units)


class Kernel(NamedTuple):
    """One kernel: its work, and the bytes a query that it fetches from cache and memory."""

    name: str
    score: Work = Work()
    query: Work = Work()
    cache: int = 0
    memory: int = 0
    heads: float = 1.0  # share of heads it works for

    def milliseconds(self, length: int) -> tuple[float, float]:
        """Overlapped and in turn."""
        moving = self.cache / CACHE + self.memory / MEMORY
        each = zip(self.score.clocks(), self.query.clocks(), strict=True)
        clocks = (length * score + query for score, query in each)
        overlapped, in_turn = (1e3 * QUERIES * self.heads * x / CLOCKS for x in clocks)
        return overlapped + 1e3 * QUERIES * moving, in_turn + 1e3 * QUERIES * moving


SDPA = [Kernel("attention", Work(products=2, exponentials=1, logic=1.5, arithmetic=2))]
WEIGH = Kernel("weigh", Work(products=2, exponentials=1, logic=2.5, arithmetic=3))
SHORT = [
    # 4 maxima and 3 minima a score. Then 8 turns over 64 buckets: maximum, compare, convert, 4
    # selects, and an addition; and, of 4 levels, what is next below.
    Kernel(
        "select",
        Work(products=1, logic=7, arithmetic=1),
        Work(logic=8 * 64 * 7 + 4 * 64 * 3, arithmetic=8 * 64),
    ),
    WEIGH,
]
MERGED = [
    # Two scores are put in order and sink into 4 levels: 12 maxima and minima. Lists of 16 buckets
    # are merged: 8 times 12, 4 times 28, 3 times 32 maxima and minima; then 8 turns over 4 lists:
    # maximum, compare and 5 selects; and of their 32 scores, what is around the last one.
    Kernel(
        "select and weigh",
        Work(products=3, exponentials=1, logic=6 + 2.5, arithmetic=1),
        Work(logic=4 * 304 + 8 * 4 * 7 + 32 * 8, arithmetic=32 * 4, exponentials=32),
    ),
]
DENSE_BACKWARD = [
    Kernel("dq", Work(products=3, exponentials=1, logic=2.5, arithmetic=4)),
    Kernel("dk, dv", Work(products=4, exponentials=1, logic=3, arithmetic=4)),
]
PAIR_BACKWARD = [
    # 8 rows of k and v read; 8 rows of dk and dv added to in float32. Memory: dk and dv filled with
    # zeros, then read and converted.
    Kernel("pairs", cache=8 * 2 * 128 + 8 * 2 * 256, memory=2 * (256 + 256 + 128)),
]
ENTMAX = [
    Kernel("two largest", Work(products=1, logic=3, arithmetic=1), Work(arithmetic=4 * 128 * 5)),
    Kernel("Newton, 1 sweep", Work(products=1, logic=1, arithmetic=5)),
    Kernel("weigh", Work(products=3, logic=2, arithmetic=5)),
]
ENTMAX_BACKWARD = [
    Kernel("dq", Work(products=3, logic=1.5, arithmetic=4)),
    Kernel("dk, dv", Work(products=4, logic=2, arithmetic=5)),
]
# Of the logic, 1.5 for peak_key: its place put into a score's bits, and a minimum of three numbers
# for every two scores. Of the arithmetic, 1 for entropy.
STATISTICS = [Kernel("sweep", Work(products=1, exponentials=1, logic=2.5, arithmetic=4))]
PLAIN_SWEEP = [Kernel("sweep", Work(products=1, exponentials=1, logic=1, arithmetic=3))]
GUIDANCE = [
    Kernel("loss", PLAIN_SWEEP[0].score, heads=0.5),
    Kernel("dq", Work(products=2, exponentials=1, logic=0.5, arithmetic=4), heads=0.5),
    Kernel("dk", Work(products=2, exponentials=1, logic=0.5, arithmetic=4), heads=0.5),
    # dq starts as zeros; dq and dk are added to those of the attention
    Kernel("adding", memory=128 + 2 * 3 * 128),
]


def long_rows(length: int) -> list[Kernel]:
    """Cells of two keys: a maximum, a name, and 7 maxima and minima; then 10 or 12 are named."""
    cells = 10 if length < 8192 else 12
    naming = cells * 64 * 5 + 3 * 64 * 3  # of three levels: the last only bounds
    keys = 2 * cells
    return [
        Kernel("sweep", Work(products=1, logic=4.5), Work(logic=naming)),
        # the keys of all cells, converted, multiplied and added
        Kernel("score", query=Work(logic=keys * 64, arithmetic=keys * 64), cache=keys * 128),
        Kernel("rank", query=Work(logic=keys * 8 * 8), memory=keys * 16),
        Kernel("sum values", query=Work(arithmetic=8 * 64), cache=8 * 128),
    ]


def estimates(length: int) -> dict[str, list[Kernel]]:
    """The kernels of every op, in the order they run."""
    topk = SHORT if length < 1024 else long_rows(length)
    backward = DENSE_BACKWARD if length < 1024 else PAIR_BACKWARD
    return {
        "SDPA forward": SDPA,
        "top-k keep 8 forward": topk,
        "top-k keep 8 forward + backward": [*topk, *backward],
        "top-k keep 8 forward, merged": MERGED,
        "entmax-1.5 forward + backward": [*ENTMAX, *ENTMAX_BACKWARD],
        "statistics forward": STATISTICS,
        "the same without entropy and peak_key": PLAIN_SWEEP,
        "guidance on half the heads, added": GUIDANCE,
    }


def main() -> None:
    """Print a table."""
    table = Table(title="Estimated ms on an H200: overlapped / in turn")
    table.add_column("op")
    for length in LENGTHS:
        table.add_column(f"n = {length:,}", justify="right")
    for op in estimates(LENGTHS[0]):
        cells: list[str] = []
        for length in LENGTHS:
            each = [kernel.milliseconds(length) for kernel in estimates(length)[op]]
            least, most = (sum(one) for one in zip(*each, strict=True))
            cells.append(f"{least:.3f} / {most:.3f}")
        table.add_row(op, *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
