"""Fine-tuning data: settings, tasks, splits, and the model that a training starts from."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from headwise.config import suggestion
from headwise.recording import Run
from headwise.training import FitConfig, check_at_least
from headwise.workflows.inspect import HuggingFaceSubject, load_model, load_tokenizer, opened
from headwise_papers.data.subword import (
    MAX_VOCABULARY,
    MIN_VOCABULARY,
    ByteLevelCodec,
    train_byte_level,
)
from headwise_papers.data.tasks import (
    TAGGING_SETS,
    TEXT_TASKS,
    TaggedTask,
    TextTask,
    in_checksum_order,
    read_tagged_files,
    read_tagged_task,
    read_text_files,
    read_text_task,
)
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.models.encoder_heads import (
    MaskedLMWithNextSentence,
    SequenceClassifier,
    TokenClassifier,
)
from headwise_papers.recipes.classifier import Reads, TruncatingTokenizer
from headwise_papers.recipes.pretraining import load_pretrained
from headwise_papers.recipes.pretraining_data import TOKENIZER, PretrainingModel

Task = TextTask | TaggedTask

NO_MODEL = "none"
# updates between checkpoints at least, as each is written with the state of the optimiser
CHECKPOINT_EVERY = {"cpu": 500, "cuda": 2000}
SHORTEST = 8  # tokens of a text: a pair has four special ones, and some of both must be left
DERIVED = ("steps", "warmup", "evaluate_every", "checkpoint_every", "seed")
FIT = FitConfig(
    learning_rate=3e-5,
    schedule="linear",
    epsilon=1e-6,
    weight_decay=0.01,  # of all weights; others leave out biases and norms
    average=1,
    patience=3,
)


@dataclass(frozen=True)
class FinetuningConfig:
    """Settings of `finetune`: the task, the start, and the training."""

    task: str = "rte"  # see headwise_papers.data.tasks and tagging; "files": the next three
    train: str = ""  # label TAB text, or label TAB text TAB text; a .conll file holds tagged words
    dev: str = ""
    test: str = ""
    train_examples: int = 0  # number of examples of a part; 0: all
    dev_examples: int = 0
    test_examples: int = 0
    model: str = NO_MODEL  # folder of a pre-training run or a Hugging Face model; "none": random
    fresh_weights: bool = False  # use shape and tokenizer of the model, with random weights
    vocab_size: int = 8000  # tokens; with model=none, as the next
    encoder: EncoderConfig = EncoderConfig()  # the vocabulary and max_length are filled in
    length: int = 128  # tokens of a text at most, special tokens included; 8 or more
    seeds: tuple[int, ...] = (0, 1, 2)  # one training each
    # of cross-validation over all parts, one training each; 0 keeps the published parts. With
    # model=none all folds share the tokenizer, which is learned from the published training texts
    folds: int = 0
    epochs: int = 10  # at most
    batch_size: int = 32
    warmup_share: float = 0.06  # of all updates, those in which the learning rate rises
    evaluations: int = 1  # on dev, per epoch
    keep: Literal["first", "all", "none"] = "first"  # the trainings whose weights are kept
    # steps, warmup and how often to evaluate follow from epochs, warmup_share and evaluations
    fit: FitConfig = FIT

    def __post_init__(self) -> None:
        check_at_least(1, self, "epochs", "batch_size", "evaluations")
        check_at_least(SHORTEST, self, "length")
        check_at_least(0, self, "train_examples", "dev_examples", "test_examples", "folds")
        if self.model == NO_MODEL:
            check_at_least(MIN_VOCABULARY, self, "vocab_size")
        if self.vocab_size > MAX_VOCABULARY:
            raise ValueError(
                f"vocab_size must be at most {MAX_VOCABULARY:,}, got {self.vocab_size}."
            )
        for name in DERIVED:
            if getattr(self.fit, name) != getattr(FIT, name):
                raise ValueError(
                    f"fit.{name} follows from epochs, warmup_share, evaluations and seeds; set "
                    "those."
                )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be one or more different numbers, got {self.seeds}.")
        if not 0 <= self.warmup_share < 1:
            raise ValueError(f"warmup_share must be 0 to below 1, got {self.warmup_share}.")
        own = [bool(path) for path in (self.train, self.dev, self.test)]
        if any(own) != (self.task == "files") or any(own) != all(own):
            raise ValueError("Your own files are train, dev and test, with task='files'.")

    def shape(self, vocab: int) -> EncoderConfig:
        """Return the encoder's settings where there is no model to take them from."""
        return replace(self.encoder, vocab=vocab, max_length=self.length)

    def fit_config(self, per_epoch: int, seed: int, *, replayable: bool = False) -> FitConfig:
        """Return the settings of `fit` for one training.

        A training of up to 500 updates, 2,000 on a GPU, has no checkpoint: if stopped, it restarts.

        Args:
            per_epoch: number of batches.
            seed: of this training.
            replayable: whether CUDA graphs can be made of steps.
        """
        steps, cuda = self.epochs * per_epoch, torch.cuda.is_available()
        often = max(1, math.ceil(per_epoch / self.evaluations))
        apart = CHECKPOINT_EVERY["cuda" if cuda else "cpu"]
        settings = replace(
            self.fit,
            steps=steps,
            warmup=min(steps - 1, round(self.warmup_share * steps)),
            evaluate_every=often,
            checkpoint_every=max(often, apart) if steps > apart else 0,
            better="higher",
            seed=seed,
        )
        return settings.on_device(cuda=cuda, replayable=replayable)


def read_task(config: FinetuningConfig) -> Task:
    """Read the examples of the settings' task.

    If the settings limit their number, a checksum decides which are used: some sets are published
    in order of their classes.
    """
    if config.task == "files":
        paths = [Path(path) for path in (config.train, config.dev, config.test)]
        tagged = paths[0].suffix == ".conll"
        task = read_tagged_files(*paths) if tagged else read_text_files(*paths)
    elif config.task in TAGGING_SETS:
        task = read_tagged_task(config.task)
    elif config.task in TEXT_TASKS or "filipino" in config.task:
        task = read_text_task(config.task)
    else:
        known = [*TEXT_TASKS, *TAGGING_SETS, "files"]
        raise ValueError(f"There is no task {config.task!r}. {suggestion(config.task, known)}")
    return _some(task, config)


def examples_of(task: Task) -> list[Any]:
    """Return all examples: train, dev and test one after the other."""
    return [*task.train, *task.dev, *task.test]


def labels_of(task: Task) -> list[list[int]]:
    """Return the class of each example, or the classes of its words."""
    if isinstance(task, TextTask):
        return [[example.label] for example in examples_of(task)]
    number = {tag: place for place, tag in enumerate(task.classes)}
    return [[number[tag] for tag in sentence.tags] for sentence in examples_of(task)]


def reads_of(task: Task) -> Reads:
    """Return the kind of inputs of a task."""
    if isinstance(task, TaggedTask):
        return "words"
    second = {example.second is not None for example in examples_of(task)}
    return "either" if len(second) > 1 else "pair" if True in second else "text"


def class_name(task: Task, numbers: Sequence[int]) -> str | list[str]:
    """Return the name of an example's class, or its tags."""
    names = [task.classes[number] for number in numbers]
    return names if isinstance(task, TaggedTask) else names[0]


def _some(task: Task, config: FinetuningConfig) -> Task:
    """Return a task with as many examples as the settings ask for."""

    def chosen_of(part: list[Any], count: int) -> list[Any]:
        chosen = in_checksum_order(task.groups(part))[:count]
        return [part[at] for at in sorted(chosen)] if count else part

    counts = config.train_examples, config.dev_examples, config.test_examples
    parts = zip((task.train, task.dev, task.test), counts, strict=True)
    train, dev, test = (chosen_of(cast("list[Any]", part), count) for part, count in parts)
    return replace(task, train=train, dev=dev, test=test)


class Split(NamedTuple):
    """Examples of one training: those to train on, to stop by, and to test on."""

    name: str  # "seed-0" or "seed-0-fold-3"
    seed: int
    train: list[int]  # indices into train, dev and test one after the other, as published
    dev: list[int]
    test: list[int]


def splits_of(task: Task, *, seeds: Sequence[int], folds: int) -> list[Split]:
    """Return the published parts for each seed; or, with folds, parts of all examples.

    Fold i is the test part, fold i + 1 the dev part, and the others are trained on. Examples with
    related texts are in one fold. A checksum decides which, so that it is the same for every model.

    Args:
        task: the examples.
        seeds: of the new head, of dropout and of the order of batches.
        folds: number of folds; 0 keeps the published parts.
    """
    sizes = [len(part) for part in (task.train, task.dev, task.test)]
    numbers = list(range(sum(sizes)))
    if not folds:
        ends = sizes[0], sizes[0] + sizes[1]
        parts = numbers[: ends[0]], numbers[ends[0] : ends[1]], numbers[ends[1] :]
        return [Split(f"seed-{seed}", seed, *parts) for seed in seeds]
    every: Any = [*task.train, *task.dev, *task.test]
    cut = folds_of(task.groups(every), folds)
    made: list[Split] = []
    for seed in seeds:
        for number, test in enumerate(cut):
            following = (number + 1) % folds
            rest = [fold for at, fold in enumerate(cut) if at not in (number, following)]
            train = sorted(place for fold in rest for place in fold)
            made.append(Split(f"seed-{seed}-fold-{number}", seed, train, cut[following], test))
    return made


def folds_of(groups: Sequence[str], count: int) -> list[list[int]]:
    """Divide indices into folds of about equal size, those of one group together.

    >>> [len(fold) for fold in folds_of(["a", "b", "a", "c", "d", "e"], 3)]
    [2, 2, 2]

    Args:
        groups: group of each index.
        count: number of folds; at least 3, as one is for dev and one for test.
    """
    if count < 3 or count > len(set(groups)):
        raise ValueError(
            f"folds must be 3 or more, and at most the {len(set(groups))} different texts, got "
            f"{count}."
        )
    together: dict[str, list[int]] = {}
    for place in in_checksum_order(groups):
        together.setdefault(groups[place], []).append(place)
    cut: list[list[int]] = [[] for _ in range(count)]
    # the largest group first, so that small ones even the folds out
    for places in sorted(together.values(), key=len, reverse=True):
        min(cut, key=len).extend(places)
    return [sorted(fold) for fold in cut]


@dataclass(frozen=True, eq=False)
class Start:
    """Start of trainings: the tokenizer, and a function that makes the model."""

    pieces: TruncatingTokenizer
    build: Callable[[], nn.Module]  # with a new head of random weights
    replayable: bool = False  # whether CUDA graphs can be made of its steps


def from_nothing(
    task: Task, *, shape: Callable[[int], EncoderConfig], vocab: int, length: int
) -> Start:
    """Start from random weights, with a byte-level tokenizer learned from the training texts.

    The texts are those of the published training part, also in cross-validation: all folds share
    one tokenizer, which was learned from texts that some folds are tested on.

    Args:
        task: gives the `train` part and the number of classes.
        shape: from the vocabulary size to the encoder's settings.
        vocab: maximum vocabulary size.
        length: maximum tokens of a text.
    """
    pieces = train_byte_level(_texts(task), size=vocab)
    return _ours(Encoder(shape(len(pieces))), pieces, task, length=length, fresh=True)


def from_folder(folder: Path, task: Task, *, length: int, fresh: bool) -> Start:
    """Start from a pre-training run, or from a saved Hugging Face model.

    Of a BERT with next-sentence prediction the pooling is used too.

    Args:
        folder: of either.
        task: gives the classes of the new head.
        length: maximum tokens of a text; the model's maximum length, if that is less.
        fresh: use shape and tokenizer alone, with random weights.
    """
    if not folder.is_dir():
        raise ValueError(
            f"There is no model folder {folder}. Give a run of `headwise train mlm`, the folder of "
            f"a saved Hugging Face model, or {NO_MODEL!r} for random weights."
        )
    if (folder / "environment.json").exists():
        run = Run.open(folder)
        model, pieces = _shape_of(run) if fresh and _finished(run) else load_pretrained(run)
        return _ours(model, pieces, task, length=length, fresh=fresh)
    if (folder / "config.json").exists():
        return _hugging_face(folder, task, length=length, fresh=fresh)
    raise ValueError(f"{folder} holds neither a headwise run nor a Hugging Face model.")


def _finished(run: Run) -> bool:
    return run.kind == "pretraining" and run.has("figures.json")


def _shape_of(run: Run) -> tuple[Encoder, ByteLevelCodec]:
    """Load shape and tokenizer of a finished pre-training, whose weights may be missing."""
    shape = run.read_settings("model.json", EncoderConfig)
    return Encoder(shape), ByteLevelCodec.load(run.path(TOKENIZER))


def _texts(task: Task) -> Iterable[str]:
    if isinstance(task, TaggedTask):
        return (" ".join(sentence.words) for sentence in task.train)
    return (text for example in task.train for text in example[1:] if text)


def _ours(
    model: PretrainingModel | Encoder,
    pieces: ByteLevelCodec,
    task: Task,
    *,
    length: int,
    fresh: bool,
) -> Start:
    encoder = model if isinstance(model, Encoder) else model.encoder
    shape, weights = encoder.config, {} if fresh else encoder.state_dict()
    pool: dict[str, Tensor] = {}
    if isinstance(model, MaskedLMWithNextSentence) and not fresh:
        pool = model.pool.state_dict()

    def build() -> nn.Module:
        new = Encoder(shape)
        if weights:
            new.load_state_dict(weights)
        if isinstance(task, TaggedTask):
            return TokenClassifier(new, len(task.classes))
        classifier = SequenceClassifier(new, len(task.classes))
        if pool:
            classifier.pool.load_state_dict(pool)
        return classifier

    most = min(length, shape.max_length)
    return Start(TruncatingTokenizer(pieces.definition, pieces.pad, most), build, replayable=True)


def _hugging_face(folder: Path, task: Task, *, length: int, fresh: bool) -> Start:
    tokenizer = load_tokenizer(folder)
    if not getattr(tokenizer, "is_fast", False) or tokenizer.pad_token_id is None:
        raise ValueError(
            f"{folder} needs a fast tokenizer with a padding token; save such a one there."
        )

    def build() -> nn.Module:
        return _loaded(folder, task, fresh=fresh)

    # loaded once now, so that bad weights are refused before a run folder is created
    most = min(length, HuggingFaceSubject(build(), tokenizer).max_tokens)
    definition = str(tokenizer.backend_tokenizer.to_str())
    return Start(TruncatingTokenizer(definition, tokenizer.pad_token_id, most), build)


def _loaded(folder: Path, task: Task, *, fresh: bool) -> Any:
    """Load the model with a head for the task's classes; only the head may be new."""
    import transformers

    tagged = isinstance(task, TaggedTask)
    name = "AutoModelForTokenClassification" if tagged else "AutoModelForSequenceClassification"
    kind: Any = getattr(transformers, name)
    names = dict(enumerate(task.classes))
    head: Any = {"id2label": names, "label2id": {n: at for at, n in names.items()}}
    if not fresh:
        return load_model(folder, kind, new_head=head).float()  # may be saved in half precision
    with opened(folder):
        shape = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **head
        )
        return kind.from_config(shape, trust_remote_code=False)


def start_of(config: FinetuningConfig, task: Task) -> Start:
    """Return the start that the settings ask for."""
    if config.model != NO_MODEL:
        folder, fresh = Path(config.model), config.fresh_weights
        return from_folder(folder, task, length=config.length, fresh=fresh)
    return from_nothing(task, shape=config.shape, vocab=config.vocab_size, length=config.length)
