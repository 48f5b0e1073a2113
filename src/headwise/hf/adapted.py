"""Adapters of attention modules that do not ask transformers' attention interface."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.mpnet import modeling_mpnet

from headwise.hf.interface import attend_in_adapter
from headwise.hf.naming import Adapter


class MPNetSelfAttention(Adapter, modeling_mpnet.MPNetSelfAttention):
    """MPNet's self-attention, which adds a bias for each distance to its scores."""

    host = modeling_mpnet.MPNetSelfAttention
    # fmt: off
    reads = frozenset([
        "shape", "attention_head_size", "q", "view", "transpose", "k", "v", "torch", "matmul",
        "math", "sqrt", "nn", "functional", "softmax", "dropout", "permute", "contiguous", "size",
        "all_head_size", "o",
    ])
    # fmt: on

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **others: Any,
    ) -> tuple[Tensor] | tuple[Tensor, Tensor | None]:
        """Compute what MPNet computes, at the site if anything is in effect there."""
        self.site.mark_called()
        if not self.site.changes:
            return super().forward(
                hidden_states, attention_mask, position_bias, output_attentions, **others
            )
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        q_BHTD, k_BHTD, v_BHTD = (
            project(hidden_states).view(shape).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        out_BTHD, weights_BHQK = attend_in_adapter(
            self,
            _attend_mpnet,
            q_BHTD,
            k_BHTD,
            v_BHTD,
            attention_mask,
            scaling=self.attention_head_size**-0.5,
            dropout=self.dropout.p if self.training else 0.0,
            position_bias=position_bias,
            output_attentions=output_attentions,
        )
        out_BTM = self.o(out_BTHD.flatten(2))
        return (out_BTM, weights_BHQK) if output_attentions else (out_BTM,)


def _attend_mpnet(
    module: MPNetSelfAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    position_bias: Tensor | None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attend with MPNet's operations in MPNet's order, so that no bit differs."""
    scores_BHQK = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
    for added in (position_bias, attention_mask):
        if added is not None:
            scores_BHQK = scores_BHQK + added
    weights_BHQK = module.dropout(nn.functional.softmax(scores_BHQK, dim=-1))
    return torch.matmul(weights_BHQK, value).transpose(1, 2).contiguous(), weights_BHQK


class DisentangledSelfAttention(Adapter, modeling_deberta_v2.DisentangledSelfAttention):
    """DeBERTa-v2's self-attention: scores of contents, with scores of positions as their bias.

    The bias differs for each item, head, query and key, and gradients flow through it. A padded
    query may attend to nothing: the host gives it the mean of all values, other ops give zeros.
    """

    host = modeling_deberta_v2.DisentangledSelfAttention
    # fmt: off
    reads = frozenset([
        "transpose_for_scores", "query_proj", "num_attention_heads", "key_proj", "value_proj",
        "pos_att_type", "scaled_size_sqrt", "torch", "bmm", "transpose", "to", "dtype",
        "relative_attention", "pos_dropout", "disentangled_attention_bias", "view", "size", "bool",
        "masked_fill", "finfo", "min", "nn", "functional", "softmax", "dropout", "permute",
        "contiguous",
    ])
    # fmt: on

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute what DeBERTa computes, at the site if anything is in effect there."""
        self.site.mark_called()
        if not self.site.changes:
            return super().forward(
                hidden_states,
                attention_mask,
                output_attentions,
                query_states,
                relative_pos,
                rel_embeddings,
            )
        asking = hidden_states if query_states is None else query_states
        q_ND, k_ND, v_ND = (
            self.transpose_for_scores(project(states), self.num_attention_heads)
            for project, states in (
                (self.query_proj, asking),
                (self.key_proj, hidden_states),
                (self.value_proj, hidden_states),
            )
        )
        terms = 1 + sum(kind in self.pos_att_type for kind in ("c2p", "p2c"))
        out_BTHD, weights_BHQK = attend_in_adapter(
            self,
            _attend_deberta,
            self._by_head(q_ND),
            self._by_head(k_ND),
            self._by_head(v_ND),
            attention_mask.bool(),
            scaling=1 / math.sqrt(q_ND.shape[-1] * terms),
            dropout=self.dropout.p if self.training else 0.0,
            position_bias=self._bias(q_ND, k_ND, relative_pos, rel_embeddings, terms),
            output_attentions=output_attentions,
            terms=terms,
        )
        return out_BTHD.flatten(2), weights_BHQK if output_attentions else None

    def _bias(
        self,
        q_ND: Tensor,
        k_ND: Tensor,
        relative_pos: Tensor | None,
        rel_embeddings: Tensor | None,
        terms: int,
    ) -> Tensor | None:
        """Compute the scores of positions, if the model has any."""
        if not self.relative_attention:
            return None
        distances = self.pos_dropout(rel_embeddings)
        bias = self.disentangled_attention_bias(q_ND, k_ND, relative_pos, distances, terms)
        return self._by_head(bias) if isinstance(bias, Tensor) else None  # 0 without terms

    def _by_head(self, joined: Tensor) -> Tensor:
        """View items and heads, which the host has in one axis, as two."""
        return joined.unflatten(0, (-1, self.num_attention_heads))


def _attend_deberta(
    module: DisentangledSelfAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    position_bias: Tensor | None,
    terms: int,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attend with DeBERTa's operations in DeBERTa's order, so that no bit differs."""
    scale = modeling_deberta_v2.scaled_size_sqrt(query, terms).to(dtype=query.dtype)
    # items and heads in one axis, as the host has them: a product of four axes may add otherwise
    keys = key.flatten(0, 1).transpose(-1, -2) / scale
    scores_BHQK = torch.bmm(query.flatten(0, 1), keys).unflatten(0, query.shape[:2])
    if position_bias is not None:
        scores_BHQK = scores_BHQK + position_bias
    scores_BHQK = scores_BHQK.masked_fill(~attention_mask, torch.finfo(query.dtype).min)
    weights_BHQK = module.dropout(nn.functional.softmax(scores_BHQK, dim=-1))
    out_ND = torch.bmm(weights_BHQK.flatten(0, 1), value.flatten(0, 1))
    return out_ND.unflatten(0, query.shape[:2]).transpose(1, 2).contiguous(), weights_BHQK
