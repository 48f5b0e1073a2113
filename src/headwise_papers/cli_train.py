"""headwise train: commands that train a model of each kind, and score it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table
from typer import Option, Typer

from headwise.cli_parts import CONTINUES, Continued, Settings, console, interruptible, say

if TYPE_CHECKING:
    from headwise.recording import Run

Options = dict[str, Any]  # settings by name; None leaves one as it is

train = Typer(help="Train a model with any attention, and score it.", no_args_is_help=True)

Attention = Annotated[
    str | None,
    Option(
        help="Attention of all heads: softmax, topk:8, sparsemax, entmax:1.5, entmax:learned. "
        "Also gaussian:-1,1 for mlm; for translation --set model.encoder_attention=gaussian:-1,1."
    ),
]
Corpus = Annotated[str | None, Option(help="Corpus in the folder that HEADWISE_DATA names.")]
Guide = Annotated[
    str | None, Option(help="Heads of each layer to guide, e.g. next=1,prev=1,first=4.")
]
Alpha = Annotated[float | None, Option(help="Weight of guidance at the start; it falls to 0.")]
Layers = Annotated[int | None, Option(help="Encoder layers (16 layers use 16 heads).")]
TextOf = Annotated[Path | None, Option(help="Earlier run whose tokenizer and tokens are used.")]
File = Annotated[
    Path | None, Option(help="Your own text instead of a corpus; blank lines end documents.")
]


@train.command()
def translation(
    corpus: Corpus = None,
    source: Annotated[str | None, Option(help="Language to translate from.")] = None,
    target: Annotated[str | None, Option(help="Language to translate into.")] = None,
    training: Annotated[
        list[Path],
        Option("--train", help="Your own training text, no corpus; give twice: source, target."),
    ] = [],  # noqa: B006
    valid: Annotated[list[Path], Option(help="Validation text, like --train.")] = [],  # noqa: B006
    test: Annotated[list[Path], Option(help="Test text, like --train.")] = [],  # noqa: B006
    size: Annotated[str | None, Option(help="Size of the model: small, iwslt or base.")] = None,
    attention: Attention = None,
    guide: Guide = None,
    alpha: Alpha = None,
    out: Continued = Path("runs/translation"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Train a Transformer to translate, and translate the test set."""
    from headwise.config import override
    from headwise_papers.recipes.guiding import check_used
    from headwise_papers.recipes.translation import SIZES, TranslationConfig, train_translation

    first, second, third = (tuple(map(str, paths)) for paths in (training, valid, test))
    config = TranslationConfig()
    if first or second or third:
        if corpus:
            raise ValueError("Give either --corpus or your own --train, --valid and --test files.")
        config = TranslationConfig(corpus="files", train=first, valid=second, test=third)
    options: Options = {"corpus": corpus, "source": source, "target": target}
    options |= {"guide.plan": guide, "guide.alpha": alpha, **_everywhere(attention)}
    config = override(config, settings, {**_sized(SIZES, size), **options})
    check_used(config.guide, TranslationConfig.guide)
    _run(train_translation, config, out)


@train.command()
def lm(
    corpus: Corpus = None,
    file: Annotated[Path | None, Option(help="Your own text instead of a corpus.")] = None,
    size: Annotated[str | None, Option(help="Size of the model: small or enwik8.")] = None,
    attention: Attention = None,
    out: Continued = Path("runs/lm"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Train a Transformer-XL on characters, and measure bits per character."""
    from headwise.config import override
    from headwise_papers.recipes.language import SIZES, LanguageConfig, train_language

    options: Options = {**_text(corpus, file), **_sized(SIZES, size), "model.attention": attention}
    config = override(LanguageConfig(), settings, options)
    _run(train_language, config, out)


@train.command()
def caption(
    corpus: Corpus = None,
    features: Annotated[
        Path | None, Option(help="Features instead of pixels: safetensors with a tensor per image.")
    ] = None,
    attention: Attention = None,
    out: Continued = Path("runs/caption"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Train a model that describes images, and describe those of the test set."""
    from headwise.config import override
    from headwise_papers.recipes.captioning import CaptioningConfig, train_captioning

    options: Options = {"corpus": corpus, "features": features, **_everywhere(attention)}
    config = override(CaptioningConfig(), settings, options)
    _run(train_captioning, config, out)


@train.command()
def mlm(
    corpus: Corpus = None,
    file: File = None,
    layers: Layers = None,
    next_sentence: Annotated[
        bool | None, Option(help="BERT: also predict whether the second half follows.")
    ] = None,
    guide: Guide = None,
    alpha: Alpha = None,
    attention: Attention = None,
    text_of: TextOf = None,
    out: Continued = Path("runs/mlm"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Pre-train a RoBERTa, or a BERT, by masked language modelling."""
    options: Options = {"next_sentence": next_sentence, "model.attention": attention}
    options |= {"guide.plan": guide, "guide.alpha": alpha, "text_of": text_of}
    _pretrain("mlm", layers, {**_text(corpus, file), **options}, settings, out)


@train.command()
def electra(
    corpus: Corpus = None,
    file: File = None,
    layers: Layers = None,
    guide: Guide = None,
    alpha: Alpha = None,
    attention: Attention = None,
    text_of: TextOf = None,
    out: Continued = Path("runs/electra"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Pre-train an ELECTRA to find replaced tokens, which come from a unigram model."""
    options: Options = {"model.attention": attention, "text_of": text_of}
    options |= {"guide.plan": guide, "guide.alpha": alpha}
    _pretrain("electra", layers, {**_text(corpus, file), **options}, settings, out)


@train.command()
def classifier(
    task: Annotated[
        str | None, Option(help="Task: rte, cola, mrpc, sst2, conll2003 … see docs.")
    ] = None,
    model: Annotated[
        str | None, Option(help="Pre-training run, Hugging Face folder, or none: random weights.")
    ] = None,
    training: Annotated[
        Path | None,
        Option(
            "--train", help="Your own task: label TAB text [TAB text], or tagged words, .conll."
        ),
    ] = None,
    dev: Annotated[Path | None, Option(help="Development data, like --train.")] = None,
    test: Annotated[Path | None, Option(help="Test data, like --train.")] = None,
    seeds: Annotated[str | None, Option(help="Seeds, one training each, e.g. 0,1,2.")] = None,
    folds: Annotated[int | None, Option(help="Folds of cross-validation.")] = None,
    out: Continued = Path("runs/classifier"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Fine-tune an encoder on texts, pairs or tagged words, and score it."""
    from headwise.config import override
    from headwise_papers.recipes.finetuning import FinetuningConfig, finetune

    config = FinetuningConfig()
    if training or dev or test:
        first, second, third = (str(path or "") for path in (training, dev, test))
        config = FinetuningConfig(task="files", train=first, dev=second, test=third)
    chosen = [f"seeds={seeds}"] if seeds is not None else []
    options: Options = {"task": task, "model": model, "folds": folds}
    config = override(config, [*chosen, *settings], options)
    _run(finetune, config, out)


def _pretrain(
    objective: Literal["mlm", "electra"],
    layers: int | None,
    options: Options,
    settings: list[str],
    out: Path,
) -> None:
    from headwise.config import override
    from headwise_papers.models.encoder import EncoderConfig
    from headwise_papers.recipes.guiding import check_used
    from headwise_papers.recipes.pretraining import PretrainingConfig, pretrain

    model = EncoderConfig() if layers is None else EncoderConfig.roberta(layers=layers)
    config = override(PretrainingConfig(objective=objective, model=model), settings, options)
    if config.objective != objective:
        raise ValueError(f"`headwise train {config.objective}` is the command for this objective.")
    check_used(config.guide, PretrainingConfig.guide)
    _run(pretrain, config, out)


def _run(train: Callable[[Any, Path], "Run"], config: Any, out: Path) -> None:
    """Train into a folder, and show the results."""
    with interruptible(CONTINUES):
        run = train(config, out)
    _show_figures(run.figures(), out)


def _show_figures(figures: Mapping[str, object], folder: Path) -> None:
    """Print the results of a training and its run folder, in the first process."""
    from headwise_papers.recipes.training_run import is_first_process

    if not is_first_process():
        return
    table = Table("result", "value", box=None, header_style="bold", pad_edge=False)
    for name, value in figures.items():
        shown = f"{value:,.4g}" if isinstance(value, float) else str(value)
        table.add_row(name.replace("_", " "), shown)
    console.print(table)
    say(f"Run: {folder}")


def _text(corpus: str | None, file: Path | None) -> Options:
    """Return the settings of a corpus, or of your own file."""
    return {"corpus": "file" if file and corpus is None else corpus, "file": file}


def _everywhere(attention: str | None) -> Options:
    """Return the settings of one attention for encoder, decoder and cross-attention."""
    return {f"model.{place}_attention": attention for place in ("encoder", "decoder", "cross")}


def _sized(sizes: Mapping[str, Any], size: str | None) -> Options:
    """Return the settings of the model of a named size, if a size is given."""
    from headwise.config import suggestion

    if size is not None and size not in sizes:
        raise ValueError(f"There is no size {size!r}. {suggestion(size, sizes)}")
    return {"model": sizes.get(size or "")}
