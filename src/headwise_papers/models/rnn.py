"""Recurrent models with attention: a BiLSTM classifier and an LSTM sequence-to-sequence model.

The models of *Understanding Attention Training via Output Relevance*. What they attend to is the
encoder's hidden state h_l of each input position l, unprojected, and what they predict from is a
weighted mean of these states, so that each position has logits of its own, theta_l (Section 2):

    classifier    score_l = v . relu(W h_l + b)   logits = U context + u      theta_l = U h_l + u
    translator    score_tl = (W d_t + b) . h_l    logits = U (d_t + G context)   theta_l = U G h_l

`look` gives the scores beside the output relevance beta that these logits mean for the right
output. Scores are not divided by the root of the width, as ops do it: queries are multiplied by it
before, so that ops without a scale can replace softmax at the site.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from headwise.ops import softmax_attention, uniform_attention
from headwise.sites import Site
from headwise_papers.models.cache import Cache, KeysValues
from headwise_papers.models.rebuilding import Rebuildable
from headwise_papers.ops.relevance import Looked, output_relevance, output_relevance_of_each

__all__ = [
    "Combine",
    "Heads",
    "RnnClassifier",
    "RnnClassifierConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Variant",
]

# "uniform" attends to all positions alike; "frozen" learns the scores and nothing else.
Variant = Literal["normal", "uniform", "frozen"]
# The output layer reads d + context, the context alone, or tanh(mix [d; context]).
Combine = Literal["add", "context", "concat"]


@final
@dataclass(frozen=True)
class RnnClassifierConfig:
    """The shape of a BiLSTM attention classifier."""

    vocabulary: int
    classes: int = 2
    embedding: int = 300
    hidden: int = 256  # of h, half of it from each direction
    attention: int = 256  # width of the layer that scores
    variant: Variant = "normal"

    def __post_init__(self) -> None:
        _at_least_one(self, "vocabulary", "classes", "embedding", "hidden", "attention")
        if self.hidden % 2:
            raise ValueError(f"hidden is shared by two directions, got the odd {self.hidden}.")


@final
class RnnClassifier(nn.Module):
    """Classifier of sentences. Its site is `encoder.0.pool`: one query of one head.

    >>> model = RnnClassifier(RnnClassifierConfig(vocabulary=9, hidden=8))
    >>> model(torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([3, 1])).shape
    torch.Size([2, 2])
    """

    def __init__(self, config: RnnClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.embedding)
        self.encoder = nn.LSTM(
            config.embedding, config.hidden // 2, bidirectional=True, batch_first=True
        )
        self.key = nn.Linear(config.hidden, config.attention)
        self.query = nn.Linear(config.attention, 1, bias=False)  # its weight is the paper's v
        self.output = nn.Linear(config.hidden, config.classes)
        self.site = Site("encoder.0.pool", 1, _op(config.variant))
        _freeze(self, config.variant, ("key.", "query."))

    def headwise_subject(self, tokenizer: object, special: frozenset[str]) -> Any:
        """Return how `headwise.inspect` reads the model; the tokenizer is its Vocabulary."""
        from headwise_papers.recipes.own_subjects import (
            ClassifierSubject,  # lazy: it imports this module
        )

        return ClassifierSubject.of_vocabulary(self, tokenizer, special)

    def forward(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B C"]:
        """Return logits of each class.

        Args:
            tokens: word numbers, padded at the end.
            lengths: how many words of each row are real, at least one.
        """
        hidden_BTM = self.encode(tokens, lengths)
        key_BTA = self.key(hidden_BTM).relu()
        query_B11A = self._query().expand(len(tokens), 1, 1, -1)
        out_B11M = self.site(query_B11A, key_BTA[:, None], hidden_BTM[:, None], lengths=lengths)
        return self.output(out_B11M[:, 0, 0])

    def encode(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B T M"]:
        """Return the hidden state of each position; zeros at padding."""
        return _run(self.encoder, self.embed(tokens), lengths)[0]

    def look(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], labels: Int[Tensor, " B"]
    ) -> Looked:
        """Return scores and output relevance of positions, and whether each sentence is right."""
        hidden_BTM = self.encode(tokens, lengths)
        score_BT = self.query(self.key(hidden_BTM).relu())[..., 0]
        if self.config.variant == "uniform":
            score_BT = torch.zeros_like(score_BT)
        beta_BT = output_relevance(self.output(hidden_BTM), labels)
        right_B = self(tokens, lengths).argmax(-1) == labels
        return Looked(score_BT[None], beta_BT[None], lengths, right_B[None])

    def _query(self) -> Tensor:
        return self.query.weight * math.sqrt(self.config.attention)


@final
@dataclass(frozen=True)
class Seq2SeqConfig:
    """The shape of an LSTM sequence-to-sequence model; the defaults are those for translation.

    For the copying task: bidirectional=False, layers=1, dropout=0.
    """

    vocabulary: int  # of source and target together
    embedding: int = 256
    hidden: int = 256  # of the decoder, and of each direction of the encoder
    layers: int = 2  # of encoder and decoder
    bidirectional: bool = True  # the encoder
    heads: int = 1
    combine: Combine = "add"  # what the output layer reads, see `Combine`
    sum_heads: Literal["sum", "mean"] = "sum"  # Eq. 9 sums
    shared: bool = True  # one embedding for source and target
    dropout: float = 0.5  # between the layers of each LSTM
    variant: Variant = "normal"

    def __post_init__(self) -> None:
        _at_least_one(self, "vocabulary", "embedding", "hidden", "layers", "heads")
        if self.combine not in get_args(Combine):
            raise ValueError(f"combine must be add, context or concat, got {self.combine!r}.")

    @property
    def width(self) -> int:
        """Width of the encoder's hidden states."""
        return self.hidden * (2 if self.bidirectional else 1)

    def part_of_head(self, head: int) -> float:
        """Return the factor of a head's output: 1, or 1 / heads where heads are averaged."""
        if not 0 <= head < self.heads:
            raise ValueError(
                f"head must lie between 0 and {self.heads - 1}, as there are {self.heads}; "
                f"got {head}."
            )
        return 1.0 if self.sum_heads == "sum" else 1.0 / self.heads


@final
class Heads(nn.Module):
    """Score and output maps of attention heads, W^x and G^x of Eq. 9, each drawn as a linear layer.

    A head's query is W^x d + b^x, what it adds is G^x context + g^x.
    """

    def __init__(self, heads: int, *, hidden: int, width: int) -> None:
        super().__init__()
        scores = [nn.Linear(hidden, width) for _ in range(heads)]
        outputs = [nn.Linear(width, hidden) for _ in range(heads)]
        self.score_weight = nn.Parameter(torch.stack([x.weight.detach() for x in scores]))
        self.score_bias = nn.Parameter(torch.stack([x.bias.detach() for x in scores]))
        self.output_weight = nn.Parameter(torch.stack([x.weight.detach() for x in outputs]))
        self.output_bias = nn.Parameter(torch.stack([x.bias.detach() for x in outputs]))

    def queries(self, d: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T M"]:
        """Return each head's queries, times the root of the width (see the module)."""
        query_BHTM = torch.einsum("btd,hmd->bhtm", d, self.score_weight)
        return (query_BHTM + self.score_bias[:, None]) * math.sqrt(self.score_weight.shape[1])

    def outputs(self, context: Float[Tensor, "B H T M"]) -> Float[Tensor, "B H T D"]:
        """Return each head's output."""
        out_BHTD = torch.einsum("bhtm,hdm->bhtd", context, self.output_weight)
        return out_BHTD + self.output_bias[:, None]


@final
class Seq2Seq(Rebuildable):
    """Translator with LSTMs: `forward` while training, `encode` and `decode` for decoding.

    The decoder starts from the encoder's last states, averaged over directions, and reads its own
    words only, so all its states come before any attention. Its site is `decoder.0.cross`.

    >>> model = Seq2Seq(Seq2SeqConfig(vocabulary=9, hidden=8))
    >>> source, lengths = torch.tensor([[4, 5, 2], [4, 2, 0]]), torch.tensor([3, 2])
    >>> model(source, lengths, torch.tensor([[1, 6], [1, 7]])).shape
    torch.Size([2, 2, 9])
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.embedding)
        if not config.shared:
            self.embed_target = nn.Embedding(config.vocabulary, config.embedding)
        between = config.dropout if config.layers > 1 else 0.0
        self.encoder = nn.LSTM(
            config.embedding,
            config.hidden,
            config.layers,
            batch_first=True,
            dropout=between,
            bidirectional=config.bidirectional,
        )
        self.decoder = nn.LSTM(
            config.embedding, config.hidden, config.layers, batch_first=True, dropout=between
        )
        self.heads = Heads(config.heads, hidden=config.hidden, width=config.width)
        self.mix = (
            nn.Linear(2 * config.hidden, config.hidden) if config.combine == "concat" else None
        )
        self.output = nn.Linear(config.hidden, config.vocabulary)
        self.site = Site("decoder.0.cross", config.heads, _op(config.variant))
        _freeze(self, config.variant, ("heads.score_",))

    def headwise_subject(self, tokenizer: object, special: frozenset[str]) -> Any:
        """Return how `headwise.inspect` reads the model; `tokenizer` is a pair of codecs."""
        from headwise_papers.recipes.own_subjects import (
            TranslatorSubject,  # lazy: it imports this module
        )

        return TranslatorSubject.of_codecs(self, tokenizer, special)

    def forward(
        self,
        source: Int[Tensor, "B K"],
        source_lengths: Int[Tensor, " B"],
        target: Int[Tensor, "B T"],
    ) -> Float[Tensor, "B T V"]:
        """Score each next word given the right words before it (teacher forcing)."""
        return self.decode(target, self.encode(source, source_lengths), source_lengths)

    def encode(
        self, source: Int[Tensor, "B K"], source_lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B K X"]:
        """Return vectors to attend to and, in the last columns, the decoder's first states."""
        hidden_BKM, (h_LBD, c_LBD) = _run(self.encoder, self.embed(source), source_lengths)
        start_BX = torch.cat([self._start(h_LBD), self._start(c_LBD)], dim=1)
        return torch.cat([hidden_BKM, start_BX[:, None].expand(-1, source.shape[1], -1)], dim=-1)

    def decode(
        self,
        target: Int[Tensor, "B T"],
        memory: Float[Tensor, "B K X"],
        source_lengths: Int[Tensor, " B"],
        *,
        cache: Cache | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Return scores of the word that follows each target position, before the softmax.

        Args:
            target: ids from the beginning mark on; with a cache only those it has not seen.
            memory: from `encode`.
            source_lengths: as given to `encode`.
            cache: remembers the decoder's state from call to call.
        """
        d_BTD = self._states(target, memory, cache)
        if not self.site.num_heads:  # all were pruned
            return self._predict(d_BTD, torch.zeros_like(d_BTD))
        hidden_B1KM = memory[:, None, :, : self.config.width]
        context_BHTM = self.site(
            self.heads.queries(d_BTD), hidden_B1KM, hidden_B1KM, lengths=source_lengths
        )
        return self._predict(d_BTD, self._joined(self.heads.outputs(context_BHTM)))

    def look(
        self,
        source: Int[Tensor, "B K"],
        source_lengths: Int[Tensor, " B"],
        target: Int[Tensor, "B T"],
        target_out: Int[Tensor, "B T"],
        target_lengths: Int[Tensor, " B"],
        *,
        head: int = 0,
    ) -> Looked:
        """Return scores and output relevance of source positions for each real target word.

        theta is what the output would be if one position were the whole context of one head, and
        other heads added nothing; where heads are averaged a head adds its part of the mean. Unless
        combine="concat" the decoder's state is the same for all positions and left out.
        """
        part = self.config.part_of_head(head)
        memory_BKX = self.encode(source, source_lengths)
        hidden_BKM, d_BTD = memory_BKX[..., : self.config.width], self._states(target, memory_BKX)
        query_BHTM = self.heads.queries(d_BTD) / math.sqrt(self.config.width)
        score_BTK = query_BHTM[:, head] @ hidden_BKM.mT
        if self.config.variant == "uniform":
            score_BTK = torch.zeros_like(score_BTK)
        alone_BKD = hidden_BKM @ self.heads.output_weight[head].mT + self.heads.output_bias[head]
        beta_BTK = self._relevance(d_BTD, part * alone_BKD, target_out)
        logits_BTV = self.decode(target, memory_BKX, source_lengths)
        real_BT = torch.arange(target.shape[1], device=target.device) < target_lengths[:, None]
        right_N = (logits_BTV.argmax(-1) == target_out)[real_BT]
        length_N = source_lengths[:, None].expand_as(target)[real_BT]
        return Looked(score_BTK[real_BT][None], beta_BTK[real_BT][None], length_N, right_N[None])

    def head_parameters(self) -> dict[str, int]:
        """Return all that each head has, for `headwise.pruning.prune`."""
        return {f"heads.{name}": 0 for name, _ in self.heads.named_parameters()}

    def head_output(self) -> str:
        """Return the parameter that the outputs of heads are multiplied by."""
        return "heads.output_weight"

    def before_pruning(self, keep: Sequence[int]) -> None:
        """Move what the other heads add to every context into the bias of the next layer."""
        heads = self.heads.output_bias.shape[0]
        gone = [head for head in range(heads) if head not in keep]
        constant_D = self.heads.output_bias[gone].sum(0)
        if self.config.sum_heads == "mean":
            constant_D = constant_D / self.config.heads
        if self.mix is None:
            self.output.bias.add_(self.output.weight @ constant_D)
        else:
            self.mix.bias.add_(self.mix.weight[:, self.config.hidden :] @ constant_D)

    def _relevance(self, d_BTD: Tensor, alone_BKD: Tensor, target_BT: Tensor) -> Tensor:
        if self.mix is None:
            return output_relevance_of_each(self.output(alone_BKD), target_BT)
        n_target, n_source = d_BTD.shape[1], alone_BKD.shape[1]
        d_BTKD = d_BTD[:, :, None].expand(-1, -1, n_source, -1)
        alone_BTKD = alone_BKD[:, None].expand(-1, n_target, -1, -1)
        return output_relevance(self._predict(d_BTKD, alone_BTKD), target_BT)

    def _states(self, target_BT: Tensor, memory_BKX: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the decoder's output at each target position."""
        name, hidden = "decoder.state", self.config.hidden
        if cache is not None and name in cache.known:
            h_LBD, c_LBD = (x[:, :, 0].transpose(0, 1).contiguous() for x in cache.known[name])
        else:
            start_B2LD = memory_BKX[:, 0, self.config.width :].unflatten(1, (2, -1, hidden))
            h_LBD, c_LBD = (start_B2LD[:, x].transpose(0, 1).contiguous() for x in (0, 1))
        embed = self.embed if self.config.shared else self.embed_target
        d_BTD, (h_LBD, c_LBD) = self.decoder(embed(target_BT), (h_LBD, c_LBD))
        if cache is not None:
            cache.known[name] = KeysValues(*(x.transpose(0, 1)[:, :, None] for x in (h_LBD, c_LBD)))
            cache.length += target_BT.shape[1]
        return d_BTD

    def _start(self, last_XBD: Tensor) -> Tensor:
        """Average the last states of each layer over directions: (B, L * D)."""
        directions = 2 if self.config.bidirectional else 1
        return last_XBD.unflatten(0, (-1, directions)).mean(1).transpose(0, 1).flatten(1)

    def _joined(self, out_BHTD: Tensor) -> Tensor:
        # of the heads there were at first: pruned ones added nothing
        whole_BTD = out_BHTD.sum(1)
        return whole_BTD if self.config.sum_heads == "sum" else whole_BTD / self.config.heads

    def _predict(self, d_XD: Tensor, context_XD: Tensor) -> Tensor:
        if self.mix is None:
            add = self.config.combine == "add"
            return self.output(d_XD + context_XD if add else context_XD)
        return self.output(self.mix(torch.cat([d_XD, context_XD], dim=-1)).tanh())


def _run(layers: nn.LSTM, x_BTM: Tensor, lengths_B: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run over real positions only; outputs are zero at padding."""
    packed = pack_padded_sequence(x_BTM, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
    hidden, last = layers(packed)
    return pad_packed_sequence(hidden, batch_first=True, total_length=x_BTM.shape[1])[0], last


def _op(variant: Variant):
    if variant not in ("normal", "uniform", "frozen"):
        raise ValueError(f"variant must be normal, uniform or frozen, got {variant!r}.")
    return uniform_attention if variant == "uniform" else softmax_attention


def _freeze(model: nn.Module, variant: Variant, scoring: tuple[str, ...]) -> None:
    """Freeze all parameters of a frozen variant but those of its attention scores."""
    if variant == "frozen":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(scoring))


def _at_least_one(config: object, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(config, name)}.")
