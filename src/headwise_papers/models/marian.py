"""Translators of Marian, as Bergamot and Firefox ship them, with sites.

The encoder is a post-norm Transformer's. Layers of the decoder attend to the source, but not to
themselves: a simpler simple recurrent unit (SSRU; Kim et al., 2019) takes that place.

    f_t = sigmoid(x_t Wf + bf)
    c_t = f_t c_{t-1} + (1 - f_t) x_t W
    y_t = norm(x_t + relu(c_t))
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise_papers.data.marian import MarianCodec, MarianFile, read_marian
from headwise_papers.data.vocabulary import EOS
from headwise_papers.models.cache import Cache, FixedCache, KeysValues
from headwise_papers.models.transformer import DecoderLayer, Transformer, TransformerConfig

__all__ = ["MarianTransformer", "load_marian"]

MAX_LENGTH = 512  # Marian has no limit
EPSILON = 1e-6  # of Marian's layer norms
NEVER = -1e4  # logit of tokens that Marian does not have
REQUIRED = {  # settings that decide what is computed: what this model can do
    "type": "transformer",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-top": "",
    "transformer-postprocess-emb": "d",
    "transformer-decoder-autoreg": "rnn",
    "dec-cell": "ssru",
    "transformer-ffn-activation": "relu",
    "transformer-ffn-depth": "2",
    "transformer-no-projection": "false",
    "transformer-train-position-embeddings": "false",
    "transformer-tied-layers": "[]",
    "lemma-dim-emb": "0",
    "ulr": "false",
}
LAYER = re.compile(r"(encoder|decoder)_l(\d+)_(.+)")
PARTS = {  # Marian's names within a layer, and ours
    "self_W": "attention",
    "self_b": "attention",
    "context_W": "cross",
    "context_b": "cross",
}
PROJECTIONS = {"q": "query", "k": "key", "v": "value", "o": "out"}
OTHERS = {
    "self_Wo_ln_scale": "add_attention.norm.weight",
    "self_Wo_ln_bias": "add_attention.norm.bias",
    "context_Wo_ln_scale": "add_cross.norm.weight",
    "context_Wo_ln_bias": "add_cross.norm.bias",
    "ffn_W1": "feed_forward.0.weight",
    "ffn_b1": "feed_forward.0.bias",
    "ffn_W2": "feed_forward.3.weight",
    "ffn_b2": "feed_forward.3.bias",
    "ffn_ffn_ln_scale": "add_feed_forward.norm.weight",
    "ffn_ffn_ln_bias": "add_feed_forward.norm.bias",
    "rnn_W": "recurrence.new.weight",
    "rnn_Wf": "recurrence.keep.weight",
    "rnn_bf": "recurrence.keep.bias",
    "rnn_ffn_ln_scale": "add_attention.norm.weight",
    "rnn_ffn_ln_bias": "add_attention.norm.bias",
}


class MarianTransformer(Transformer):
    """A translator of Marian. Sites are named `encoder.0.self` and `decoder.0.cross`.

    The beginning token is a zero vector, as in Marian.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.decoder = nn.ModuleList(
            RecurrentLayer(i, config) for i in range(config.decoder_layers)
        )
        self.read_out = nn.Linear(config.width, config.target_vocab)
        self.read_out.weight = self.embed_target.words.weight
        for embedding in (self.embed_source, self.embed_target):
            embedding.positions = marian_positions(config.max_length, config.width)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = EPSILON

    @property
    def fixed_room(self) -> int:
        """Return 0: a step of decoding cannot be replayed as a CUDA graph."""
        return 0


class RecurrentLayer(DecoderLayer):
    """An SSRU, attention to the source, and feed-forward."""

    def __init__(self, index: int, config: TransformerConfig) -> None:
        super().__init__(index, config)
        del self.attention
        self.recurrence = Recurrence(f"decoder.{index}.recurrence", config.width)

    def _attend(self, x_BTM: Tensor, *, cache: Cache | FixedCache | None) -> Tensor:
        return self.recurrence(x_BTM, cache)


class Recurrence(nn.Module):
    """A simpler simple recurrent unit, whose state starts at 0."""

    def __init__(self, name: str, width: int) -> None:
        super().__init__()
        self.name = name  # of its state in a cache
        self.new, self.keep = nn.Linear(width, width, bias=False), nn.Linear(width, width)

    def forward(
        self, x: Float[Tensor, "B T M"], cache: Cache | FixedCache | None = None
    ) -> Float[Tensor, "B T M"]:
        new_BTM, keep_BTM = self.new(x), self.keep(x).sigmoid()
        added_BTM = (1 - keep_BTM) * new_BTM
        state_BM = self._before(cache, x)
        states: list[Tensor] = []
        for keep_BM, added_BM in zip(keep_BTM.unbind(1), added_BTM.unbind(1), strict=True):
            state_BM = added_BM if state_BM is None else keep_BM * state_BM + added_BM
            states.append(state_BM)
        if cache is not None:
            held_B11M = states[-1][:, None, None]
            cache.known[self.name] = KeysValues(held_B11M, held_B11M)
        return torch.stack(states, dim=1).relu()

    def _before(self, cache: Cache | FixedCache | None, x_BTM: Tensor) -> Tensor | None:
        if cache is None or self.name not in cache.known:
            return None
        return cache.known[self.name].k[:, 0, 0]


def marian_positions(length: int, width: int) -> Float[Tensor, "T M"]:
    """Return Marian's sinusoids, whose last wavelength is exactly 10000 times the first.

    >>> marian_positions(2, 4)[1]
    tensor([8.4147e-01, 1.0000e-04, 5.4030e-01, 1.0000e+00])
    """
    half = width // 2
    rate_M = 10_000 ** (-torch.arange(half, dtype=torch.float64) / max(1, half - 1))
    angle_TM = torch.arange(length)[:, None] * rate_M
    return torch.cat([angle_TM.sin(), angle_TM.cos()], dim=-1).float()


def load_marian(path: Path) -> MarianTransformer:
    """Load the translator of a model file of Marian, in eval mode.

    Args:
        path: see `headwise_papers.data.marian.read_marian`.
    """
    file = read_marian(path)
    try:
        model = MarianTransformer(_config(file))
        model.load_state_dict(_state(file), strict=True)
    except (RuntimeError, KeyError) as problem:
        said = str(problem).splitlines()[-1].strip()
        raise ValueError(
            f"The weights of {path.name} do not fit its settings: {said}; get it again."
        ) from None
    return model.eval()


def _config(file: MarianFile) -> TransformerConfig:
    for name, wanted in REQUIRED.items():
        found = file.settings.get(name, wanted)
        if found != wanted:
            raise ValueError(
                f"A model of Marian with {name}: {wanted!r} was wanted, got {found!r}; give one of "
                "Bergamot's."
            )
    source, target = _embeddings(file.tensors)
    inner = file.tensors["encoder_l1_ffn_W1"].shape[1]
    return TransformerConfig(
        len(source),
        len(target),
        width=source.shape[1],
        heads=_whole(file.settings, "transformer-heads"),
        encoder_layers=_layers(file, "encoder"),
        decoder_layers=_layers(file, "decoder"),
        feed_forward=inner,
        dropout=0.0,
        norm="post",
        max_length=MAX_LENGTH,
        share_embeddings="all" if "Wemb" in file.tensors else "target",
    )


def _layers(file: MarianFile, stack: str) -> int:
    """Return how many layers there are, if that is what the settings say."""
    said = _whole(file.settings, f"{stack[:3]}-depth")
    names = [found.groups() for name in file.tensors if (found := LAYER.fullmatch(name))]
    held = {int(number) for of, number, _ in names if of == stack}
    if held != set(range(1, min(said, len(file.tensors)) + 1)) or len(held) != said:
        raise ValueError(
            f"The settings speak of {said} layers of the {stack}, but the file has {len(held)}; "
            "get it again."
        )
    return said


def _whole(settings: Mapping[str, str], name: str) -> int:
    found = settings.get(name, "")
    if not found.isdecimal():
        raise ValueError(f"The setting {name} must be a whole number, got {found!r}.")
    return int(found)


def _embeddings(tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the tables of source and target, with zeros for the tokens Marian does not have."""
    if "Wemb" in tensors:
        both = _with_specials(tensors["Wemb"])
        return both, both
    if "decoder_ff_logit_out_W" in tensors:
        raise ValueError(
            "A model of Marian whose output layer shares the embeddings was wanted, but this one "
            "has an output layer of its own; give one of Bergamot's."
        )
    return _with_specials(tensors["encoder_Wemb"]), _with_specials(tensors["decoder_Wemb"])


def _with_specials(table_VM: Tensor) -> Tensor:
    return torch.cat([table_VM.new_zeros(MarianCodec.shift, table_VM.shape[1]), table_VM])


def _state(file: MarianFile) -> dict[str, Tensor]:
    source, target = _embeddings(file.tensors)
    bias_V = torch.full((len(target),), NEVER)
    given = file.tensors.get("decoder_ff_logit_out_b")
    bias_V[EOS:] = 0 if given is None else given.flatten()
    state = {
        "embed_source.words.weight": source,
        "embed_target.words.weight": target,
        "read_out.weight": target,
        "read_out.bias": bias_V,
    }
    for name, tensor in file.tensors.items():
        if found := LAYER.fullmatch(name):
            stack, number, part = found.groups()
            # nn.Linear keeps (outputs, inputs); Marian's vectors have one row
            held = tensor.flatten() if tensor.shape[0] == 1 else tensor.T.contiguous()
            state[f"{stack}.{int(number) - 1}.{_name(part)}"] = held
    return state


def _name(part: str) -> str:
    """Return our name of a weight within a layer.

    >>> _name("self_Wq"), _name("context_bo"), _name("ffn_W1")
    ('attention.query.weight', 'cross.out.bias', 'feed_forward.0.weight')
    """
    if part in OTHERS:
        return OTHERS[part]
    front, letter = part[:-1], part[-1:]
    if front not in PARTS or letter not in PROJECTIONS:
        raise KeyError(f"nothing is known of {part}")
    end = "weight" if front.endswith("W") else "bias"
    return f"{PARTS[front]}.{PROJECTIONS[letter]}.{end}"
