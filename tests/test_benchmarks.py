"""The benchmarks run, refuse what is wrong and save what they found; how fast is not asked here."""

import json
import math
import re
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from rich.table import Table

from benchmarks import Measured, gpu_ops, guided_step, kernel_times, peers, relevance, turns
from benchmarks import __main__ as command
from benchmarks.gpu_cases import PARTS, Case, Shape, cases
from benchmarks.judging import Contestant, Question, answer, complaint, dropout_complaint
from benchmarks.trained_heads import Training, train_heads
from headwise.guidance import Plan, guide
from headwise.ops import topk_attention
from headwise_papers.attention_guidance import _masked_steps
from headwise_papers.models import EncoderConfig

TINY = relevance.Sizes(
    classifiers=3,
    batch=2,
    hidden=8,
    copiers=2,
    copying_batch=2,
    copying_hidden=4,
    sentences=6,
    positions=100,
    lstms=(2, 1),
    lstm_width=3,
    in_sequence=2,
    warm=1,
    updates=1,
    agreement=1e-3,
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(relevance, "SIZES", {"cpu": TINY})
    monkeypatch.setattr(relevance, "WORDS", 50)


def run(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)  # those of the tests stay
    command.main()


def test_the_relevance_benchmark_saves_a_row_for_every_peer(tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    run(monkeypatch, "relevance", "--device", "cpu", "--repeat", "1", "--save")
    saved = json.loads((tmp_path / "relevance-cpu.json").read_text())
    peers = [row["peer"] for row in saved["rows"]]
    assert peers == [
        "RnnClassifier, in sequence",
        "nn.LSTM unpacked, in sequence",
        "a loop over sentences",
        "nn.LSTM unpacked, in sequence",
        "nn.LSTM, in sequence",
        "nn.LSTM",
    ]
    assert all(row["ours_ms"] > 0 and row["peer_ms"] > 0 for row in saved["rows"])
    assert saved["environment"]["command"][2:4] == ["benchmarks", "relevance"]
    assert "many at once" in capsys.readouterr().out


def test_a_peer_that_learns_otherwise_is_not_timed(tiny, monkeypatch):
    other = relevance.classified
    monkeypatch.setattr(relevance, "classified", lambda *given: 3 * other(*given))
    with pytest.raises(SystemExit, match=r"nn\.LSTM unpacked, in sequence: results differ"):
        relevance.measure(1, torch.device("cpu"))


def test_measures_that_differ_are_not_timed(tiny, monkeypatch):
    monkeypatch.setattr(relevance, "look_at_sentences", lambda *given: lambda: (0.5, 2.0))
    with pytest.raises(SystemExit, match="measures differ"):
        relevance.measure(1, torch.device("cpu"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("guided-step", "--device", "cpu"), "guided-step has no CPU version; it needs a GPU"),
        (("ops", "--device", "cuda"), "there is no GPU"),
        (("lops",), "unknown benchmark 'lops'"),
        (("ops", "--device", "cpu", "--only", "adasplash"), "ops has no part 'adasplash' on cpu"),
        (("sen", "--only", "topk"), "sen has no parts"),
        (("ops", "--repeat", "0"), "at least 1"),
        (("ops", "--device", "moon"), "invalid choice"),
    ],
    ids=lambda given: given[-1] if isinstance(given, tuple) else "",
)
def test_what_cannot_be_run_is_said_in_one_sentence(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert said in error and error.startswith("headwise: ") and error.count("\n") == 1


def test_the_command_writes_what_it_finds_and_says_when_something_is_wrong(
    monkeypatch, tmp_path, capsys
):
    def measure(repeat, device, *, only):
        assert (repeat, device.type, only) == (5, "cpu", ("topk",))
        return Measured([{"op": "topk"}], Table("op"), wrong=1)

    monkeypatch.setattr(command, "_load", lambda module: measure)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    given = ["ops", "--device", "cpu", "--only", "topk", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *given])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    (path,) = tmp_path.iterdir()
    saved = json.loads(path.read_text())
    assert stopped.value.code == 1 and "1 wrong" in capsys.readouterr().err
    assert re.fullmatch(r"ops-topk-cpu-\d{4}-\d\d-\d\d\.json", path.name)
    assert saved["rows"] == [{"op": "topk"}] and saved["settings"]["repeat"] == 5
    assert saved["environment"]["command"][2:4] == ["benchmarks", "ops"]


def test_results_of_some_parts_leave_those_of_all_alone(monkeypatch, tmp_path):
    def measure(repeat, device, *, only=()):
        return Measured([{"op": part} for part in only], Table("op"))

    monkeypatch.setattr(command, "_load", lambda module: measure)
    monkeypatch.setattr(command, "RESULTS", tmp_path / "saved")
    given = ["ops", "--device", "cpu", "--save", "--out", str(tmp_path / "out")]
    for only in ([], ["--only", "topk"], ["--only", "guidance,topk"], ["--only", "topk,guidance"]):
        run(monkeypatch, *given, *only)
    saved, out = (
        sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("saved", "out")
    )
    assert saved == ["ops-cpu.json", "ops-topk-cpu.json", "ops-topk-guidance-cpu.json"]
    assert [name[:-16] for name in out] == ["ops-cpu", "ops-topk-cpu", "ops-topk-guidance-cpu"]
    assert json.loads((tmp_path / "saved" / "ops-cpu.json").read_text())["rows"] == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (1, "1 peer's answer was wrong; it is not timed."),
        (9, "9 peers' answers were wrong; they are not timed."),
    ],
)
def test_peers_that_are_wrong_are_told_of_and_are_no_failure(wrong, said, monkeypatch, capsys):
    def measure(repeat, device):
        return Measured([], Table("op"), wrong_peers=wrong)

    monkeypatch.setattr(command, "_load", lambda module: measure)
    run(monkeypatch, "ops", "--device", "cpu")
    assert said in capsys.readouterr().out.splitlines()


def test_on_a_cpu_guidance_is_compared_with_matrices(monkeypatch):
    pytest.importorskip("entmax", reason="ops compares with this package")
    from benchmarks import ops

    monkeypatch.setattr(ops, "SHAPES", [(2, 4, 16, 8)])
    (row,) = ops.measure(1, CPU, only=("guidance",)).rows
    assert row["best_peer"] == "eager matrices"
    for times in (row["forward_ms"], row["forward_backward_ms"]):
        assert times.keys() == {"headwise", "sdpa", "eager matrices"}
    (case,) = [case for case in ops._cases() if ops._part(case) == "guidance"]
    matrices = case.peers["eager matrices"]
    wrong = replace(case, peers={"eager matrices": lambda q, k, v: matrices(q, 1.1 * k, v)})
    with pytest.raises(SystemExit, match="differ from the definition"):
        ops._measure_case(wrong, (2, 4, 16, 8), 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topkk",), "there is no op 'topkk'; choose from sdpa, topk,"),
        (("topk", "0"), "lengths must be from 1 to 16,384, got 0."),
        (("topk",), "there is no GPU"),
    ],
)
def test_kernels_of_an_unknown_op_cannot_be_timed(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        kernel_times.main(arguments)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert said in error and error.startswith("headwise: ") and error.count("\n") == 1


def test_the_ops_whose_kernels_can_be_timed_are_those_that_are_named():
    given = list(torch.randn(3, 1, kernel_times.HEADS, 4, 8))
    assert tuple(kernel_times.ops(given, given[0])) == kernel_times.OPS


def test_a_kernel_has_another_tile_for_as_long_as_it_is_timed():
    tiles = pytest.importorskip("benchmarks.tiles", reason="Triton is not installed")
    for place in tiles.PLACES:
        own = tiles.present(place)
        with pytest.raises(KeyboardInterrupt), tiles.another(place, tiles.Tile(1, 2, 3, 4)):
            now = tiles.present(place)
            assert tiles.Tile(1, 2, 3, 4) in (now, *now)
            raise KeyboardInterrupt
        assert tiles.present(place) == own


def test_a_benchmark_with_one_wants_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "relevance", "--device", "cuda")
    assert stopped.value.code == 2 and "there is no GPU" in capsys.readouterr().err


def test_auto_takes_a_gpu_where_benchmark_and_machine_have_one(monkeypatch):
    for there, wanted in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert command._device("relevance", "auto").type == wanted
        assert command._device("guided-step", "auto").type == wanted


def test_only_the_benchmark_with_that_peer_wants_entmax(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "entmax", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "benchmarks.ops", raising=False)
    assert command._load("relevance") is relevance.measure
    with pytest.raises(SystemExit) as stopped:
        command._load("ops")
    assert stopped.value.code == 2 and "install headwise[bench]" in capsys.readouterr().err


def test_results_of_a_machine_without_entmax_say_so(monkeypatch):
    def version(name: str) -> str:
        raise command.PackageNotFoundError(name)

    monkeypatch.setattr(command, "version", version)
    assert command._with_peers({"versions": {"torch": "2"}})["versions"] == {
        "torch": "2",
        **dict.fromkeys(("triton", "entmax", "adasplash", "x-transformers")),
    }


# The GPU benchmark, at sizes that Triton's interpreter can do on a CPU.

CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(
    find_spec("triton") is None or torch.cuda.is_available(),
    reason="Triton is not installed, or compiles kernels where there is a GPU",
)
TINY_SHAPE = Shape(1, 2, 32, 16)
TRAINING = Training(heads=2, width=16, steps=2, batch=2, length=16, positions=64, warm_up=1)
STEP = _masked_steps.Settings(
    EncoderConfig.tiny(30, width=16, feed_forward=16, max_length=20), batch=2, length=8
)


@pytest.fixture
def text_folder(tmp_path):
    (tmp_path / "wikitext-2").mkdir()
    (tmp_path / "wikitext-2" / "train.txt").write_text(" the cat sat on the mat .\n" * 40)
    return tmp_path


def inputs(shape: Shape = TINY_SHAPE) -> list[torch.Tensor]:
    return list(torch.randn(3, *shape))


def settings(**changes) -> gpu_ops.Settings:
    def untrained(device):
        raise ValueError("There is no text.")

    given = {
        "shapes": [TINY_SHAPE],
        "dtype": torch.float32,
        "peer_seconds": 0.0,
        "train": untrained,
    }
    return gpu_ops.Settings(**(given | changes))


def case_named(name: str) -> Case:
    return next(case for case in cases(TINY_SHAPE, CPU) if case.name == name)


def judged(attend, question: Question, given, *, coarse: bool = False) -> str | None:
    right = answer(question, given, [0, 1], coarse=coarse)
    return complaint(Contestant("somebody", attend, coarse=coarse), question, given, right)


def reference_topk(q, k, v, *, keep: int = 8):
    return (topk_attention(q, k, v, keep=keep, impl="reference").out,)


def test_every_part_has_cases_and_the_issue_s_aims_stand_beside_them():
    every = cases(Shape(8, 16, 2048, 64), CPU)
    assert {case.part for case in every} == set(PARTS) <= set(command.PARTS["gpu_ops"])
    aims = {case.name: case.aims for case in every if any(case.aims)}
    assert aims == {
        "top-k keep 8": (1.2, 1.0),
        "entmax-1.5": (None, 2.2),
        "sparsemax": (None, 2.2),
        "statistics, entropy's gradient": (1.0, None),
        "guidance on half the heads": (None, 0.35),
    }


@pytest.mark.slow
@interpreted
def test_ops_are_timed_on_both_kinds_of_inputs_and_kept_as_they_come(text_folder):
    train = partial(train_heads, folder=text_folder, training=TRAINING)
    kept: list[int] = []
    measured = gpu_ops.measure(
        1,
        CPU,
        only=("guidance",),
        keep=lambda rows: kept.append(len(rows)),
        settings=settings(train=train),
    )
    ours = [row for row in measured.rows if row["who"] == "headwise"]
    assert [row["inputs"] for row in ours] == ["N(0, 1)", "trained encoder"]
    for row in ours:
        assert row["both_ratio"] == pytest.approx(row["both_ms"] / row["both_sdpa_ms"], rel=0.02)
        assert row["forward_ms"] > 0
    assert math.isfinite(ours[1]["encoder_loss"])
    assert kept == sorted(set(kept)) and len(kept) == 3 and measured.wrong == 0
    flex = next(row for row in measured.rows if row["who"].startswith("Flex"))
    assert "time for compiling peers is spent" in flex["reason"]
    assert measured.table.row_count == len(measured.rows)


@interpreted
def test_a_topk_row_tells_how_often_keys_were_swept_again():
    measured = gpu_ops._measure(
        case_named("top-k keep 8"),
        inputs(Shape(1, 1, 32, 16)),
        [case_named("top-k keep 8").contestant],
        gpu_ops.Course(1, CPU, settings()),
    )
    assert [row["who"] for row in measured] == ["SDPA", "headwise"]
    assert measured[1]["flagged_blocks"] == 0 and measured[1]["flagged_rows"] == 0


def test_without_the_text_the_trained_block_is_left_out_with_a_reason(monkeypatch):
    monkeypatch.setattr(gpu_ops, "cases", lambda *given: [])
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    measured = gpu_ops.measure(1, CPU, settings=settings(train=train_heads))
    assert [row["inputs"] for row in measured.rows] == ["trained encoder"]
    assert "HEADWISE_DATA is not set" in measured.rows[0]["reason"]


@interpreted
def test_a_wrong_op_has_no_speed_and_counts(monkeypatch):
    def wrong(q, k, v):
        return (1.01 * reference_topk(q, k, v)[0],)

    only = replace(case_named("top-k keep 8"), ours=wrong)
    monkeypatch.setattr(gpu_ops, "cases", lambda *given: [only])
    measured = gpu_ops.measure(1, CPU, settings=settings())
    ours = next(row for row in measured.rows if row["who"] == "headwise")
    eager = next(row for row in measured.rows if row["who"] == "eager")
    assert ours["wrong"].startswith("output 0 off by") and "forward_ms" not in ours
    assert eager["forward_ms"] > 0 and (measured.wrong, measured.wrong_peers) == (1, 0)


def test_a_wrong_peer_has_no_speed_and_is_counted_apart(monkeypatch):
    case = replace(case_named("top-k keep 8"), ours=reference_topk)
    twice = Contestant("twice", lambda q, k, v: (2 * reference_topk(q, k, v)[0],))
    monkeypatch.setattr(gpu_ops, "cases", lambda *given: [case])
    monkeypatch.setattr(gpu_ops, "peers_of", lambda *given, **options: [twice])
    monkeypatch.setattr(gpu_ops, "failures", lambda *given: {})
    measured = gpu_ops.measure(1, CPU, settings=settings())
    row = next(row for row in measured.rows if row["who"] == "twice")
    assert "wrong" in row and "forward_ms" not in row
    assert (measured.wrong, measured.wrong_peers) == (0, 1)


@interpreted
def test_what_lists_keys_is_timed_forward_only():
    case = case_named("topk_selected keep 8")
    contestants = [case.contestant, *peers.peers_of(case)]
    given = inputs(Shape(1, 1, 32, 16))
    rows = gpu_ops._measure(case, given, contestants, gpu_ops.Course(1, CPU, settings()))
    names = ["SDPA", "headwise", "eager softmax, topk", "topk of scores"]
    assert [row["who"] for row in rows] == names
    assert all(row["forward_ratio"] > 0 and "both_ms" not in row for row in rows)
    assert not any("wrong" in row or "flagged_blocks" in row for row in rows)


def test_a_package_that_could_not_be_imported_once_is_not_found_later(monkeypatch, tmp_path):
    package = tmp_path / "half_there"
    package.mkdir()
    (package / "__init__.py").write_text("import half_there.part\nimport no_such_module\n")
    (package / "part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    first, second = (peers._imported("half_there.part") for _ in range(2))
    monkeypatch.delitem(sys.modules, "half_there.part")  # Python keeps it, and would find it
    assert first == second == (None, "ModuleNotFoundError: No module named 'no_such_module'")


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_wrong_gradient_is_noticed(name):
    def doubled(*given):
        changed = [
            2 * x - x.detach() if n == name else x for n, x in zip("qkv", given, strict=True)
        ]
        return reference_topk(*changed)

    question, given = case_named("top-k keep 8").question, inputs()
    assert judged(reference_topk, question, given) is None
    assert judged(doubled, question, given).startswith(f"d{name} off by")


def test_a_gradient_of_another_head_is_noticed():
    def swapped(q, k, v):
        return (reference_topk(q, k.flip(1), v)[0],)

    assert judged(swapped, case_named("top-k keep 8").question, inputs())


def test_a_result_that_is_no_number_is_wrong():
    def empty(q, k, v):
        return (reference_topk(q, k, v)[0] * torch.nan,)

    assert "nan" in judged(empty, case_named("top-k keep 8").question, inputs())


def test_choices_within_rounding_are_excused_and_others_are_not():
    q = torch.ones(1, 2, 1, 1)
    v = torch.tensor([1.0, 5.0, 0.0]).expand(1, 2, 3)[..., None]

    def second(q, k, v):
        return reference_topk(q, k.flip(2), v.flip(2), keep=1)

    def first(q, k, v, *, shift):
        return reference_topk(q, k + shift, v, keep=1)

    question = Question(lambda head, q, k, v: reference_topk(q, k, v, keep=1), keep=1)
    near = torch.tensor([1.0, 1 + 1e-5, 0.0]).expand(1, 2, 3)[..., None]
    far = torch.tensor([1.0, 1.1, 0.0]).expand(1, 2, 3)[..., None]
    tip = torch.tensor([0.2, 0.0, 0.0])[:, None]
    other = partial(first, shift=tip)
    assert judged(other, question, [q, near, v]) is None
    assert judged(other, question, [q, far, v]).startswith("output 0")
    assert judged(second, question, [q, far, v]) is None


def test_dropout_that_differs_in_the_backward_pass_is_noticed():
    def attend(q, k, v, *, same: bool):
        weights = (q @ k.mT).softmax(-1)
        once, again = (torch.rand_like(weights) >= 0.1 for _ in range(2))
        out = (weights * once / 0.9) @ v
        other = (weights * again / 0.9) @ v
        return (out if same else out.detach() + other - other.detach(),)

    given = inputs(Shape(2, 8, 64, 16))
    right, wrong = (Contestant("", partial(attend, same=same)) for same in (True, False))
    assert dropout_complaint(right, given, 0.1) is None
    assert "is not <v, dv>" in dropout_complaint(wrong, given, 0.1)


def test_dropout_without_rescaling_is_noticed():
    def attend(q, k, v):
        weights = (q @ k.mT).softmax(-1)
        return ((weights * (torch.rand_like(weights) >= 0.1)) @ v,)

    given = inputs(Shape(2, 8, 64, 16))
    assert "weights sum to 0.9" in dropout_complaint(Contestant("", attend), given, 0.1)


def test_peers_that_are_not_installed_say_so(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    reasons = {
        peer.name: peer.reason
        for name in ("top-k keep 8", "entmax-1.5", "entmax-1.5 causal", "sparsemax")
        for peer in peers.peers_of(case_named(name))
        if peer.attend is None
    }
    assert reasons == dict.fromkeys(
        (
            "x-transformers",
            "entmax.entmax15",
            "adasplash 1",
            "adasplash 2, causal",
            "entmax.sparsemax",
        ),
        "not installed",
    )


def test_a_peer_that_fails_is_reported_in_one_line_and_nobody_else_suffers():
    def fail(q, k, v):
        raise NotImplementedError("No such\nkernel.")

    case = case_named("statistics, entropy's gradient")
    course = gpu_ops.Course(1, CPU, settings())
    given = [Contestant("poor", fail), *peers.peers_of(case)[:1]]
    rows = gpu_ops._measure(case, inputs(), given, course)
    assert rows[1] == {"who": "poor", "reason": "NotImplementedError: No such kernel."}
    assert rows[2]["who"] == "eager matrix" and rows[2]["forward_ms"] > 0


@pytest.mark.parametrize("name", ["top-k keep 8", "statistics, entropy's gradient"])
def test_peers_that_need_no_compiler_are_right(name):
    case = case_named(name)
    for peer in peers.peers_of(case):
        if peer.attend and not peer.compiles:
            assert judged(peer.attend, case.question, inputs(), coarse=peer.coarse) is None


def test_slow_contestants_get_fewer_turns(monkeypatch):
    monkeypatch.setattr(turns, "SLOW_SECONDS", 0)
    times = turns.take_turns({"one": lambda: None}, CPU, repeat=9)
    assert times["one"].turns == turns.LEAST_TURNS


def test_a_guided_step_is_timed_beside_the_plain_one_and_the_eager_way():
    measured = guided_step.measure(1, CPU, settings=STEP, compiled=False)
    assert [row["who"] for row in measured.rows] == [
        "eager, loss from the matrices",
        "plain",
        "guided",
    ]
    assert measured.wrong == 0
    assert all(row["step_ms"] > 0 and row["ratio"] > 0 for row in measured.rows)
    assert measured.rows[2]["aim"] == 1.05


def test_a_guided_step_with_another_loss_is_not_timed(monkeypatch):
    def guide_otherwise(model, plan, **options):
        return guide(model, Plan(next=1), **options)

    monkeypatch.setattr(_masked_steps, "guide", guide_otherwise)
    measured = guided_step.measure(1, CPU, settings=STEP, compiled=False)
    assert measured.wrong == 1 and "from the matrices" in measured.rows[2]["wrong"]
    assert "step_ms" not in measured.rows[2]
