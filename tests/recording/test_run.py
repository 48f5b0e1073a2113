import doctest
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from headwise.config import from_json
from headwise.recording import HeadTable, Run, run


@dataclass(frozen=True)
class Config:
    steps: int = 300
    sizes: tuple[int, ...] = (1, 2)
    seed: int = 7


@pytest.fixture
def here(tmp_path) -> Run:
    return Run.create(tmp_path / "run", Config())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.read_out = nn.Linear(3, 5, bias=False)
        self.read_out.weight = self.embed.weight


def test_config_comes_back_as_the_dataclass_it_was(here):
    assert from_json(Config, Run.open(here.folder).config()) == Config()


def test_environment_says_where_the_run_was_made(here):
    environment = here.read_json("environment.json")
    assert environment["seed"] == 7
    assert torch.__version__.startswith(environment["versions"]["torch"].partition("+")[0])
    assert environment["versions"]["python"].startswith("3.")
    assert environment["torch_threads"] == torch.get_num_threads()
    assert environment["command"] == [Path(sys.argv[0]).name, *sys.argv[1:]]
    assert {"commit", "dirty", "platform", "cpu", "cores", "gpu", "started"} <= environment.keys()


def test_commit_and_changes_are_those_of_the_current_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Run.create(tmp_path / "a", Config()).read_json("environment.json")["commit"] is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    Path("file").write_text("one")
    for arguments in (["init", "-q"], ["add", "file"], [*identity, "commit", "-qm", "a"]):
        subprocess.run(["git", *arguments], check=True, capture_output=True)
    clean = Run.create(tmp_path / "b", Config()).read_json("environment.json")
    Path("file").write_text("two")
    dirty = Run.create(tmp_path / "c", Config()).read_json("environment.json")
    assert len(clean["commit"]) == 40
    assert (clean["dirty"], dirty["dirty"]) == (False, True)


def test_the_same_config_continues_a_run_and_keeps_its_first_environment(here):
    first = here.read_json("environment.json")
    here.log(1, loss=1.0)
    again = Run.create(here.folder, Config())
    again.log(2, loss=0.5)
    assert [entry["step"] for entry in again.metrics()] == [1, 2]
    environment = again.read_json("environment.json")
    assert environment["started"] == first["started"]
    assert len(environment["resumed"]) == 1
    here.close()
    again.close()


def test_another_config_is_refused_with_the_setting_that_differs(here):
    with pytest.raises(ValueError, match=r"run with steps=300, but .* steps=20; choose another"):
        Run.create(here.folder, replace(Config(), steps=20))
    assert here.config()["steps"] == 300


def test_a_setting_that_the_old_run_did_not_have_differs(here):
    here.write_json("config.json", {"kind": "", "settings": {"steps": 300, "sizes": [1, 2]}})
    with pytest.raises(ValueError, match="with seed=unset, but this one has seed=7"):
        Run.create(here.folder, Config())


def test_a_new_setting_of_any_value_differs_from_none_at_all(tmp_path):
    @dataclass(frozen=True)
    class Named:
        seed: int = 0
        name: str = "unset"

    run = Run.create(tmp_path, Named())
    run.write_json("config.json", {"kind": "", "settings": {"seed": 0}})
    with pytest.raises(ValueError, match="name=unset, but this one has name='unset'"):
        Run.create(tmp_path, Named())


def test_folders_may_be_given_as_text(tmp_path):
    folder = str(tmp_path / "run")
    assert Run.create(folder, Config()).folder == Run.open(folder).folder == Path(folder)


def test_a_folder_of_other_files_is_not_taken_over(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="holds files but no run; choose a new or empty folder"):
        Run.create(tmp_path, Config())
    with pytest.raises(ValueError, match=r"thesis\.txt is a file"):
        Run.create(tmp_path / "thesis.txt", Config())


def test_a_start_that_was_killed_half_way_can_be_repeated(tmp_path):
    (tmp_path / ".config.json.12345678.partial").write_text("{")
    assert Run.create(tmp_path, Config()).config()["steps"] == 300


def test_open_says_what_is_wrong_with_a_folder(tmp_path):
    with pytest.raises(ValueError, match="absent is not one"):
        Run.open(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"holds no run: config\.json is missing"):
        Run.open(tmp_path)
    (tmp_path / "config.json").write_text('{"steps": 3')
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON .* cut short"):
        Run.open(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json must hold a JSON object"):
        Run.open(tmp_path)


def test_metrics_are_on_disk_at_once_and_the_block_closes_the_file(tmp_path):
    with Run.create(tmp_path / "run", Config()) as run:
        run.log(0, loss=2.0, tokens=512)
        assert Run.open(run.folder).metrics() == [{"step": 0, "loss": 2.0, "tokens": 512}]
        file = run._metrics_file
    assert file is not None
    assert file.closed


def test_a_run_without_metrics_has_an_empty_list(here):
    assert here.metrics() == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_metric_that_is_not_finite_is_said_and_not_written(here, bad):
    with pytest.raises(ValueError, match=f"loss is {bad} at step 12"):
        here.log(12, accuracy=0.5, loss=bad)
    assert here.metrics() == []


def test_numbers_of_torch_and_numpy_are_metrics(here):
    with here:
        loss = torch.tensor(0.5, requires_grad=True)
        here.log(1, loss=loss, tokens=np.int64(7), accuracy=np.float32(0.25))
    assert here.metrics() == [{"step": 1, "loss": 0.5, "tokens": 7, "accuracy": 0.25}]


@pytest.mark.parametrize("bad", ["0.5", None, torch.ones(2)])
def test_what_is_no_number_is_no_metric(here, bad, unchecked):
    with pytest.raises(ValueError, match=r"loss must be a number, got .* at step 3"):
        here.log(3, loss=bad)


def test_a_half_written_line_is_dropped_when_read_and_when_continued(here):
    with here:
        here.log(1, loss=1.0)
    path = here.path("metrics.jsonl")
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert here.metrics() == [{"step": 1, "loss": 1.0}]
    with Run.create(here.folder, Config()) as again:
        again.log(2, loss=0.5)
    assert again.metrics() == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]


def test_a_repeated_step_counts_once_with_its_later_values(here):
    with here:
        for step in (1, 2, 3):
            here.log(step, loss=float(step))
        here.log(2, loss=20.0)
        here.log(2, accuracy=0.5)
    assert here.metrics() == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 20.0, "accuracy": 0.5},
        {"step": 3, "loss": 3.0},
    ]


@pytest.mark.parametrize("line", ["{broken", "3", '{"loss": 1}'])
def test_a_broken_line_in_the_middle_is_named(here, line):
    here.write_text("metrics.jsonl", '{"step": 1}\n' + line + '\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"Line 2 of .*metrics\.jsonl is not a JSON object"):
        here.metrics()


def test_json_and_text_come_back(here):
    here.write_json("deep/er/a.json", {"é": [1, None, "x"]})
    here.write_text("report.html", "<p>é")
    assert here.read_json("deep/er/a.json") == {"é": [1, None, "x"]}
    assert here.path("report.html").read_text(encoding="utf-8") == "<p>é"


@pytest.mark.parametrize("value", [float("nan"), torch.zeros(1), {"a": {1, 2}}])
def test_what_json_cannot_hold_is_refused_and_the_old_file_stays(here, value):
    here.write_json("a.json", 1)
    with pytest.raises(ValueError, match=r"a\.json cannot be written as JSON"):
        here.write_json("a.json", value)
    assert here.read_json("a.json") == 1


def test_missing_and_damaged_files_are_named(here):
    with pytest.raises(ValueError, match=r"has no heads\.json; it may not be finished"):
        here.heads()
    here.path("heads.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(ValueError, match=r"heads\.json is not valid JSON"):
        here.heads()


def test_tensors_and_their_note_come_back(here):
    tensors = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.tensor(True)}
    here.save_tensors("trace/peak/1.safetensors", tensors, {"step": "1"})
    loaded = here.load_tensors("trace/peak/1.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert here.note("trace/peak/1.safetensors") == {"step": "1"}


def test_a_note_is_optional(here):
    here.save_tensors("a.safetensors", {"a": torch.zeros(1)})
    assert here.note("a.safetensors") == {}


def test_tied_weights_are_saved_and_tied_again(here):
    model, other = Tied(), Tied()
    here.save_tensors("model.safetensors", model.state_dict())
    other.load_state_dict(here.load_tensors("model.safetensors"))
    assert torch.equal(other.read_out.weight, model.embed.weight)
    assert other.read_out.weight is other.embed.weight


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_truncated_tensors_are_refused_by_name(here, keep):
    here.save_tensors("a.safetensors", {"a": torch.zeros(100)})
    path = here.path("a.safetensors")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"a\.safetensors is not a whole safetensors file"):
        here.load_tensors("a.safetensors")
    with pytest.raises(ValueError, match=r"a\.safetensors is not a whole safetensors file"):
        here.note("a.safetensors")


def test_loaded_tensors_survive_the_file_being_replaced(here):
    here.save_tensors("a.safetensors", {"a": torch.ones(1000)})
    loaded = here.load_tensors("a.safetensors")["a"]
    here.save_tensors("a.safetensors", {"a": torch.zeros(1000)})
    assert torch.equal(loaded, torch.ones(1000))


def test_heads_and_figures_come_back(here):
    table = HeadTable.of({"confidence": {"encoder.0.self": [0.5, None]}})
    here.save_heads(table)
    here.save_figures({"bleu": 31.5})
    assert here.heads() == table
    assert here.figures() == {"bleu": 31.5}


@pytest.mark.parametrize("name", ["../a.json", "/a.json", "x/../../a.json", "", "."])
def test_a_name_may_not_leave_the_folder(here, name):
    with pytest.raises(ValueError, match="A name stays inside the run folder"):
        here.write_json(name, 1)


def test_names_lists_whole_files_in_order(here):
    for step in ("20", "10"):
        here.save_tensors(f"trace/peak/{step}.safetensors", {"a": torch.zeros(1)})
    here.path("trace/peak/.30.safetensors.partial").write_text("half")
    assert here.names("trace/peak/*") == ["trace/peak/10.safetensors", "trace/peak/20.safetensors"]
    assert here.has("trace/peak/10.safetensors")
    assert not here.has("trace/peak/30.safetensors")
    assert not here.has("trace/peak")


def test_files_written_are_valid_json_for_anybody(here):
    for name in ("config.json", "environment.json"):
        json.loads(here.path(name).read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
def test_importing_recording_imports_neither_transformers_nor_matplotlib():
    code = (
        "import sys, headwise.recording; "
        "print({'transformers', 'matplotlib', 'pandas'} & sys.modules.keys())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "set()", answer.stderr


def test_examples_in_docstrings_hold():
    result = doctest.testmod(run)
    assert result.attempted > 0
    assert result.failed == 0


def test_tensors_have_the_rights_that_other_files_have(here):
    here.save_tensors("a.safetensors", {"a": torch.zeros(1)})
    here.write_json("a.json", {})
    rights = [here.path(name).stat().st_mode for name in ("a.safetensors", "a.json")]
    assert rights[0] == rights[1]


def test_a_full_disk_is_told_as_other_troubles_of_files_are(here, monkeypatch):
    def full(*arguments, **options):
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match=r"a\.safetensors could not be written: .*No space left"):
        here.save_tensors("a.safetensors", {"a": torch.zeros(1)})
    assert here.names("*.safetensors") == []


def test_tensors_with_a_note_are_always_the_same_bytes(tmp_path):
    run = Run.create(tmp_path / "run", Config())
    note = {name: f"é {name}\n" for name in "hgfedcba"}
    written = set()
    for _ in range(6):
        run.save_tensors("x.safetensors", {"a": torch.ones(3)}, note)
        written.add(run.path("x.safetensors").read_bytes())
    assert len(written) == 1 and run.note("x.safetensors") == note
    assert run.load_tensors("x.safetensors")["a"].tolist() == [1, 1, 1]
