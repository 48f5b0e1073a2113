"""IBM Model 1 (Brown et al., 1993): which source word a target word comes from, by EM on pairs.

Every source word of a pair is as likely as any other to bring forth a target word:

    p(o_t | i_1 .. i_L) = mean over l of t(o_t | i_l)

An iteration of EM shares each target word out among the source words of its sentence in proportion
to the table t, adds the shares up, and makes them the new t. From a uniform table the first
iteration sees co-occurrence alone, as does attention that is still uniform.

    B batch   T target positions   K source positions   V target words   W source words with NULL
    P pairs of words that share a sentence   R target words in their sentences, L source words each
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from jaxtyping import Bool, Float, Int, UInt8
from safetensors import SafetensorError
from torch import Tensor

from headwise.ops.checks import check_whole_number
from headwise.recording import files, read_tensors, sealed_note
from headwise_papers.data.batches import parallel_batch
from headwise_papers.data.vocabulary import EOS
from headwise_papers.ops.relevance import holds, packed, peak_positions, top_positions

__all__ = ["Aligned", "IbmModel1", "align", "controls"]

Pair = tuple[Sequence[int], Sequence[int]]
CHUNK = 64  # pairs aligned together
BLOCK = 1 << 20  # positions (target word, source word) at a time, to bound what a pass allocates


@dataclass(frozen=True, eq=False)
class IbmModel1:
    """A table t(target | source) of the pairs of words that share a sentence, and its history.

    The word before all others, number -1, is NULL, which stands in every source sentence.
    """

    keys: Int[Tensor, " P"]  # rising: (source + 1) V + target
    probabilities: Float[Tensor, " P"]  # t(target | source) in float64, key by key
    unseen: Float[Tensor, " W"]  # t(any other target | source) at source + 1; last, unseen sources
    target_words: int  # V: words are 0 .. V - 1
    log_likelihood: Float[Tensor, " E"]  # nats a target word: at the start, after each iteration

    @staticmethod
    def train(
        pairs: Iterable[Pair],
        *,
        iterations: int = 10,
        null: bool = True,
        smoothing: float | int = 0,
        device: str | torch.device = "cpu",
        progress: Callable[[int, int], None] | None = None,
    ) -> "IbmModel1":
        """Run EM from a uniform table.

        The index takes some 15 bytes for each pair of a target and a source position of the corpus.
        The same pairs in the same order give the same table, bit by bit.

        Args:
            pairs: (source ids, target ids) of each sentence; `zip(sources, targets)` will do.
            iterations: 1 gives the statistics of co-occurrence.
            null: let target words also come from NULL, from nowhere in the sentence.
            smoothing: added to the count of every target word at each source word, met or not.
                Without it the likelihood never falls; with it, the likelihood times the Dirichlet
                prior never falls.
            device: where to count, and where the table stays.
            progress: called with (iterations done, iterations in all).

        >>> pairs = [((0, 1), (0, 1)), ((0, 2), (0, 2)), ((3, 2), (3, 2))]
        >>> words = torch.tensor([[0, 1]])  # das Haus, the house; 2 is Buch or book, 3 ein or a
        >>> IbmModel1.train(pairs, iterations=1, null=False).scores(words, words).exp()
        tensor([[[0.5000, 0.5000],
                 [0.2500, 0.5000]]], dtype=torch.float64)
        >>> IbmModel1.train(pairs, iterations=99, null=False).scores(words, words).exp().round()
        tensor([[[1., 0.],
                 [0., 1.]]], dtype=torch.float64)
        """
        _check_settings(iterations, smoothing)
        sentences = list(pairs)
        _check_pairs(sentences, null=null)
        corpus = _Corpus.of(sentences, null=null, device=torch.device(device))
        table_P = corpus.uniform()
        unseen_W = table_P.new_zeros(0)
        history: list[Tensor] = []
        for done in range(iterations):
            if progress is not None:
                progress(done, iterations)
            expected = corpus.expect(table_P)
            history.append(expected.log_likelihood)
            table_P, unseen_W = corpus.maximise(expected.counts_P, smoothing)
        history.append(corpus.expect(table_P).log_likelihood)
        if progress is not None:
            progress(iterations, iterations)
        log_likelihood = torch.stack(history)
        return IbmModel1(corpus.keys_P, table_P, unseen_W, corpus.target_words, log_likelihood)

    @property
    def perplexity(self) -> Tensor:
        """Return exp(-log-likelihood) per target word, at the start and after each iteration."""
        return (-self.log_likelihood).exp()

    def scores(
        self, source: Int[Tensor, "B K"], target: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T K"]:
        """Return log t(o_t | i_l) for every target and source position of padded sentences.

        Without smoothing it is -inf for words that never shared a sentence.

        Args:
            source: ids, padded with any id; scores of padding mean nothing.
            target: likewise.
        """
        for name, ids in (("source", source), ("target", target)):
            if bool((ids < 0).any()):
                raise ValueError(f"{name} ids must be 0 or more, got {int(ids.min())}; pad with 0.")
        words_B1K = source.to(self.keys.device, torch.long)[:, None, :] + 1
        target_BT1 = target.to(self.keys.device, torch.long)[:, :, None]
        key_BTK = words_B1K * self.target_words + target_BT1
        place_BTK = torch.searchsorted(self.keys, key_BTK).clamp(max=len(self.keys) - 1)
        # a target word beyond the last would read as a word of the next source
        met_BTK = (self.keys[place_BTK] == key_BTK) & (target_BT1 < self.target_words)
        unseen_B1K = self.unseen[words_B1K.clamp(max=len(self.unseen) - 1)]
        chance_BTK = torch.where(met_BTK, self.probabilities[place_BTK], unseen_B1K)
        return chance_BTK.log().to(source.device)

    def save(self, path: Path) -> None:
        """Write the table and its history as safetensors."""
        tensors = {
            "keys": self.keys,
            "probabilities": self.probabilities,
            "unseen": self.unseen,
            "target_words": torch.tensor(self.target_words),
            "log_likelihood": self.log_likelihood,
        }
        copies = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        with files.replacing(path) as temporary:
            safetensors.torch.save_file(copies, temporary, metadata=sealed_note(copies, {}))

    @staticmethod
    def load(path: Path, *, device: str | torch.device = "cpu") -> "IbmModel1":
        """Read what `save` wrote.

        Args:
            path: the file.
            device: where the table is to be.
        """
        try:
            tensors = read_tensors(path)
            target_words = int(tensors.pop("target_words"))
            there = {name: tensor.to(device) for name, tensor in tensors.items()}
            return IbmModel1(target_words=target_words, **there)
        except (SafetensorError, KeyError, TypeError) as problem:
            raise ValueError(
                f"{path} is not a whole table of IBM Model 1 ({problem}); train and save it again."
            ) from None


def _check_settings(iterations: int, smoothing: float | int) -> None:
    check_whole_number("iterations", iterations)
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}.")
    if not 0 <= smoothing < float("inf"):
        raise ValueError(f"smoothing must be 0 or more and finite, got {smoothing}.")


def _check_pairs(pairs: Sequence[Pair], *, null: bool) -> None:
    if not any(len(target) for _, target in pairs):
        raise ValueError(
            f"IBM Model 1 learns from target words, got {len(pairs)} pairs with none; "
            "give pairs of sentences."
        )
    for number, (source, target) in enumerate(pairs):
        lowest = min(chain(source, target), default=0)
        if lowest < 0:
            raise ValueError(
                f"Ids must be 0 or more, got {lowest} in pair {number}; leave padding out."
            )
        if not null and not source and target:
            raise ValueError(
                f"Pair {number} has target words but no source word they could come from; "
                "leave it out or set null=True."
            )


class _Expected(NamedTuple):
    """Expected counts of the E step."""

    counts_P: Tensor  # how often the pair is expected to be an alignment
    log_likelihood: Tensor  # of the table it was given, mean a target word


class _Block(NamedTuple):
    """Block of target words whose sentences have equally many source words."""

    pair_RL: Tensor  # number of the pair of words, in int32
    row_X: Tensor  # R L rows, those of the same pair together, in int32
    pair_U: Tensor  # the different pairs there are, rising
    times_U: Tensor  # and how often


class _Corpus(NamedTuple):
    """Positions of each pair of words, for sums over pairs in a fixed order."""

    blocks: list[_Block]
    keys_P: Tensor
    sources_W: Tensor  # how many keys each source word has; one more word, never seen, is last
    target_words: int
    rows: int

    @staticmethod
    def of(pairs: Sequence[Pair], *, null: bool, device: torch.device) -> "_Corpus":
        target_words = max(max(target, default=0) for _, target in pairs) + 1
        source_words = max(max(source, default=0) for source, _ in pairs) + 2
        grouped = [
            _grouped(key_RL)
            for key_RL in _keys(pairs, null=null, target_words=target_words, device=device)
        ]
        keys_P = torch.unique(torch.cat([block.pair_U for block in grouped]))
        blocks = [_numbered(block, keys_P) for block in grouped]
        sources_W = torch.bincount(keys_P // target_words, minlength=source_words + 1)
        rows = sum(len(block.pair_RL) for block in blocks)
        return _Corpus(blocks, keys_P, sources_W, target_words, rows)

    def uniform(self) -> Tensor:
        """Return the uniform table that training starts from."""
        return torch.full_like(self.keys_P, 1 / self.target_words, dtype=torch.float64)

    def expect(self, table_P: Tensor) -> _Expected:
        """Take the E step: sum t(o | i_l) / (sum over l) over the corpus."""
        share_P = torch.zeros_like(table_P)
        total = table_P.new_zeros(())
        for pair_RL, row_X, pair_U, times_U in self.blocks:
            sum_R = table_P.index_select(0, pair_RL.flatten()).view(pair_RL.shape).sum(dim=1)
            total += (sum_R / pair_RL.shape[1]).log().sum()
            # t is the same wherever a pair occurs, so only the divisors need adding up; by
            # segments, since index_add adds in any order on a GPU
            inverse_X = (1 / sum_R).index_select(0, row_X)
            share_P[pair_U] += torch.segment_reduce(inverse_X, "sum", lengths=times_U)
        return _Expected(table_P * share_P, total / self.rows)

    def maximise(self, counts_P: Tensor, smoothing: float | int) -> tuple[Tensor, Tensor]:
        """Take the M step: return t of the keys, and (W) t of words unseen with a source word."""
        total_W = torch.segment_reduce(counts_P, "sum", lengths=self.sources_W)
        total_W = total_W + smoothing * self.target_words
        source_P = self.keys_P // self.target_words
        unseen_W = smoothing / total_W if smoothing else torch.zeros_like(total_W)
        return (counts_P + smoothing) / total_W[source_P], unseen_W


def _keys(
    pairs: Sequence[Pair], *, null: bool, target_words: int, device: torch.device
) -> Iterator[Tensor]:
    """Yield blocks (R, L) of keys: a target word with each source word of its sentence."""

    def source_length(pair: Pair) -> int:
        return len(pair[0])

    told = sorted((pair for pair in pairs if pair[1]), key=source_length)
    for length, group in groupby(told, key=source_length):
        sources, targets = zip(*group, strict=True)
        ids = torch.tensor(sources, dtype=torch.long, device=device).view(len(sources), length)
        words_NL = torch.nn.functional.pad(ids + 1, (int(null), 0))  # NULL is 0
        target_R = torch.tensor(list(chain.from_iterable(targets)), device=device)
        lengths_N = torch.tensor([len(target) for target in targets], device=device)
        sentence_R = torch.arange(len(targets), device=device).repeat_interleave(lengths_N)
        rows = max(1, BLOCK // words_NL.shape[1])
        for sentence_r, target_r in zip(sentence_R.split(rows), target_R.split(rows), strict=True):
            yield words_NL[sentence_r] * target_words + target_r[:, None]


def _grouped(key_RL: Tensor) -> _Block:
    """Number the pairs of a block of keys within the block, with the keys as `pair_U`."""
    sorted_X, order_X = key_RL.flatten().sort(stable=True)
    key_U, pair_X, times_U = sorted_X.unique_consecutive(return_inverse=True, return_counts=True)
    pair_RL = torch.empty_like(order_X, dtype=torch.int32)
    pair_RL[order_X] = pair_X.int()
    row_X = (order_X // key_RL.shape[1]).int()
    return _Block(pair_RL.view(key_RL.shape), row_X, key_U, times_U)


def _numbered(block: _Block, keys_P: Tensor) -> _Block:
    """Renumber the pairs of a block as in the whole corpus."""
    pair_U = torch.searchsorted(keys_P, block.pair_U)
    pair_RL = pair_U.int().index_select(0, block.pair_RL.flatten()).view(block.pair_RL.shape)
    return block._replace(pair_RL=pair_RL, pair_U=pair_U)


class Aligned(NamedTuple):
    """Alignments of IBM Model 1 for the target tokens of some pairs, in the order of traces."""

    peak: Int[Tensor, " N"]  # the likeliest source position
    top: UInt8[Tensor, "N P"]  # highly ranked ones, packed
    known: Bool[Tensor, " N"]  # whether any training pair has the target token
    lengths: Int[Tensor, " N"]


def align(model: IbmModel1, pairs: Sequence[Pair], train: Sequence[Pair]) -> Aligned:
    """Align sentence pairs, shortest first: sorted by source length, then target length.

    Args:
        model: trained with end tokens on both sides.
        pairs: without special tokens.
        train: what the model was trained on, likewise.
    """
    ordered = sorted(pairs, key=lambda pair: (len(pair[0]), len(pair[1])))
    batch = parallel_batch([source for source, _ in ordered], [target for _, target in ordered])
    real_BT = torch.arange(batch.target_out.shape[1]) < batch.target_lengths[:, None]
    length_BT = batch.source_lengths[:, None].expand_as(real_BT)
    peaks: list[Tensor] = []
    tops: list[Tensor] = []
    for rows in torch.arange(len(ordered)).split(CHUNK):
        score_NK = model.scores(batch.source[rows], batch.target_out[rows])[real_BT[rows]]
        length_N = length_BT[rows][real_BT[rows]]
        peaks.append(peak_positions(score_NK, length_N))
        tops.append(packed(top_positions(score_NK, length_N)))
    met = torch.tensor(sorted({EOS, *(word for _, target in train for word in target)}))
    known_N = torch.isin(batch.target_out[real_BT], met)
    return Aligned(torch.cat(peaks), torch.cat(tops), known_N, length_BT[real_BT])


def controls(aligned: Aligned, untrained: UInt8[Tensor, "R N P"]) -> dict[str, Tensor]:
    """Return hr of the peaks in orders of positions that know nothing of words, (R,) each.

    Args:
        aligned: of IBM Model 1.
        untrained: packed highly ranked positions of R models.
    """
    known = aligned.known
    peak_N, length_N = aligned.peak[known], aligned.lengths[known]
    from_end_N = length_N - 1 - peak_N
    fixed = {
        "the end mark": (from_end_N == 0).double().mean(),
        "the most frequent places": torch.maximum(
            _frequent(peak_N, length_N), _frequent(from_end_N, length_N)
        ),
    }
    return {
        "untrained beta": holds(untrained[:, known], peak_N).double().mean(-1),
        **{name: share.expand(len(untrained)) for name, share in fixed.items()},
    }


def _frequent(place_N: Tensor, length_N: Tensor) -> Tensor:
    """Return how often a place is among the most frequent, as many as a row has highly ranked."""
    count_K = place_N.bincount(minlength=int(length_N.max()))
    rank_K = count_K.argsort(descending=True, stable=True).argsort()
    top_NK = top_positions(-rank_K.double().expand(len(place_N), -1), length_N)
    return top_NK.gather(1, place_N[:, None]).double().mean()
