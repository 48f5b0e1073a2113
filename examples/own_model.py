"""Give a model of your own a site: then every tool works on it.

    python examples/own_model.py

All it takes is an attribute `site` on the attention module, and a call of it in `forward`.
"""

import torch
from torch import Tensor, nn

import headwise as hw


class Attention(nn.Module):
    """Self-attention whose heads are computed at a site."""

    def __init__(self, width: int, heads: int, name: str) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads
        self.site = hw.Site(name, heads, hw.softmax_attention)

    def forward(self, x: Tensor) -> Tensor:
        split = self.project(x).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, H, D)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        out = self.site(q, k, v, causal=True)  # (B, H, T, D)
        return self.out(out.transpose(1, 2).flatten(2))


class Tower(nn.Module):
    """Three layers of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(64, 4, f"decoder.{i}.self") for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


model, x = Tower(), torch.randn(2, 16, 64)
print("sites:", *(site.name for site in hw.find_sites(model)))

seen: dict[str, Tensor] = {}
with torch.no_grad():
    with hw.observe(model, lambda site, attended: seen.update({site.name: attended.entropy})):
        whole = model(x)
    with hw.masked(model, {"decoder.1.self": [0, 3]}):
        print(f"two heads off: outputs move by {(model(x) - whole).norm() / whole.norm():.1%}")
    with hw.replace(model, hw.sparsemax_attention, where="decoder.2.*"):
        print(f"sparsemax in layer 2: by {(model(x) - whole).norm() / whole.norm():.1%}")
print(hw.HeadTable.of({"entropy": {name: e.mean(dim=(0, 2)) for name, e in seen.items()}}))
