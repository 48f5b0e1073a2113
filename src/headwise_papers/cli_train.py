"""headwise train: a model of each kind, from nothing to its figures."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option, Typer

from headwise.cli_parts import (
    CONTINUES,
    Continued,
    Settings,
    given,
    interruptible,
    show_figures,
)

train = Typer(help="Train a model with any attention, and score it.", no_args_is_help=True)

Attention = Annotated[
    str | None,
    Option(
        help="of all heads: softmax, topk:8, sparsemax, entmax:1.5, entmax:learned; in one text "
        "also gaussian:-1,1, in translation by --set encoder_attention=gaussian:-1,1"
    ),
]
Corpus = Annotated[str | None, Option(help="a corpus below the folder HEADWISE_DATA names")]
Guide = Annotated[
    str | None, Option(help="heads of each layer to guide, e.g. next=1,prev=1,first=4")
]
Alpha = Annotated[float | None, Option(help="weight of guidance at the start; it falls to 0")]
Layers = Annotated[int | None, Option(help="of the encoder: 8, 12, 16 …; 16 have 16 heads")]
TextOf = Annotated[Path | None, Option(help="an earlier run, whose text in pieces is taken")]
File = Annotated[
    Path | None, Option(help="your own text instead of a corpus; blank lines end documents")
]


@train.command()
def translation(
    corpus: Corpus = None,
    source: Annotated[str | None, Option(help="language to translate from")] = None,
    target: Annotated[str | None, Option(help="language to translate into")] = None,
    training: Annotated[
        list[Path],
        Option("--train", help="your own text, no corpus; twice: source, target"),
    ] = [],  # noqa: B006
    valid: Annotated[list[Path], Option(help="the same, to validate on")] = [],  # noqa: B006
    test: Annotated[list[Path], Option(help="the same, to translate at the end")] = [],  # noqa: B006
    size: Annotated[str | None, Option(help="small, iwslt or base")] = None,
    attention: Attention = None,
    guide: Guide = None,
    alpha: Alpha = None,
    out: Continued = Path("runs/translation"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Train a Transformer to translate, and translate the test set."""
    from headwise.config import override
    from headwise_papers.recipes.guiding import check_used
    from headwise_papers.recipes.translation import TranslationConfig, train_translation

    first, second, third = (tuple(map(str, paths)) for paths in (training, valid, test))
    config = TranslationConfig()
    if first or second or third:
        if corpus:
            raise ValueError("Give either --corpus or your own --train, --valid and --test files.")
        config = TranslationConfig(corpus="files", train=first, valid=second, test=third)
    options = given({"corpus": corpus, "source": source, "target": target, "size": size})
    options += given({"guide": guide, "alpha": alpha})
    config = override(config, [*options, *_everywhere(attention), *settings])
    check_used(config)
    with interruptible(CONTINUES):
        run = train_translation(config, out)
    show_figures(run.figures(), out)


@train.command()
def lm(
    corpus: Corpus = None,
    file: Annotated[Path | None, Option(help="your own text instead of a corpus")] = None,
    size: Annotated[str | None, Option(help="small or enwik8")] = None,
    attention: Attention = None,
    out: Continued = Path("runs/lm"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Train a Transformer-XL on characters, and measure bits per character."""
    from headwise.config import override
    from headwise_papers.recipes.language import LanguageConfig, train_language

    options = [*_text(corpus, file), *given({"size": size, "attention": attention})]
    config = override(LanguageConfig(), [*options, *settings])
    with interruptible(CONTINUES):
        run = train_language(config, out)
    show_figures(run.figures(), out)


@train.command()
def caption(
    corpus: Corpus = None,
    features: Annotated[
        Path | None, Option(help="safetensors with a tensor for each image, instead of pixels")
    ] = None,
    attention: Attention = None,
    out: Continued = Path("runs/caption"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Train a model that describes images, and describe those of the test set."""
    from headwise.config import override
    from headwise_papers.recipes.captioning import CaptioningConfig, train_captioning

    options = given({"corpus": corpus, "features": features})
    config = override(CaptioningConfig(), [*options, *_everywhere(attention), *settings])
    with interruptible(CONTINUES):
        run = train_captioning(config, out)
    show_figures(run.figures(), out)


@train.command()
def mlm(
    corpus: Corpus = None,
    file: File = None,
    layers: Layers = None,
    next_sentence: Annotated[
        bool | None, Option(help="BERT: also guess whether the second half follows the first")
    ] = None,
    guide: Guide = None,
    alpha: Alpha = None,
    attention: Attention = None,
    text_of: TextOf = None,
    out: Continued = Path("runs/mlm"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Pre-train a RoBERTa, or a BERT, by masked language modelling."""
    options = given({"layers": layers, "next_sentence": next_sentence, "attention": attention})
    options += given({"guide": guide, "alpha": alpha, "text_of": text_of})
    _pretrain("mlm", [*_text(corpus, file), *options, *settings], out)


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
    """Pre-train an ELECTRA to find replaced words, which a unigram model draws."""
    options = given({"layers": layers, "attention": attention, "text_of": text_of})
    options += given({"guide": guide, "alpha": alpha})
    _pretrain("electra", [*_text(corpus, file), *options, *settings], out)


@train.command()
def classifier(
    task: Annotated[str | None, Option(help="rte, cola, mrpc, sst2, conll2003 … see docs")] = None,
    model: Annotated[
        str | None, Option(help="pre-training run, Hugging Face folder, or none: random weights")
    ] = None,
    training: Annotated[
        Path | None,
        Option("--train", help="your own task: label TAB text [TAB text], or tagged words, .conll"),
    ] = None,
    dev: Annotated[Path | None, Option(help="the same, to stop by")] = None,
    test: Annotated[Path | None, Option(help="the same, to judge by")] = None,
    seeds: Annotated[str | None, Option(help="a training each, e.g. 0,1,2")] = None,
    folds: Annotated[int | None, Option(help="cross-validation with so many folds")] = None,
    out: Continued = Path("runs/classifier"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Fine-tune an encoder on texts, pairs or tagged words, and judge it."""
    from headwise.config import override
    from headwise_papers.recipes.finetuning import FinetuningConfig, finetune

    config = FinetuningConfig()
    if training or dev or test:
        first, second, third = (str(path or "") for path in (training, dev, test))
        config = FinetuningConfig(task="files", train=first, dev=second, test=third)
    options = given({"task": task, "model": model, "seeds": seeds, "folds": folds})
    config = override(config, [*options, *settings])
    with interruptible(CONTINUES):
        run = finetune(config, out)
    show_figures(run.figures(), out)


def _pretrain(objective: Literal["mlm", "electra"], settings: list[str], out: Path) -> None:
    from headwise.config import override
    from headwise_papers.recipes.guiding import check_used
    from headwise_papers.recipes.pretraining import PretrainingConfig, pretrain

    config = override(PretrainingConfig(objective=objective), settings)
    if config.objective != objective:
        raise ValueError(f"`headwise train {config.objective}` is the command for this objective.")
    check_used(config)
    with interruptible(CONTINUES):
        run = pretrain(config, out)
    show_figures(run.figures(), out)


def _text(corpus: str | None, file: Path | None) -> list[str]:
    """A corpus, or a file of one's own."""
    return given({"corpus": "file" if file and corpus is None else corpus, "file": file})


def _everywhere(attention: str | None) -> list[str]:
    """One attention for encoder, decoder and between them; --set changes one alone."""
    places = ("encoder", "decoder", "cross") if attention else ()
    return [f"{place}_attention={attention}" for place in places]
