"""The settings with which a translator is trained."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from headwise.workflows.training_run import TrainingSettings, check_settings
from headwise_papers.data.subword import Kind
from headwise_papers.models import TransformerConfig
from headwise_papers.recipes.guiding import GuideSettings

__all__ = ["TranslationConfig"]

# settings that `TransformerConfig` has by the same name
OF_THE_MODEL = (
    *("width", "heads", "feed_forward", "dropout", "attention_dropout", "feed_forward_dropout"),
    *("norm", "max_length", "encoder_attention", "decoder_attention", "cross_attention"),
    "sparse_in",
)


@dataclass(frozen=True)
class TranslationConfig(GuideSettings, TrainingSettings):
    """Settings of `train_translation`; the defaults suit Multi30k on a GPU.

    `width`, `heads`, `layers`, `feed_forward` and `dropout` are those of the size unless given.
    """

    corpus: str = "multi30k"  # see headwise_papers.data.translation; "files" takes the three below
    source: str = "en"  # language to translate from
    target: str = "de"  # language to translate into
    train: tuple[str, ...] = ()  # of one's own: a file of sources, and one of their translations
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    train_pairs: int = 0  # only so many pairs of a part, the first ones; 0 takes all
    valid_pairs: int = 0
    test_pairs: int = 0
    pieces: int = 8000  # how many pieces of words are learnt, of each side where not joint
    kind: Kind = "unigram"  # how they are learnt
    joint: bool = True  # one set of pieces for both languages
    size: Literal["small", "iwslt", "base"] = "small"
    width: int | None = None
    heads: int | None = None
    layers: int | None = None  # in encoder and decoder alike
    feed_forward: int | None = None
    dropout: float | None = None  # of embeddings and of what each layer adds
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    norm: Literal["pre", "post"] = "pre"
    share_embeddings: Literal["all", "target", "none"] | None = None  # None: all, if joint
    max_length: int = 256  # pieces of the longest sentence, marks included
    encoder_attention: str = "softmax"  # see headwise.ops.named
    decoder_attention: str = "softmax"
    cross_attention: str = "softmax"
    sparse_in: Literal["both", "training"] = "both"
    alpha: float = 1.0  # weight of guidance at the start, for sentences of tens of pieces
    label_smoothing: float = 0.1
    tokens: int = 4096  # pieces in a batch, the longer side of each pair, padding included
    beams: int = 4  # with which the test set is translated
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        check_settings(self, "pieces", "tokens", "beams", "max_length")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}.")
        if self.tokens < self.max_length:
            raise ValueError(
                f"tokens must be at least max_length, got {self.tokens} and {self.max_length}."
            )
        for name in ("train_pairs", "valid_pairs", "test_pairs", "length_penalty"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")
        if (self.corpus == "files") != any((self.train, self.valid, self.test)):
            raise ValueError("Files of one's own are given with corpus='files', and only then.")
        shape = self.shape(9, 9)
        causal = [f"decoder.{layer}.self" for layer in range(shape.decoder_layers)]
        self.check_guidance(_sites(shape), heads=shape.heads, steps=self.steps, causal=causal)

    def shape(self, source_vocab: int, target_vocab: int) -> TransformerConfig:
        """The model's shape for so many pieces."""
        changes: dict[str, Any] = {name: getattr(self, name) for name in OF_THE_MODEL}
        changes |= {"encoder_layers": self.layers, "decoder_layers": self.layers}
        changes["share_embeddings"] = self.share_embeddings or ("all" if self.joint else "target")
        given = {name: value for name, value in changes.items() if value is not None}
        sized: Callable[..., TransformerConfig] = getattr(TransformerConfig, self.size)
        return sized(source_vocab, target_vocab, **given)


def _sites(shape: TransformerConfig) -> dict[str, str]:
    """The attention of each site that a model of this shape has."""
    decoder = range(shape.decoder_layers)
    return (
        {f"encoder.{n}.self": shape.encoder_attention for n in range(shape.encoder_layers)}
        | {f"decoder.{n}.self": shape.decoder_attention for n in decoder}
        | {f"decoder.{n}.cross": shape.cross_attention for n in decoder}
    )
