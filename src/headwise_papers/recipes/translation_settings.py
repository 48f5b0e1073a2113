"""The settings with which a translator is trained."""

from dataclasses import dataclass, replace

from headwise.training import FitConfig, check_at_least
from headwise_papers.data.subword import Kind
from headwise_papers.models import TransformerConfig
from headwise_papers.recipes.guiding import GuideSettings

__all__ = ["SIZES", "TranslationConfig"]

SIZES = {
    "small": TransformerConfig.small(),
    "iwslt": TransformerConfig.iwslt(),
    "base": TransformerConfig.base(),
}


@dataclass(frozen=True)
class TranslationConfig:
    """Settings of `train_translation`; the defaults suit Multi30k on a GPU."""

    corpus: str = "multi30k"  # see headwise_papers.data.translation; "files" takes the three below
    source: str = "en"  # language to translate from
    target: str = "de"  # language to translate into
    train: tuple[str, ...] = ()  # your own: a file of sources, and one of their translations
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    train_pairs: int = 0  # only so many pairs of a part, the first ones; 0 takes all
    valid_pairs: int = 0
    test_pairs: int = 0
    vocab_size: int = 8000  # subwords that are learnt, for each side where not joint
    subwords: Kind = "unigram"  # how they are learnt
    joint: bool = True  # one vocabulary for both languages
    model: TransformerConfig = SIZES["small"]  # vocabularies are filled in
    guide: GuideSettings = GuideSettings()
    label_smoothing: float = 0.1
    batch_tokens: int = 4096  # tokens in a batch, the longer side of each pair, padding included
    beams: int = 4  # with which the test set is translated
    length_penalty: float = 0.6
    fit: FitConfig = FitConfig()

    def __post_init__(self) -> None:
        check_at_least(1, self, "vocab_size", "batch_tokens", "beams")
        check_at_least(0, self, "train_pairs", "valid_pairs", "test_pairs", "length_penalty")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}.")
        if not 1 <= self.model.max_length <= self.batch_tokens:
            raise ValueError(
                "batch_tokens must be at least model.max_length, and that at least 1, got "
                f"{self.batch_tokens} and {self.model.max_length}."
            )
        if self.model.source_vocab or self.model.target_vocab:
            raise ValueError("Vocabularies are learnt; leave them out of model, set vocab_size.")
        if self.model.share_embeddings == "all" and not self.joint:
            raise ValueError("model.share_embeddings='all' needs joint=true, one vocabulary.")
        if (self.corpus == "files") != any((self.train, self.valid, self.test)):
            raise ValueError("Files of one's own are given with corpus='files', and only then.")
        model = self.model
        causal = [f"decoder.{layer}.self" for layer in range(model.decoder_layers)]
        self.guide.check(_sites(model), heads=model.heads, steps=self.fit.steps, causal=causal)

    def shape(self, source_vocab: int, target_vocab: int) -> TransformerConfig:
        """Return the model's settings with its vocabularies."""
        shared = self.model.share_embeddings
        if shared is None:
            shared = "all" if self.joint else "target"
        return replace(
            self.model,
            source_vocab=source_vocab,
            target_vocab=target_vocab,
            share_embeddings=shared,
        )


def _sites(shape: TransformerConfig) -> dict[str, str]:
    """The attention of each site that a model of this shape has."""
    decoder = range(shape.decoder_layers)
    return (
        {f"encoder.{n}.self": shape.encoder_attention for n in range(shape.encoder_layers)}
        | {f"decoder.{n}.self": shape.decoder_attention for n in decoder}
        | {f"decoder.{n}.cross": shape.cross_attention for n in decoder}
    )
