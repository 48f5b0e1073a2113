"""The settings of a pre-training."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from headwise.training.settings import FitConfig
from headwise.workflows.training_run import TrainingSettings, check_settings
from headwise_papers.data.byte_pieces import FEWEST_PIECES, MOST_PIECES, MarkStyle
from headwise_papers.models.encoder import EncoderConfig
from headwise_papers.recipes.guiding import GuideSettings

__all__ = ["PretrainingConfig"]

MOST_IN_BATCH = 10**9  # pieces


@dataclass(frozen=True)
class PretrainingConfig(GuideSettings, TrainingSettings):
    """Settings of `pretrain`; the defaults are a RoBERTa-base on a GPU of 80 GB.

    Width, heads and feed-forward layers are those of the size unless given: 768, 12 and 3072; with
    16 layers there are 16 heads. On a GPU the model is compiled unless `compile` is false, as its
    batches have one shape; on a CPU only if it is true.
    """

    corpus: str = (
        "debian-docs-en"  # see headwise_papers.data.pretraining; "file" takes the one below
    )
    file: str = ""  # a text of one's own; blank lines end documents, its last tenth is held out
    text_of: str = ""  # folder of an earlier run on the same text, whose pieces are taken
    train_documents: int = 0  # only so many documents of a part, the first ones; 0 takes all
    valid_documents: int = 0
    vocab: int = 0  # pieces, at most; 0: 52,000 of debian-docs-en, 8,000 of the others
    objective: Literal["mlm", "electra"] = "mlm"  # hidden pieces, or replaced ones
    next_sentence: bool = False  # BERT: two segments, and whether one follows the other, beside
    size: Literal["base", "tiny"] = "base"
    layers: int = 12
    width: int | None = None
    heads: int | None = None
    feed_forward: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.1
    attention: str = "softmax"  # see headwise.ops.named
    sparse_in: Literal["both", "training"] = "both"
    block: int = 512  # pieces read together, marks included
    batch_size: int = 64  # blocks
    masked: float = 0.15  # share of a block's pieces that are to be guessed, or replaced
    alpha: float = 30.0  # weight of guidance at the start; see docs/guiding.md on what is right
    steps: int = 20_000
    learning_rate: float = 1e-4
    warmup: int = 1000
    schedule: Literal["constant", "inverse_square_root", "cosine", "linear"] = "linear"
    beta2: float = 0.999  # of AdamW, as the next
    epsilon: float = 1e-8
    compile: bool | None = None  # None: on a GPU
    average: int = 1  # the weights are the last ones; more keeps files of earlier ones
    evaluate_every: int = 500
    checkpoint_every: int = 1000

    def __post_init__(self) -> None:
        check_settings(self, "layers", "batch_size")
        for name in ("train_documents", "valid_documents"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")
        if self.vocab and not FEWEST_PIECES <= self.vocab <= MOST_PIECES:
            raise ValueError(
                f"vocab must be {FEWEST_PIECES} or more, a piece for each byte and each mark, or 0 "
                f"for as many as suit the text, and at most {MOST_PIECES:,}, got {self.vocab}."
            )
        if self.batch_size * self.block > MOST_IN_BATCH:
            raise ValueError(
                f"A batch must have at most {MOST_IN_BATCH:,} pieces, batch_size times block, got "
                f"{self.batch_size} times {self.block}; make batch_size smaller."
            )
        if (self.corpus == "file") != bool(self.file):
            raise ValueError(
                "A text of one's own is given with --file, and without --corpus (corpus=file, "
                "file=PATH)."
            )
        if self.block < 8 or not 1 <= round(self.masked * self.block) <= self.block // 2:
            raise ValueError(
                "block must be at least 8, and masked choose one piece to half of a block, got "
                f"{self.block} and {self.masked}."
            )
        if self.objective == "electra" and self.next_sentence:
            raise ValueError("next_sentence goes with objective='mlm'; ELECTRA has no such loss.")
        shape = self.shape(9)
        sites = {f"encoder.{layer}.self": self.attention for layer in range(shape.layers)}
        self.check_guidance(sites, heads=shape.heads, steps=self.steps)

    def fit_config(
        self, *, cuda: bool, replayable: bool = False, one_shape: bool = False
    ) -> FitConfig:
        """The settings that `headwise.training.fit` wants; weights are those of the last update."""
        settings = super().fit_config(cuda=cuda, replayable=replayable, one_shape=one_shape)
        return replace(settings, beta2=self.beta2, epsilon=self.epsilon, keep_best=False)

    @property
    def marks(self) -> MarkStyle:
        """Whose marks the pieces have."""
        return "bert" if self.next_sentence or self.objective == "electra" else "roberta"

    def shape(self, vocab: int) -> EncoderConfig:
        """The encoder's shape for so many pieces."""
        sizes = {"width": self.width, "heads": self.heads, "feed_forward": self.feed_forward}
        small = {"width": 64, "heads": 4, "feed_forward": 128} if self.size == "tiny" else {}
        said = {name: value for name, value in sizes.items() if value is not None}
        given: dict[str, Any] = small | said
        given |= {
            "layers": self.layers,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "attention": self.attention,
            "sparse_in": self.sparse_in,
            "max_length": self.block,
        }
        heads: dict[str, Any] = {"heads": 16} if self.layers == 16 else {}
        if self.objective == "electra":
            return EncoderConfig.electra(vocab, **(heads | given))
        if self.next_sentence:
            return EncoderConfig.bert(vocab, **(heads | given))
        return EncoderConfig.roberta(vocab, **given)
