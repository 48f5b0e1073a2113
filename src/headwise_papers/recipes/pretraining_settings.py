"""The settings of a pre-training."""

from dataclasses import dataclass, replace
from typing import Literal

from headwise.training.settings import FitConfig
from headwise.workflows.training_run import check_at_least
from headwise_papers.data.subword import MAX_VOCABULARY, MIN_VOCABULARY, SpecialTokenStyle
from headwise_papers.models.encoder import EncoderConfig
from headwise_papers.recipes.guiding import GuideSettings

__all__ = ["PretrainingConfig"]

MOST_IN_BATCH = 10**9  # tokens
FIT = FitConfig(
    steps=20_000,
    learning_rate=1e-4,
    warmup=1000,
    schedule="linear",
    beta2=0.999,
    epsilon=1e-8,
    compile=None,
    average=1,
    evaluate_every=500,
    checkpoint_every=1000,
)


@dataclass(frozen=True)
class PretrainingConfig:
    """Settings of `pretrain`; the defaults are a RoBERTa-base on a GPU of 80 GB.

    On a GPU the model is compiled unless `fit.compile` is false, as its batches have one shape; on
    a CPU only if it is true. Texts are read in blocks of `model.max_length` tokens.
    """

    corpus: str = "debian-docs-en"  # see headwise_papers.data.pretraining; "file" takes the next
    file: str = ""  # your own text; blank lines end documents, its last tenth is held out
    text_of: str = ""  # folder of an earlier run on the same text, whose tokens are taken
    train_documents: int = 0  # only so many documents of a part, the first ones; 0 takes all
    valid_documents: int = 0
    vocab_size: int = 0  # tokens, at most; 0: 52,000 of debian-docs-en, 8,000 of the others
    objective: Literal["mlm", "electra"] = "mlm"  # masked tokens, or replaced ones
    next_sentence: bool = False  # BERT: two segments, and whether the second follows the first
    model: EncoderConfig = EncoderConfig()  # the vocabulary and the family are filled in
    batch_size: int = 64  # blocks
    masked: float = 0.15  # share of a block's tokens that are masked, or replaced
    guide: GuideSettings = GuideSettings(alpha=30.0)  # see docs/guide.md on the weight
    fit: FitConfig = FIT

    def __post_init__(self) -> None:
        check_at_least(1, self, "batch_size")
        check_at_least(0, self, "train_documents", "valid_documents")
        if self.vocab_size and not MIN_VOCABULARY <= self.vocab_size <= MAX_VOCABULARY:
            raise ValueError(
                f"vocab_size must be {MIN_VOCABULARY} or more, a token for each byte and each "
                "special token, or 0 for as many as suit the text, and at most "
                f"{MAX_VOCABULARY:,}, got {self.vocab_size}."
            )
        if self.model.vocab:
            raise ValueError("The vocabulary is learnt; leave it out of model, set vocab_size.")
        block = self.model.max_length
        if self.batch_size * block > MOST_IN_BATCH:
            raise ValueError(
                f"A batch must have at most {MOST_IN_BATCH:,} tokens, batch_size times "
                f"model.max_length, got {self.batch_size} times {block}; make batch_size smaller."
            )
        if (self.corpus == "file") != bool(self.file):
            raise ValueError(
                "Your own text is given with --file, and without --corpus (corpus=file, file=PATH)."
            )
        if block < 8 or not 1 <= round(self.masked * block) <= block // 2:
            raise ValueError(
                "model.max_length must be at least 8, and masked choose one token to half of them, "
                f"got {block} and {self.masked}."
            )
        if self.objective == "electra" and self.next_sentence:
            raise ValueError("next_sentence goes with objective='mlm'; ELECTRA has no such loss.")
        sites = {f"encoder.{n}.self": self.model.attention for n in range(self.model.layers)}
        self.guide.check(sites, heads=self.model.heads, steps=self.fit.steps)

    @property
    def marks(self) -> SpecialTokenStyle:
        """Whose special tokens the vocabulary has."""
        return "bert" if self.next_sentence or self.objective == "electra" else "roberta"

    def shape(self, vocab: int) -> EncoderConfig:
        """Return the encoder's settings with its vocabulary and the family of the objective."""
        family = "bert" if self.next_sentence else "roberta"
        family = "electra" if self.objective == "electra" else family
        return replace(self.model, vocab=vocab).in_family(family)
