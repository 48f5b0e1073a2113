"""Queries, keys and values of a trained encoder: heads that look somewhere, unlike random numbers.

A byte-level masked language model of two layers is trained on the spot, on WikiText-2; the second
layer's heads are handed out. Seconds on a GPU. Positions are rotations of q and k (Su et al.,
2021): a small encoder that adds sinusoids to its bytes instead hardly knows after 800 steps more
than how common they are, and one that rotates knows its neighbours after 250. An encoder that has
learned nothing is refused.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks import SEED
from headwise_papers.data.source import DataFile, data_folder
from headwise_papers.models.transformer import EncoderLayer, TransformerConfig

TEXT = DataFile(
    "wikitext-2/train.txt",
    sha256="728c77e87e176af4730f9a80fc6008bcaff421a7202c1c048877c0eec3685f89",
    origin="the public WikiText-2 with its articles in any order",
)
HIDDEN = 256  # what stands where a byte is masked
BYTES = 257


@dataclass(frozen=True)
class Training:
    """How the encoder is made."""

    heads: int = 16
    width: int = 64  # of a head
    steps: int = 1000
    batch: int = 32
    length: int = 512
    positions: int = 16_384  # of the longest text that is read
    masked: float = 0.15
    rate: float = 1e-3
    warm_up: int = 100
    enough: float = math.inf  # its loss, as a share of the entropy of single bytes, at the most


RECIPE = Training(enough=0.75)


class ByteEncoder(nn.Module):
    """Two layers over bytes, and a guess for every masked one."""

    turns_TD: Tensor

    def __init__(self, training: Training) -> None:
        super().__init__()
        model_width = training.heads * training.width
        config = TransformerConfig(
            BYTES,
            BYTES,
            width=model_width,
            heads=training.heads,
            feed_forward=2 * model_width,
            dropout=0.0,
        )
        self.embed = nn.Embedding(BYTES, model_width)
        self.layers = nn.ModuleList(EncoderLayer(index, config) for index in range(2))
        self.norm, self.output = nn.LayerNorm(model_width), nn.Linear(model_width, BYTES)
        turns_TD = _turns(training.positions, training.width // 2)
        self.register_buffer("turns_TD", turns_TD, persistent=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits of every byte, (B, T, 257)."""
        x_BTM = self.embed(ids_BT)
        for layer in self.layers:
            x_BTM = self._layer(layer, x_BTM)
        return self.output(self.norm(x_BTM))

    @torch.no_grad()
    def heads_of(self, ids_BT: Tensor) -> list[Tensor]:
        """q, k and v of the second layer, (B, H, T, D) each, as they are compared."""
        x_BTM = self._layer(self.layers[0], self.embed(ids_BT))
        return self._heads(self.layers[1].attention, self.layers[1].add_attention.norm(x_BTM))

    def _layer(self, layer: nn.Module, x_BTM: Tensor) -> Tensor:
        def attend(y_BTM: Tensor) -> Tensor:
            out_BHTD = sdpa(*self._heads(layer.attention, y_BTM))
            return layer.attention.out(out_BHTD.transpose(1, 2).flatten(2))

        return layer.add_feed_forward(layer.add_attention(x_BTM, attend), layer.feed_forward)

    def _heads(self, attention: nn.Module, x_BTM: Tensor) -> list[Tensor]:
        flat = (attention.query(x_BTM), attention.key(x_BTM), attention.value(x_BTM))
        q, k, v = (x.unflatten(-1, (-1, attention.head_width)).transpose(1, 2) for x in flat)
        turns_TD = self.turns_TD[: x_BTM.shape[1]]
        return [_turned(q, turns_TD), _turned(k, turns_TD), v]


def _turns(positions: int, pairs: int) -> Tensor:
    """The angle of every pair of numbers at every position: from 1 a position down to 1/10,000."""
    speed_D = 10_000.0 ** -(torch.arange(pairs) / pairs)
    return torch.arange(positions)[:, None] * speed_D


def _turned(x_BHTD: Tensor, turns_TD: Tensor) -> Tensor:
    """Numbers of the first half are paired with those of the second."""
    cos_TD, sin_TD = turns_TD.cos(), turns_TD.sin()
    first, second = x_BHTD.chunk(2, dim=-1)
    turned = (first * cos_TD - second * sin_TD, first * sin_TD + second * cos_TD)
    return torch.cat(turned, dim=-1).type_as(x_BHTD)


@dataclass(frozen=True)
class TrainedHeads:
    """A trained encoder and the text it reads."""

    model: ByteEncoder
    text_N: Tensor
    loss: float  # at the end of training, nats a masked byte

    def inputs(self, batch: int, length: int, dtype: torch.dtype) -> list[Tensor]:
        """q, k and v of so many stretches of text, in the dtype asked for."""
        where = torch.linspace(0, len(self.text_N) - length, batch).long().tolist()
        ids_BT = torch.stack([self.text_N[start : start + length] for start in where])
        return [x.to(dtype).contiguous() for x in self.model.heads_of(ids_BT.long())]


def train_heads(
    device: torch.device, *, folder: Path | None = None, training: Training | None = None
) -> TrainedHeads:
    """Train the encoder on the text below HEADWISE_DATA; a ValueError says why it cannot.

    Args:
        device: where.
        folder: instead of the one that HEADWISE_DATA names.
        training: how, RECIPE unless given.
    """
    training = training or RECIPE
    found = data_folder(folder, wanted="WikiText-2", origin=TEXT.origin)
    # the order of the articles is not the official one everywhere, hence no checksum
    contents = bytearray(TEXT.read(found, verify=False))
    text_N = torch.frombuffer(contents, dtype=torch.uint8).to(device)
    torch.manual_seed(SEED)
    model = ByteEncoder(training).to(device)
    loss = _train(model, text_N, training)
    _check_learned(loss, text_N, enough=training.enough)
    return TrainedHeads(model.eval(), text_N, loss)


def byte_entropy(text_N: Tensor) -> float:
    """What guessing bytes by how common they are costs, in nats a byte.

    >>> round(byte_entropy(torch.tensor([7, 7, 9, 9], dtype=torch.uint8)), 4)
    0.6931
    """
    share_V = torch.bincount(text_N.int(), minlength=BYTES).double() / len(text_N)
    return torch.special.entr(share_V).sum().item()


def _check_learned(loss: float, text_N: Tensor, *, enough: float) -> None:
    alone = byte_entropy(text_N)
    if not loss <= enough * alone:
        raise ValueError(
            f"The encoder should lose at most {enough:g} of the entropy of single bytes, which is "
            f"{alone:.3f} nats, but lost {loss:.3f}: its heads have learned too little to stand "
            "for trained ones; train it for more steps."
        )


def _train(model: ByteEncoder, text_N: Tensor, training: Training) -> float:
    device = text_N.device
    descent = torch.optim.AdamW(model.parameters(), lr=training.rate)
    warm = torch.optim.lr_scheduler.LambdaLR(
        descent, lambda step: min(1.0, (step + 1) / training.warm_up)
    )
    rng = torch.Generator().manual_seed(SEED)
    place_T = torch.arange(training.length, device=device)
    losses: list[Tensor] = []
    for _ in range(training.steps):
        begin_B = torch.randint(len(text_N) - training.length, (training.batch,), generator=rng)
        ids_BT = text_N[begin_B.to(device)[:, None] + place_T].long()
        hidden_BT = torch.rand(ids_BT.shape, device=device) < training.masked
        with torch.autocast(device.type, torch.bfloat16):
            logits_BTV = model(ids_BT.masked_fill(hidden_BT, HIDDEN))
            loss = cross_entropy(logits_BTV[hidden_BT].float(), ids_BT[hidden_BT])
        descent.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        descent.step()
        warm.step()
        losses.append(loss.detach())
    return torch.stack(losses[-20:]).mean().item()
