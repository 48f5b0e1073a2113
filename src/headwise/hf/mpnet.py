"""MPNet's attention at sites."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.mpnet import modeling_mpnet

from headwise.hf.adapters import Adapter
from headwise.hf.interface import attend_in_adapter


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
            _attend,
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


def _attend(
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
