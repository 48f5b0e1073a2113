"""Runs with a broken file: a command is right all the same, or says one sentence and exits by 2."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from headwise.config import flat, to_json
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise.workflows.prune import prune_folder
from headwise_papers.recipes.captioning import CaptioningConfig, train_captioning
from headwise_papers.recipes.finetuning import finetune
from headwise_papers.recipes.language import LanguageConfig, train_language
from headwise_papers.recipes.pretraining import PretrainingConfig, pretrain
from tests.papers.recipes import small_demo, small_finetuning, test_captioning, test_language
from tests.papers.recipes import test_pretraining as small_pretraining
from tests.papers.recipes.configured import configured
from tests.papers.recipes.small_translation import config_of, quietly, small_config
from tests.workflows.corrupting import Command, sweep
from tests.workflows.prune.small_tasks import config_for, saved
from tests.workflows.small_hosts import LINES

pytestmark = pytest.mark.usefixtures("unchecked")
SHORT = {"steps": 4, "warmup": 1, "evaluate_every": 2, "checkpoint_every": 2}
QUICK = ("empty", "a list", "nested", "a link to itself")


def settings_of(config: object) -> list[str]:
    """All settings of a configuration, as a command line gives them."""
    given = []
    for name, value in flat(to_json(config)).items():
        if isinstance(value, list):
            value = ",".join(map(str, value))
        given += ["--set", f"{name}={'none' if value is None else value}"]
    return given


def heads_in(out: Path) -> object:
    """The table of heads that an inspection made."""
    return json.loads((out / "heads.json").read_text())


def kept_in(out: Path) -> object:
    """Which heads a pruning kept, and how good they are."""
    figures = json.loads((out.with_name("out-pruning") / "figures.json").read_text())
    return {name: value for name, value in figures.items() if name != "seconds"}


class Runs:
    """Finished runs of every kind, each made when it is first asked for, and what opens them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = folder / "text.txt"
        self.text.write_text("".join(f"{line}\n" for line in LINES))

    def __call__(self, kind: str) -> tuple[Path, list[Command]]:
        return getattr(self, kind)()

    def translation(self) -> tuple[Path, list[Command]]:
        texts = self.folder / "texts"
        texts.mkdir(exist_ok=True)
        config = small_config(texts, **SHORT)
        run = self._made("translation", lambda folder: quietly(config, folder))
        again = Command("train", "translation", "--out", "{run}", *settings_of(config))
        return run, [Command("translate", "{run}", stdin=b"the dog\n"), again, self._inspect()]

    def pruned_translation(self) -> tuple[Path, list[Command]]:
        run, _ = self.translation()
        pairs = [str(path) for path in sorted((self.folder / "texts").glob("valid.*"))]
        config = configured(
            config_for("translation", run, keep=2, task="translation", steps=2),
            data=tuple(pairs),
            dev=tuple(pairs),
        )
        made = self._made("small-translator", lambda folder: prune_folder(config, folder))
        return made, [Command("translate", "{run}", stdin=b"the dog\n"), self._inspect()]

    def unfinished_translation(self) -> tuple[Path, list[Command]]:
        run, (_, again, _) = self.translation()
        return self._unfinished(run, "model.safetensors", "model.json"), [again]

    def demo(self) -> tuple[Path, list[Command]]:
        config = configured(small_demo.SMALL, steps=20, test_pairs=8, ablation_pairs=2)
        run = self._made("demo", lambda folder: small_demo.quietly(config, folder))
        again = Command("demo", "--out", "{run}", *settings_of(config))
        return run, [Command("translate", "{run}", stdin=b"the dog\n"), again]

    def language(self) -> tuple[Path, list[Command]]:
        config = configured(
            LanguageConfig, **{**test_language.SMALL, **SHORT}, file=self._long_text()
        )
        run = self._made("lm", lambda folder: quietly(config, folder, train_language))
        return run, [Command("train", "lm", "--out", "{run}", *settings_of(config))]

    def unfinished_language(self) -> tuple[Path, list[Command]]:
        run, commands = self.language()
        return self._unfinished(run, "model.safetensors", "model.json"), commands

    def captioning(self) -> tuple[Path, list[Command]]:
        config = configured(CaptioningConfig, **{**test_captioning.SMALL, **SHORT})
        run = self._made("caption", lambda folder: quietly(config, folder, train_captioning))
        return run, [Command("train", "caption", "--out", "{run}", *settings_of(config))]

    def encoder(self) -> tuple[Path, list[Command]]:
        config = configured(
            PretrainingConfig, **{**small_pretraining.SMALL, **SHORT}, file=self._long_text()
        )
        run = self._made("mlm", lambda folder: quietly(config, folder, pretrain))
        again = Command("train", "mlm", "--out", "{run}", *settings_of(config))
        files = small_finetuning.write_classes(self.folder / "classes")
        tuned = small_finetuning.small_config(files, epochs=1, model="{run}")
        start = Command("train", "classifier", "--out", "{out}", *settings_of(tuned))
        return run, [again, self._inspect(), start]

    def unfinished_encoder(self) -> tuple[Path, list[Command]]:
        run, (again, *_) = self.encoder()
        return self._unfinished(run, "model.safetensors", "model.json"), [again]

    def classifier(self) -> tuple[Path, list[Command]]:
        files = small_finetuning.write_classes(self.folder / "classes")
        config = small_finetuning.small_config(files, epochs=1)
        run = self._made("classifier", lambda folder: quietly(config, folder, finetune))
        again = Command("train", "classifier", "--out", "{run}", *settings_of(config))
        return run, [again, self._inspect("{run}/seed-0")]

    def unfinished_classifier(self) -> tuple[Path, list[Command]]:
        run, (again, _) = self.classifier()
        return self._unfinished(run), [again]

    def hugging_face(self) -> tuple[Path, list[Command]]:
        host = saved("classification", self.folder / "host")
        prune = Command(
            *("prune", "{run}", "--out", "{out}", "--data", host.parent / "lab"),
            *("--dev", host.parent / "lab", *_prune_settings()),
            made=kept_in,
        )
        return host, [self._inspect(), prune]

    def pruned(self) -> tuple[Path, list[Command]]:
        host = saved("classification", self.folder / "host")
        config = config_for("classification", host, steps=2)
        made = self._made("small", lambda folder: prune_folder(config, folder))
        return made, [self._inspect()]

    def pruning(self) -> tuple[Path, list[Command]]:
        """The run beside a pruned model, in one folder with it."""
        host = saved("classification", self.folder / "host")
        config = config_for("classification", host, steps=2, look=4)
        both = self.folder / "both"
        if not both.exists():
            prune_folder(config, both / "small")
        return both, [Command("prune", host, *_again(config), "--out", "{run}/small")]

    def unfinished_pruning(self) -> tuple[Path, list[Command]]:
        both, commands = self.pruning()
        half = self.folder / "both-unfinished"
        if not half.exists():
            shutil.copytree(both, half)
            shutil.rmtree(half / "small")
            for name in ("figures.json", "report.html", "trace/pruning.json", "heads.json"):
                (half / "small-pruning" / name).unlink()
        return half, commands

    def inspection(self) -> tuple[Path, list[Command]]:
        model, _ = self.hugging_face()
        config = InspectConfig(str(model), str(self.text), sample=2, ablation_lines=1)
        run = self._made("inspected", lambda folder: inspect_folder(config, folder))
        given = ("inspect", model, "--data", self.text, "--out", "{run}")
        return run, [Command(*given, "--set", "sample=2", "--set", "ablation_lines=1")]

    def unfinished_inspection(self) -> tuple[Path, list[Command]]:
        _, commands = self.inspection()
        half = self.folder / "inspected-unfinished"
        if not half.exists():
            with pytest.MonkeyPatch.context() as patch:
                name = inspect_folder.__module__
                patch.setattr(sys.modules[name], "rmtree", lambda *args, **options: None)
                config = InspectConfig(
                    commands[0].arguments[1], str(self.text), sample=2, ablation_lines=1
                )
                inspect_folder(config, half)
            for name in ("figures.json", "report.html", "heads.json"):
                (half / name).unlink()
        return half, commands

    def _made(self, name: str, make) -> Path:
        folder = self.folder / name
        if not folder.exists():
            make(folder)
        return folder

    def _unfinished(self, run: Path, *names: str) -> Path:
        """The run as it was before its results, but for its last checkpoint."""
        folder = run.with_name(f"{run.name}-unfinished")
        if not folder.exists():
            shutil.copytree(run, folder)
            for name in ("figures.json", "report.html", *names):
                (folder / name).unlink()
        return folder

    def _inspect(self, model: str = "{run}") -> Command:
        given = ("--data", self.text, "--out", "{out}", "--set", "sample=0", "--set", "samples=1")
        return Command("inspect", model, *given, made=heads_in)

    def _long_text(self) -> str:
        path = self.folder / "long.txt"
        path.write_text("".join(f"{line}\n" for line in LINES * 60))
        return str(path)


def _again(config: object) -> list[str]:
    settings = ["--keep", str(config.keep), *_without(settings_of(config))]
    data = [("--data", path) for path in config.data] + [("--dev", path) for path in config.dev]
    return [*(part for pair in data for part in pair), *settings]


def _prune_settings() -> list[str]:
    config = config_for("classification", Path("host/x"), steps=2)
    return ["--keep", str(config.keep), *_without(settings_of(config), "model", "data", "dev")]


def _without(settings: list[str], *names: str) -> list[str]:
    kept = [value for value in settings[1::2] if value.partition("=")[0] not in (*names, "keep")]
    return [part for value in kept for part in ("--set", value)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_captioning.module, "read_captions", test_captioning.squares)
        yield Runs(tmp_path_factory.mktemp("runs"))


EVERY = [name for name in vars(Runs) if not name.startswith("_")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERY)
def test_a_run_with_any_broken_file_is_right_or_refused_with_one_sentence(kind, runs, tmp_path):
    run, commands = runs(kind)
    ours = kind != "hugging_face"  # whose files have fields of their own, and may be missing
    names = None if ours else ("config.json", "model.safetensors", "tokenizer.json")
    faults = list(sweep(run, commands, tmp_path, names=names, fields=ours))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("how", QUICK)
def test_translators_say_one_sentence_of_a_broken_file(how, small_translation, tmp_path):
    """The quick part of the sweep: files that `translate` and a training that is over read."""
    config = settings_of(config_of(small_translation))
    commands = [
        Command("translate", "{run}", stdin=b"the dog\n"),
        Command("train", "translation", "--out", "{run}", *config),
    ]
    names = ("config.json", "environment.json", "figures.json", "model.json", "pieces.model")
    faults = list(sweep(small_translation, commands, tmp_path, names=names, corruptions=(how,)))
    assert not faults, "\n".join(faults)
