"""A toy problem whose best answer is known: heads of known worth, and nothing else to learn."""

import torch
from torch import Tensor, nn

from headwise.ops import uniform_attention
from headwise.sites import Site


class Layer(nn.Module):
    """Heads that each say 1, through a site."""

    def __init__(self, index: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.site = Site(f"encoder.{index}.self", heads, uniform_attention)

    def forward(self, ones: Tensor) -> Tensor:
        return self.site(ones, ones, ones)[0, :, 0, 0]


class Worth(nn.Module):
    """Loss sum_h worth_h (1 - gate_h)^2: what is lost by closing a head is its worth."""

    worth: Tensor

    def __init__(self, worth_LH: Tensor) -> None:
        super().__init__()
        self.register_buffer("worth", worth_LH)
        self.idle = nn.Parameter(torch.zeros((), dtype=worth_LH.dtype))
        self.layers = nn.ModuleList(Layer(i, worth_LH.shape[1]) for i in range(len(worth_LH)))

    def forward(self) -> Tensor:
        ones = self.worth.new_ones(1, self.worth.shape[1], 1, 1)
        said_LH = torch.stack([layer(ones) for layer in self.layers])
        return (self.worth * (1 - said_LH).square()).sum()

    def best(self, count: int) -> dict[str, list[int]]:
        """The heads of the largest worth."""
        top = set(self.worth.flatten().topk(count).indices.tolist())
        width = self.worth.shape[1]
        return {
            layer.site.name: [h for h in range(width) if i * width + h in top]
            for i, layer in enumerate(self.layers)
        }
