"""What heads of an encoder look at while it is pre-trained: weights on patterns, and maps."""

from functools import cache

import torch
from torch import Tensor

from headwise.guidance import pattern
from headwise.recording import Run
from headwise_papers.attention_guidance._maps import attention_maps, weight_on_patterns
from headwise_papers.attention_guidance._moments import PretrainingMoments
from headwise_papers.data.pretraining import read_pretraining
from headwise_papers.data.subword import ByteLevelCodec
from headwise_papers.models.encoder import Encoder

__all__ = ["STATIC", "look"]

TEXT = "Welcome to EMNLP."
STATIC = ("next", "prev", "first")


def look(run: Run, moments: PretrainingMoments, file: str, *, lines: int, longest: int) -> None:
    """Write the weights on patterns of an encoder, and its maps of one text.

    Args:
        run: gets `file`.json and `file`.safetensors.
        moments: the encoder.
        file: a name without its end.
        lines: of the validation part, that weights are measured on.
        longest: tokens of a line.
    """
    pieces = moments.pieces
    held_out = _held_out(str(moments.run.config()["corpus"]))[:lines]
    numbered = [_marked(pieces, ids[: longest - 2]) for ids in pieces.encode_all(held_out)]
    text = _marked(pieces, pieces.encode(TEXT))
    weights: dict[str, float] = {}
    maps: dict[str, Tensor] = {}
    for share, encoder in moments.encoders():
        maps[str(share)] = attention_maps(encoder, text)
        for name, value in _weights(encoder, numbered).items():
            weights[f"{share} %: weight on {name}"] = value
    run.save_tensors(f"{file}.safetensors", maps)
    tokens = [pieces.piece(number).replace("Ġ", "") for number in text]
    run.write_json(f"{file}.json", {"weights": weights, "tokens": tokens})


def _weights(encoder: Encoder, lines: list[list[int]]) -> dict[str, float]:
    """The weight on each pattern of the best head of each layer, mean over layers."""
    aims = {name: pattern(name) for name in STATIC}
    found = [weight_on_patterns(attention_maps(encoder, ids), ids, aims) for ids in lines]
    return {
        name: float(torch.stack([line[name] for line in found]).mean(0).amax(dim=1).mean())
        for name in aims
    }


@cache
def _held_out(corpus: str) -> list[str]:
    return [line for document in read_pretraining(corpus).valid for line in document]


def _marked(pieces: ByteLevelCodec, ids: list[int]) -> list[int]:
    return [pieces.begin, *ids, pieces.end]
