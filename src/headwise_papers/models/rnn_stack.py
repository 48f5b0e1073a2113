"""Many recurrent models at once: the parameters of S seeds stacked on a leading axis.

A cuDNN LSTM runs one model at a time and leaves a GPU idle. Here the recurrences of all seeds, and
of both directions, are one batched product per time step (`headwise_papers.ops.lstm`), and where
there are fewer words than positions the input layer is applied to the words and then looked up. A
seed of a stack goes through the same numbers as that model alone, up to rounding.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace as with_fields
from functools import partial
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from headwise.ops import softmax_attention
from headwise.sites import Site
from headwise_papers.models.rnn import (
    RnnClassifier,
    RnnClassifierConfig,
    Seq2Seq,
    Seq2SeqConfig,
    Variant,
)
from headwise_papers.models.stacking import stacked_parameters
from headwise_papers.ops.lookup import lookup
from headwise_papers.ops.lstm import lstm
from headwise_papers.ops.relevance import Looked, output_relevance, output_relevance_of_each

__all__ = ["RnnClassifierSequence", "RnnClassifierStack", "Seq2SeqStack", "many_classifiers"]

# Sentences are short and all seeds are one batch: plain products are faster than a fused kernel.
_attention = partial(softmax_attention, impl="reference")


class State(NamedTuple):
    """The state of S LSTMs after their last step."""

    h: Tensor  # (S, B, D)
    c: Tensor


class RnnClassifierStack(nn.Module):
    """S classifiers of one shape; their variants may differ.

    >>> from headwise_papers.models.rnn import RnnClassifierConfig
    >>> config = RnnClassifierConfig(vocabulary=9, hidden=8)
    >>> stack = RnnClassifierStack([RnnClassifier(config) for seed in range(3)])
    >>> stack(torch.ones(3, 2, 5, dtype=torch.long), torch.full((3, 2), 5)).shape
    torch.Size([3, 2, 2])
    """

    def __init__(self, models: Sequence[RnnClassifier]) -> None:
        super().__init__()
        self.configs = [model.config for model in models]
        _check_alike(self.configs)
        self.weights = stacked_parameters(models)
        self.site = Site("encoder.0.pool", 1, _attention)
        self._attends = _prepare(
            self.weights, [c.variant for c in self.configs], ("key.", "query.")
        )

    @property
    def seeds(self) -> int:
        """How many models there are."""
        return len(self.configs)

    def forward(
        self, tokens: Int[Tensor, "S B T"], lengths: Int[Tensor, "S B"]
    ) -> Float[Tensor, "S B C"]:
        """Return logits of each class, for each seed's own sentences."""
        return self._classify(*self._encode(tokens, lengths), lengths)

    def loss(
        self,
        tokens: Int[Tensor, "S B T"],
        lengths: Int[Tensor, "S B"],
        labels: Int[Tensor, "S B"],
    ) -> Float[Tensor, " S"]:
        """Return each seed's mean cross-entropy."""
        logits_SBC = self(tokens, lengths)
        return cross_entropy(logits_SBC.mT, labels, reduction="none").mean(-1)

    @torch.no_grad()
    def look(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], labels: Int[Tensor, " B"]
    ) -> Looked:
        """Return scores and output relevance of each position; all seeds share the sentences."""
        tokens_SBT, lengths_SB = (x.expand(self.seeds, *x.shape) for x in (tokens, lengths))
        hidden_SBTM, key_SBTA = self._encode(tokens_SBT, lengths_SB)
        score_SBT = (key_SBTA @ self._query_SA()[:, None, :, None])[..., 0]
        theta_SBTC = _layer(self.weights, "output", hidden_SBTM)
        labels_SB = labels.expand(self.seeds, -1)
        beta_SBT = output_relevance(theta_SBTC, labels_SB)
        right_SB = self._classify(hidden_SBTM, key_SBTA, lengths_SB).argmax(-1) == labels_SB
        return Looked(score_SBT, beta_SBT, lengths, right_SB)

    def influence(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], labels: Int[Tensor, " B"]
    ) -> Float[Tensor, "S B T"]:
        """Return the gradient influence of each position, on the same sentences for every seed.

        xi_l = -<gradient of -log p(label) by e_l, e_l> with e_l the embedding of token l, as
        `headwise_papers.measures.influence.token_influence` has it for one model. Padding has none.
        """
        tokens_SBT, lengths_SB, labels_SB = (
            x.expand(self.seeds, *x.shape) for x in (tokens, lengths, labels)
        )
        # each position needs an embedding of its own, however small the vocabulary
        embedded_STBE = lookup(self.weights["embed.weight"].detach(), tokens_SBT.transpose(1, 2))
        with torch.enable_grad():
            scale_STB1 = torch.ones_like(embedded_STBE[..., :1]).requires_grad_()
            states = self._encode_words(embedded_STBE * scale_STB1, lengths_SB)
            logits_XC = self._classify(*states, lengths_SB).flatten(0, 1)
            loss = cross_entropy(logits_XC, labels_SB.flatten(), reduction="sum")
            (slope_STB1,) = torch.autograd.grad(loss, scale_STB1)
        return -slope_STB1[..., 0].transpose(1, 2)

    def model(self, seed: int) -> RnnClassifier:
        """Return a copy of one seed's classifier."""
        return cast(RnnClassifier, _unstacked(RnnClassifier(self.configs[seed]), self, seed))

    def _encode(self, tokens_SBT: Tensor, lengths_SB: Tensor) -> tuple[Tensor, Tensor]:
        words = _read_words(self.weights["embed.weight"], tokens_SBT.transpose(1, 2))
        return self._encode_words(words, lengths_SB)

    def _encode_words(self, words: "Tensor | Words", lengths_SB: Tensor) -> tuple[Tensor, Tensor]:
        hidden_STBM, _ = _both_ways(self.weights, "encoder", 0, words, lengths_SB)
        hidden_SBTM = hidden_STBM.transpose(1, 2).contiguous()
        return hidden_SBTM, _layer(self.weights, "key", hidden_SBTM).relu()

    def _classify(self, hidden_SBTM: Tensor, key_SBTA: Tensor, lengths_SB: Tensor) -> Tensor:
        query_SA = self._query_SA() * math.sqrt(key_SBTA.shape[-1])
        query_X11A = query_SA.repeat_interleave(key_SBTA.shape[1], dim=0)[:, None, None]
        key_X1TA, value_X1TM = (x.flatten(0, 1)[:, None] for x in (key_SBTA, hidden_SBTM))
        out_X11M = self.site(query_X11A, key_X1TA, value_X1TM, lengths=lengths_SB.flatten())
        context_SBM = out_X11M[:, 0, 0].unflatten(0, (self.seeds, -1))
        return _layer(self.weights, "output", context_SBM)

    def _query_SA(self) -> Tensor:
        return self.weights["query.weight"][:, 0] * self._attends[:, None]


class RnnClassifierSequence(nn.Module):
    """S classifiers behind the interface of a stack, run one after the other; shapes may differ.

    On a CPU `nn.LSTM` is faster than batched products (`python -m benchmarks relevance`).

    >>> from headwise_papers.models.rnn import RnnClassifierConfig
    >>> config = RnnClassifierConfig(vocabulary=9, hidden=8)
    >>> models = RnnClassifierSequence([RnnClassifier(config) for seed in range(3)])
    >>> models(torch.ones(3, 2, 5, dtype=torch.long), torch.full((3, 2), 5)).shape
    torch.Size([3, 2, 2])
    """

    def __init__(self, models: Sequence[RnnClassifier]) -> None:
        super().__init__()
        self.models = nn.ModuleList(deepcopy(model) for model in models)
        self.weights: dict[str, Tensor] = {
            f"{seed}.{name}": parameter
            for seed, model in enumerate(self.models)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }

    @property
    def seeds(self) -> int:
        """How many models there are."""
        return len(self.models)

    def forward(
        self, tokens: Int[Tensor, "S B T"], lengths: Int[Tensor, "S B"]
    ) -> Float[Tensor, "S B C"]:
        """Return logits of each class, for each seed's own sentences."""
        return torch.stack([self.model(s)(tokens[s], lengths[s]) for s in range(self.seeds)])

    def loss(
        self,
        tokens: Int[Tensor, "S B T"],
        lengths: Int[Tensor, "S B"],
        labels: Int[Tensor, "S B"],
    ) -> Float[Tensor, " S"]:
        """Return each seed's mean cross-entropy."""
        logits_SBC = self(tokens, lengths)
        return cross_entropy(logits_SBC.mT, labels, reduction="none").mean(-1)

    @torch.no_grad()
    def look(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], labels: Int[Tensor, " B"]
    ) -> Looked:
        """Return scores and output relevance of each position; all seeds share the sentences."""
        each = [self.model(s).look(tokens, lengths, labels) for s in range(self.seeds)]
        alpha_SNK, beta_SNK, right_SN = (
            torch.cat([getattr(looked, part) for looked in each])
            for part in ("alpha", "beta", "right")
        )
        return Looked(alpha_SNK, beta_SNK, lengths, right_SN)

    def model(self, seed: int) -> RnnClassifier:
        """Return one seed's classifier, not a copy."""
        return cast(RnnClassifier, self.models[seed])


def many_classifiers(
    models: Sequence[RnnClassifier],
) -> RnnClassifierStack | RnnClassifierSequence:
    """Return what trains fastest: a stack on a GPU, a sequence on a CPU."""
    on_gpu = models[0].output.weight.is_cuda
    return RnnClassifierStack(models) if on_gpu else RnnClassifierSequence(models)


class Seq2SeqStack(nn.Module):
    """S sequence-to-sequence models of one shape; their variants may differ.

    Args:
        models: of one config but for the variant; they are copied.
    """

    def __init__(self, models: Sequence[Seq2Seq]) -> None:
        super().__init__()
        self.configs = [model.config for model in models]
        _check_alike(self.configs)
        self.config = self.configs[0]
        self.weights = stacked_parameters(models)
        self.site = Site("decoder.0.cross", self.config.heads, _attention)
        variants: list[Variant] = [config.variant for config in self.configs]
        self._attends = _prepare(self.weights, variants, ("heads.score_",))

    @property
    def seeds(self) -> int:
        """How many models there are."""
        return len(self.configs)

    def forward(
        self,
        source: Int[Tensor, "S B K"],
        target: Int[Tensor, "S B T"],
        source_lengths: Int[Tensor, "S B"] | None = None,
    ) -> Float[Tensor, "S T B V"]:
        """Return scores of each next word, time first; without lengths all positions are real."""
        hidden_SBKM, d_STBD = self._encode(source, target, source_lengths)
        return self._predict(d_STBD, self._attend(hidden_SBKM, d_STBD, source_lengths))

    def loss(
        self,
        source: Int[Tensor, "S B K"],
        target_in: Int[Tensor, "S B T"],
        target_out: Int[Tensor, "S B T"],
        source_lengths: Int[Tensor, "S B"] | None = None,
        target_lengths: Int[Tensor, "S B"] | None = None,
    ) -> Float[Tensor, " S"]:
        """Return each seed's mean cross-entropy over its real target words."""
        logits_STBV = self(source, target_in, source_lengths)
        # words in the last axis, or the softmax is slow
        loss_X = cross_entropy(
            logits_STBV.flatten(0, 2), target_out.transpose(1, 2).flatten(), reduction="none"
        )
        loss_STB = loss_X.view(logits_STBV.shape[:-1])
        if target_lengths is None:
            return loss_STB.mean((1, 2))
        real_STB = _real(target_lengths, target_in.shape[2])
        return (loss_STB * real_STB).sum((1, 2)) / target_lengths.sum(1)

    @torch.no_grad()
    def look(
        self,
        source: Int[Tensor, "B K"],
        source_lengths: Int[Tensor, " B"],
        target_in: Int[Tensor, "B T"],
        target_out: Int[Tensor, "B T"],
        target_lengths: Int[Tensor, " B"],
        *,
        head: int = 0,
    ) -> Looked:
        """Return scores and output relevance for each real target word, the same for every seed.

        Of one head, as `Seq2Seq.look` has it.
        """
        part = self.config.part_of_head(head)
        source_SBK, lengths_SB, target_SBT, out_SBT = (
            x.expand(self.seeds, *x.shape) for x in (source, source_lengths, target_in, target_out)
        )
        hidden_SBKM, d_STBD = self._encode(source_SBK, target_SBT, lengths_SB)
        query_SBTM = self._queries(d_STBD)[:, :, head] / math.sqrt(self.config.width)
        score_SBTK = query_SBTM @ hidden_SBKM.mT
        alone_SBKD = part * stacked_linear(
            hidden_SBKM,
            self.weights["heads.output_weight"][:, head],
            self.weights["heads.output_bias"][:, head],
        )
        beta_SBTK = self._relevance(alone_SBKD, d_STBD, out_SBT)
        context_STBD = self._attend(hidden_SBKM, d_STBD, lengths_SB)
        right_SBT = self._predict(d_STBD, context_STBD).argmax(-1).transpose(1, 2) == out_SBT
        real_BT = torch.arange(target_in.shape[1], device=source.device) < target_lengths[:, None]
        length_N = source_lengths[:, None].expand_as(target_in)[real_BT]
        return Looked(
            score_SBTK[:, real_BT], beta_SBTK[:, real_BT], length_N, right_SBT[:, real_BT]
        )

    def model(self, seed: int) -> Seq2Seq:
        """Return a copy of one seed's model."""
        return cast(Seq2Seq, _unstacked(Seq2Seq(self.configs[seed]), self, seed))

    def _encode(
        self, source_SBK: Tensor, target_SBT: Tensor, lengths_SB: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the encoder's hidden states (S, B, K, M) and the decoder's (S, T, B, D)."""
        both = self.config.bidirectional
        x = _read_words(self.weights["embed.weight"], source_SBK.transpose(1, 2))
        starts: list[State] = []
        for layer in range(self.config.layers):
            run = _both_ways if both else _one_way
            hidden_SKBM, last = run(
                self.weights, "encoder", layer, self._dropped(x, layer), lengths_SB
            )
            starts.append(last)
            x = hidden_SKBM
        table = "embed.weight" if self.config.shared else "embed_target.weight"
        y = _read_words(self.weights[table], target_SBT.transpose(1, 2))
        for layer, start in enumerate(starts):
            y, _ = _one_way(self.weights, "decoder", layer, self._dropped(y, layer), None, start)
        return cast(Tensor, x).transpose(1, 2).contiguous(), cast(Tensor, y)

    def _dropped(self, x: "Tensor | Words", layer: int) -> "Tensor | Words":
        """Apply dropout between layers."""
        if layer == 0 or not isinstance(x, Tensor) or not self.config.dropout:
            return x
        return dropout(x, self.config.dropout, self.training)

    def _queries(self, d_STBD: Tensor) -> Tensor:
        """Return the queries (S, B, H, T, M), times the root of the width as in `Heads`."""
        factor_S1 = self._attends[:, None] * math.sqrt(self.config.width)
        weight_SXD = self.weights["heads.score_weight"].flatten(1, 2) * factor_S1[:, None]
        bias_SX = self.weights["heads.score_bias"].flatten(1) * factor_S1
        query_SBTX = stacked_linear(d_STBD.transpose(1, 2), weight_SXD, bias_SX)
        return query_SBTX.unflatten(-1, (self.config.heads, -1)).transpose(2, 3)

    def _attend(self, hidden_SBKM: Tensor, d_STBD: Tensor, lengths_SB: Tensor | None) -> Tensor:
        """Return the summed (or averaged) outputs of the heads, (S, T, B, D)."""
        memory_X1KM = hidden_SBKM.flatten(0, 1)[:, None]
        lengths_X = None if lengths_SB is None else lengths_SB.flatten()
        query_XHTM = self._queries(d_STBD).flatten(0, 1)
        context_XHTM = self.site(query_XHTM, memory_X1KM, memory_X1KM, lengths=lengths_X)
        context_SBTX = context_XHTM.transpose(1, 2).flatten(2).unflatten(0, (self.seeds, -1))
        weight_SDX = self.weights["heads.output_weight"].transpose(1, 2).flatten(2)
        bias_SD = self.weights["heads.output_bias"].sum(1)
        out_SBTD = stacked_linear(context_SBTX, weight_SDX, bias_SD)
        if self.config.sum_heads == "mean":
            out_SBTD = out_SBTD / self.config.heads
        return out_SBTD.transpose(1, 2)

    def _predict(self, d_XD: Tensor, context_XD: Tensor) -> Tensor:
        if self.config.combine != "concat":
            add = self.config.combine == "add"
            return _layer(self.weights, "output", d_XD + context_XD if add else context_XD)
        mixed_XD = _layer(self.weights, "mix", torch.cat([d_XD, context_XD], dim=-1)).tanh()
        return _layer(self.weights, "output", mixed_XD)

    def _relevance(self, alone_SBKD: Tensor, d_STBD: Tensor, target_SBT: Tensor) -> Tensor:
        if self.config.combine != "concat":
            return output_relevance_of_each(_layer(self.weights, "output", alone_SBKD), target_SBT)
        n_target, n_source = d_STBD.shape[1], alone_SBKD.shape[2]
        d_SBTKD = d_STBD.transpose(1, 2)[:, :, :, None].expand(-1, -1, -1, n_source, -1)
        alone_SBTKD = alone_SBKD[:, :, None].expand(-1, -1, n_target, -1, -1)
        return output_relevance(self._predict(d_SBTKD, alone_SBTKD), target_SBT)


class Words(NamedTuple):
    """Words still to be looked up: what is done to each of them may be done to the table first."""

    table: Tensor  # (S, V, E)
    ids: Tensor  # (S, T, B)


def stacked_linear(
    x: Float[Tensor, "S *X I"], weight: Float[Tensor, "S O I"], bias: Float[Tensor, "S O"]
) -> Float[Tensor, "S *X O"]:
    """Apply each seed's own linear layer."""
    flat_SXI = x.flatten(1, -2)
    return torch.baddbmm(bias[:, None], flat_SXI, weight.mT).unflatten(1, x.shape[1:-1])


def _layer(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return stacked_linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _read_words(table_SVE: Tensor, ids_STB: Tensor) -> "Tensor | Words":
    """Look up embeddings; return `Words` where there are no more words than positions."""
    if table_SVE.shape[1] <= ids_STB[0].numel():
        return Words(table_SVE, ids_STB)
    return lookup(table_SVE, ids_STB)


def _input_gates(
    weights: dict[str, Tensor], lstm_name: str, suffix: str, x: "Tensor | Words"
) -> Tensor:
    weight_SGE = weights[f"{lstm_name}.weight_ih_{suffix}"]
    bias_SG = weights[f"{lstm_name}.bias_ih_{suffix}"] + weights[f"{lstm_name}.bias_hh_{suffix}"]
    if isinstance(x, Words):
        return lookup(stacked_linear(x.table, weight_SGE, bias_SG), x.ids)
    return stacked_linear(x, weight_SGE, bias_SG)


def _one_way(
    weights: dict[str, Tensor],
    lstm_name: str,
    layer: int,
    x: "Tensor | Words",
    lengths_SB: Tensor | None,
    start: State | None = None,
) -> tuple[Tensor, State]:
    gates_STBG = _input_gates(weights, lstm_name, f"l{layer}", x)
    weight_SGD = weights[f"{lstm_name}.weight_hh_l{layer}"]
    first_SB = None if lengths_SB is None else torch.zeros_like(lengths_SB)
    done = lstm(gates_STBG, weight_SGD, state=start, first=first_SB, last=lengths_SB)
    return done.hidden, State(done.h, done.c)


def _both_ways(
    weights: dict[str, Tensor],
    lstm_name: str,
    layer: int,
    x: "Tensor | Words",
    lengths_SB: Tensor | None,
) -> tuple[Tensor, State]:
    """Run both directions as 2 S recurrences; concatenate hidden states, average last states.

    The second direction reads time backwards and keeps its zero state until the sentence begins.
    """
    ahead_STBG = _input_gates(weights, lstm_name, f"l{layer}", x)
    back_STBG = _input_gates(weights, lstm_name, f"l{layer}_reverse", x)
    names = (f"{lstm_name}.weight_hh_l{layer}", f"{lstm_name}.weight_hh_l{layer}_reverse")
    first_XB = last_XB = None
    if lengths_SB is not None:
        steps = ahead_STBG.shape[1]
        first_XB = torch.cat([torch.zeros_like(lengths_SB), steps - lengths_SB])
        last_XB = torch.cat([lengths_SB, torch.full_like(lengths_SB, steps)])
    done = lstm(
        torch.cat([ahead_STBG, back_STBG.flip(1)]),
        torch.cat([weights[name] for name in names]),
        first=first_XB,
        last=last_XB,
    )
    ahead_STBD, back_STBD = done.hidden.chunk(2)
    last = State(*((x[: len(x) // 2] + x[len(x) // 2 :]) / 2 for x in (done.h, done.c)))
    return torch.cat([ahead_STBD, back_STBD.flip(1)], dim=-1), last


def _prepare(
    weights: dict[str, Tensor], variants: Sequence[Variant], scoring: tuple[str, ...]
) -> Float[Tensor, " S"]:
    """Make parameters of the tensors; 1 for each seed whose scores count, 0 for uniform ones."""
    some = next(iter(weights.values()))
    learns_S = torch.tensor([v != "frozen" for v in variants], device=some.device)
    for name, weight in weights.items():
        weight.requires_grad_()
        if not name.startswith(scoring) and "frozen" in variants:
            _stop_gradients(weight, learns_S)
    return torch.tensor([float(v != "uniform") for v in variants], device=some.device).to(some)


def _check_alike(configs: Sequence[RnnClassifierConfig] | Sequence[Seq2SeqConfig]) -> None:
    shapes = {with_fields(config, variant="normal") for config in configs}
    if len(shapes) != 1:
        raise ValueError(
            f"Models of one config but for the variant were wanted, got {len(shapes)} configs."
        )


def _stop_gradients(weight: Tensor, learns_S: Bool[Tensor, " S"]) -> None:
    keep = learns_S.view(-1, *[1] * (weight.dim() - 1))
    weight.register_hook(lambda gradient: gradient * keep)


def _unstacked(model: nn.Module, stack: RnnClassifierStack | Seq2SeqStack, seed: int) -> nn.Module:
    model.load_state_dict({name: x[seed].detach() for name, x in stack.weights.items()})
    return model.to(next(iter(stack.weights.values())).device)


def _real(lengths_SB: Tensor, steps: int) -> Tensor:
    """Return a mask (S, T, B) of real positions."""
    place_T1 = torch.arange(steps, device=lengths_SB.device)[:, None]
    return place_T1 < lengths_SB[:, None]
