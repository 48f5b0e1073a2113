"""The command: what it prints, and one sentence with exit code 2 for what is given wrongly."""

import sys

import pytest

from headwise import cli
from headwise.recording import HeadTable, Run
from headwise.reporting import write_report
from headwise.workflows.prune.pruning import run_folder
from tests.pruning.small_disk import run_on_small_disk
from tests.workflows.prune.small_tasks import QUICK, config_for, saved


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run `headwise prune`; (exit code, stdout, stderr)."""
    model = saved("classification", tmp_path / "host")
    data = tmp_path / "host" / "lab"
    monkeypatch.chdir(tmp_path)

    def run(*arguments, data=data):
        settings = {**QUICK, "speed_seconds": 0.02, "speed_batches": 1, "speed_lengths": 8}
        options = [
            part for name, value in settings.items() for part in ("--set", f"{name}={value}")
        ]
        given = [model, "--data", data, "--dev", data, "--out", tmp_path / "small", *arguments]
        line = arguments if arguments[:1] == ("inspect",) else ["prune", *given, *options]
        monkeypatch.setattr(sys, "argv", ["headwise", *map(str, line)])
        capsys.readouterr()  # what saving the model printed
        with pytest.raises(SystemExit) as end:
            cli.main()
            raise SystemExit(0)
        printed = capsys.readouterr()
        return end.value.code or 0, printed.out, printed.err

    return run


def test_it_ends_with_quality_speed_and_where_everything_is(command, tmp_path):
    code, out, _ = command("--keep", 3)
    assert code == 0
    for text in ("heads", "accuracy", "parameters", "times faster", "Gates, steered to 3 heads"):
        assert text in out
    assert "Model: " in out and "report.html" in out
    page = run_folder(tmp_path / "small") / "report.html"
    assert "One forward pass on cpu" in out
    assert "Speed of one forward pass on cpu" in page.read_text()
    assert "parameters became" in page.read_text()
    assert "<th>tokens/s before</th><th>tokens/s after</th>" in page.read_text()


def test_a_penalty_that_leaves_no_head_is_said_to_be_too_large(command, tmp_path):
    code, out, _ = command("--penalty", 100)
    said = (
        "None of the 8 heads is left: lambda times the sum over heads outweighed the loss, so a "
        "smaller --penalty keeps more."
    )
    assert code == 0 and said in out
    run = Run.open(run_folder(tmp_path / "small"))
    assert said in run.figures()["chosen_by"] and said in run.path("report.html").read_text()


def test_a_pruned_model_is_inspected_on_its_dev_text_unless_told(command, tmp_path):
    assert command("--keep", 3)[0] == 0
    code, out, _ = command("inspect", "small", "--set", "sample=0")
    assert code == 0 and "small-pruning/dev.txt, what small was measured with" in out.replace(
        "\n", ""
    )
    assert "original" in out and (tmp_path / "runs" / "inspect-small-dev" / "report.html").exists()
    code, _, error = command("inspect", tmp_path / "host" / "classification")
    assert code == 2 and "is to read: --data FILE" in error and error.count("\n") == 1


def test_help_says_what_is_pruned(command):
    code, out, _ = command("--help")
    said = " ".join(out.replace("│", " ").split())
    assert (
        code == 0 and "run of `headwise train translation`, `train mlm`, `train classifier`" in said
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "either keep=12 heads, or penalty=0.05"),
        (("--keep", 3, "--penalty", 0.1), "and penalty=0.1 sets it; give one of the two"),
        (("--keep", 3, "--choose", "no_such"), "is a column, so give its inspection"),
        (("--keep", 999), "keep must be between 0 and the 8 heads"),
        (("--keep", 3, "--where", "nowhere.*"), "chooses none of the model's sites"),
    ],
)
def test_what_is_wrong_is_one_sentence(command, arguments, sentence):
    code, _, error = command(*arguments)
    assert code == 2 and sentence in error
    assert error.startswith("headwise: ") and error.count("\n") == 1


def test_other_settings_for_the_same_folder_are_refused(command):
    assert command("--keep", 3)[0] == 0
    code, _, error = command("--keep", 4)
    assert code == 2 and "holds a run with keep=3" in error and "(--out)" in error


def test_a_report_shows_functions_of_heads_kept_and_escapes_what_it_shows(tmp_path):
    with Run.create(tmp_path / "run", config_for("masked", tmp_path / "model")) as run:
        site = "encoder.0.self"
        kept, roles = {site: [1.0, 0.0]}, {site: ["next", "<b>"]}
        run.save_heads(HeadTable.of({"kept": kept, "role": roles}))
        run.log(10, open_heads=2, perplexity=8.0)
        run.log(20, open_heads=1, perplexity=9.5)
        for step, keep in ((10, [0, 1]), (20, [0])):
            state = {"step": step, "prob_open": {site: [0.9, 0.2]}, "keep": {site: keep}}
            run.write_json(f"trace/gates/{step:07}.json", state)
        about = {"chosen_by": "Gates <script>", "shown": "perplexity"}
        figures = {"before": {"perplexity": 7.0}, "after": {"perplexity": 9.5}}
        run.write_json("trace/pruning.json", {**about, **figures, "keep": {site: [0]}})
        page = write_report(run).read_text()
    assert (
        "Gates &lt;script&gt;" in page
        and "<b>" not in page.split("</style>")[1].split("<script")[0]
    )
    assert "step 20: 1 heads kept, perplexity 9.5" in page
    assert "positional" in page and "<th>heads kept</th><th>2</th><th>1</th>" in page
    assert "1 between 0.90 and 0.95" in page


ON_A_FULL_DISK = """
import shutil, sys
from pathlib import Path
from headwise import cli
from headwise.pruning import load
from headwise.recording.checksums import digest
from tests.pruning.small_disk import PAGE, leave_room

disk, arguments = Path(sys.argv[1]), sys.argv[2:]
out = disk / "small"

def pruned(keep):
    sys.argv = ["headwise", "prune", *arguments, "--keep", str(keep), "--out", str(out)]
    try:
        cli.main()
    except SystemExit as end:
        return end.code or 0
    return 0

def held():
    return {path.name: digest(path) for path in out.iterdir()}

assert pruned(3) == 0
shutil.rmtree(disk / "small-pruning")
before, room = held(), 0
leave_room(disk, room)
while code := pruned(2):
    assert code == 2 and held() == before
    load(out)
    room += 10 * PAGE  # less than a model takes, so that saving it is what fails once
    leave_room(disk, room)
assert held() != before
load(out)
"""


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_with_more_room_the_command_goes_on(tmp_path):
    model, files = saved("classification", tmp_path / "host"), tmp_path / "host" / "lab"
    settings = {**QUICK, "steps": 10, "checkpoint_every": 10}
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    given = (model, "--data", files, "--dev", files, *options)
    said = run_on_small_disk(ON_A_FULL_DISK, tmp_path / "disk", *given).stderr.splitlines()
    folder = tmp_path / "disk" / "small"
    ways = {
        f"headwise: {folder}-pruning could not be written (": "the same command resumes.",
        f"headwise: {folder}-pruning/checkpoint.safetensors could not be written: ": "",
        f"headwise: {folder} could not be written (": "); it is as it was.",
    }
    for sentence in said:
        assert "No space left on device" in sentence
        assert any(sentence.startswith(x) and sentence.endswith(ways[x]) for x in ways), sentence
    assert all(any(sentence.startswith(x) for sentence in said) for x in ways)
