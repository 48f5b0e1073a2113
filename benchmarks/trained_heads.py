"""Queries, keys and values of a trained encoder: heads that look somewhere, unlike random numbers.

A byte-level masked language model of two layers is trained on the spot, on WikiText-2, for a few
hundred steps; the second layer's heads are handed out. Seconds on a GPU.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import SEED
from headwise.data.source import DataFile, data_folder
from headwise.models.transformer import Embedding, EncoderLayer, TransformerConfig

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
    steps: int = 300
    batch: int = 32
    length: int = 512
    positions: int = 16_384  # training texts start anywhere among them
    masked: float = 0.15
    rate: float = 5e-4
    warm_up: int = 50


class ByteEncoder(nn.Module):
    """Two layers over bytes, and a guess for every masked one."""

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
            max_length=training.positions,
        )
        self.embed = Embedding(BYTES, config)
        nn.init.normal_(self.embed.words.weight, std=model_width**-0.5)
        self.layers = nn.ModuleList(EncoderLayer(index, config) for index in range(2))
        self.norm, self.output = nn.LayerNorm(model_width), nn.Linear(model_width, BYTES)

    def forward(self, ids_BT: Tensor, *, start: int) -> Tensor:
        """Logits of every byte, (B, T, 257)."""
        x_BTM = self.embed(ids_BT, start=start)
        for layer in self.layers:
            x_BTM = _layer(layer, x_BTM)
        return self.output(self.norm(x_BTM))

    @torch.no_grad()
    def heads_of(self, ids_BT: Tensor) -> list[Tensor]:
        """q, k and v of the second layer, (B, H, T, D) each."""
        x_BTM = _layer(self.layers[0], self.embed(ids_BT))
        x_BTM = self.layers[1].add_attention.norm(x_BTM)
        attention = self.layers[1].attention
        flat = (attention.query(x_BTM), attention.key(x_BTM), attention.value(x_BTM))
        return [x.unflatten(-1, (-1, attention.head_width)).transpose(1, 2) for x in flat]


def _layer(layer: nn.Module, x_BTM: Tensor) -> Tensor:
    """As the layer's own `forward`, but with nothing masked, so that attention stays fused."""

    def attend(y_BTM: Tensor) -> Tensor:
        return layer.attention(y_BTM, layer.attention.keys_values(y_BTM))

    return layer.add_feed_forward(layer.add_attention(x_BTM, attend), layer.feed_forward)


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
    """Train the encoder on the text below HEADWISE_DATA; a ValueError says why it cannot."""
    training = training or Training()
    found = data_folder(folder, wanted="WikiText-2", origin=TEXT.origin)
    # the order of the articles is not the official one everywhere, hence no checksum
    contents = bytearray(TEXT.read(found, verify=False))
    text_N = torch.frombuffer(contents, dtype=torch.uint8).to(device)
    torch.manual_seed(SEED)
    model = ByteEncoder(training).to(device)
    loss = _train(model, text_N, training)
    return TrainedHeads(model.eval(), text_N, loss)


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
        start = int(torch.randint(training.positions - training.length + 1, (), generator=rng))
        ids_BT = text_N[begin_B.to(device)[:, None] + place_T].long()
        hidden_BT = torch.rand(ids_BT.shape, device=device) < training.masked
        with torch.autocast(device.type, torch.bfloat16):
            logits_BTV = model(ids_BT.masked_fill(hidden_BT, HIDDEN), start=start)
            loss = cross_entropy(logits_BTV[hidden_BT].float(), ids_BT[hidden_BT])
        descent.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        descent.step()
        warm.step()
        losses.append(loss.detach())
    return torch.stack(losses[-20:]).mean().item()
