"""prune: any kind of model, any choice, the same after an interruption, and honest at the end."""

import json

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from headwise import adopt, pruning
from headwise.pruning import prune
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise.workflows.inspect.opening import open_subject
from headwise.workflows.prune import prune_folder
from headwise.workflows.prune.pruning import _in_float32, dev_text, run_folder
from tests.hf.families import TWO_STACKS, build
from tests.papers.recipes.small_translation import stopping
from tests.workflows.prune.small_tasks import KINDS, config_for, grouped, saved
from tests.workflows.small_hosts import save, tokenizer_for

CLOCKS = ("seconds", "tokens_per_second", "minutes")


def heads_of(folder):
    """How many heads of each site the record of a saved model has left."""
    record = json.loads((folder / "pruning.json").read_text())["record"]
    return {site: len(kept) for site, kept in record["kept"].items()}


def lasting(run):
    metrics = [{k: v for k, v in row.items() if k not in CLOCKS} for row in run.metrics()]
    return metrics, {k: v for k, v in run.figures().items() if k not in CLOCKS}


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_heads_stay_as_were_asked_for_and_quality_is_that_of_the_gated_model(
    kind, tmp_path
):
    model = saved(kind, tmp_path / "host")
    run = prune_folder(config_for(kind, model), tmp_path / "small")
    assert sum(heads_of(tmp_path / "small").values()) == 3 == run.figures()["heads_kept"]
    figures, last = run.figures(), run.metrics()[-1]
    for name in ("validation_loss", "accuracy"):
        assert figures[f"{name}_after"] == pytest.approx(last[name], rel=1e-4)
    assert figures["parameters_after"] < figures["parameters_before"]
    assert last["open_heads"] == 3
    assert len(run.names("trace/gates/*.json")) == 3
    assert type(pruning.load(tmp_path / "small")) is type(open_subject(model).model)
    page = run.path("report.html").read_text()
    assert "What was pruned" in page and "against heads kept" in page and "P(open)" in page
    assert ("bleu_after" in figures) == (kind == "translation")
    assert (tmp_path / "small" / "tokenizer.json").exists()


def test_weights_kept_in_half_precision_are_trained_in_float32_and_kept_in_half_again(tmp_path):
    model = saved("classification", tmp_path / "host")
    before = open_subject(model).model.half()
    before.save_pretrained(model)
    prune_folder(config_for("classification", model), tmp_path / "small")
    after = pruning.load(tmp_path / "small")
    assert {weight.dtype for weight in after.parameters()} == {torch.float16}
    old, new = (dict(x.named_parameters())["classifier.weight"] for x in (before, after))
    assert new.isfinite().all() and not torch.equal(old, new)


def test_only_half_precision_becomes_float32_and_an_error_undoes_it():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2).half(), torch.nn.LayerNorm(2)).append(
        torch.nn.Linear(2, 2).double()
    )
    kept_in = [x.dtype for x in model.parameters()]
    with pytest.raises(KeyboardInterrupt), _in_float32(model):
        wide = [torch.float32] * 4 + [torch.float64] * 2
        assert [x.dtype for x in model.parameters()] == wide
        raise KeyboardInterrupt
    assert [x.dtype for x in model.parameters()] == kept_in


def test_t5_s_table_is_kept_in_half_again_when_its_first_layer_is_gone():
    model = adopt(build("T5").bfloat16())
    with _in_float32(model):
        prune(model, {"encoder.0.self": [], "encoder.1.self": [0, 1]})
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_what_is_known_of_the_unpruned_model_is_not_measured_again(tmp_path):
    model = saved("classification", tmp_path / "host")
    config = config_for("classification", model, steps=0, choose="random")
    known = {"accuracy": 0.125, "validation_loss": 7.5}
    figures = prune_folder(config, tmp_path / "small", before=known).figures()
    assert figures["accuracy_before"] == 0.125 and figures["accuracy_after"] != 0.125


def test_a_dear_head_closes_all_and_a_cheap_one_none(tmp_path):
    model = saved("classification", tmp_path / "host")
    cheap, dear = (
        prune_folder(
            config_for("classification", model, penalty=penalty), tmp_path / f"at-{penalty}"
        ).figures()
        for penalty in (0.0, 100.0)
    )
    assert cheap["heads_kept"] == 8 and "is left" not in cheap["chosen_by"]
    assert dear["heads_kept"] == 0 and "None of the 8 heads is left" in dear["chosen_by"]


def test_gates_without_time_to_close_are_warned_of(tmp_path):
    model = saved("classification", tmp_path / "host")
    config = config_for("classification", model, penalty=100.0, gate_learning_rate=0.05)
    with pytest.warns(UserWarning, match="more --steps or a larger --gate-learning-rate"):
        figures = prune_folder(config, tmp_path / "small").figures()
    assert figures["heads_kept"] == 8 and "--gate-learning-rate" in figures["chosen_by"]


@pytest.mark.parametrize("choose", ["random", "greedy"])
def test_no_head_may_be_left_and_the_rest_is_trained_and_timed(choose, tmp_path):
    model = saved("classification", tmp_path / "host")
    quick = {"steps": 10, "speed_seconds": 0.01, "speed_batches": (1,), "speed_lengths": (8,)}
    config = config_for("classification", model, choose=choose, keep=0, **quick)
    run = prune_folder(config, tmp_path / "small")
    assert run.figures()["heads_kept"] == 0 and run.metrics()[-1]["open_heads"] == 0
    assert len(run.read_json("trace/speed.json")["workloads"]) == 1


def test_timing_that_fails_is_a_note_on_a_pruning_that_is_done(tmp_path):
    model = saved("classification", tmp_path / "host")
    config = config_for(
        "classification", model, steps=10, speed_seconds=0.01, speed_backends=("no_such",)
    )
    run = prune_folder(config, tmp_path / "small")
    assert run.figures()["heads_kept"] == 3
    note = "Speed could not be measured: BertForSequenceClassification cannot attend with"
    assert run.read_json("trace/speed.json")["verdicts"][0].startswith(note)
    assert note in run.path("report.html").read_text()


def test_a_classifier_with_a_decoder_is_pruned_and_timed(tmp_path):
    folder = saved("classification", tmp_path / "host").parent
    shape = hf.BartConfig(**TWO_STACKS, num_labels=2)
    model = save(hf.BartForSequenceClassification(shape), tokenizer_for("BART"), folder / "bart")
    quick = {"speed_seconds": 0.01, "speed_batches": (2,), "speed_lengths": (8,)}
    run = prune_folder(config_for("classification", model, **quick), tmp_path / "small")
    assert len(run.read_json("trace/speed.json")["workloads"]) == 1


def test_a_killed_pruning_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch):
    model = saved("classification", tmp_path / "host")
    config = config_for("classification", model)
    whole = prune_folder(config, tmp_path / "whole")
    place = "headwise.workflows.prune.choosing_heads.progress_bar"
    from headwise.workflows.prune.choosing_heads import progress_bar

    with monkeypatch.context() as patch:
        patch.setattr(place, stopping(progress_bar, 20))
        patch.setattr("headwise.workflows.prune.choosing_heads.SHOWN", ("loss",))
        with pytest.raises(KeyboardInterrupt):
            prune_folder(config, tmp_path / "killed")
    assert not (tmp_path / "killed").exists()
    again = prune_folder(config, tmp_path / "killed")
    assert lasting(again) == lasting(whole) and again.heads() == whole.heads()
    one, other = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "killed"))
    assert all(torch.equal(one[name], other[name]) for name in one)

    monkeypatch.setattr("headwise.workflows.prune.pruning.open_task", None)
    assert lasting(prune_folder(config, tmp_path / "killed")) == lasting(whole)  # not done again


def test_a_full_disk_while_saving_leaves_what_was_there_and_the_next_start_ends_it(
    tmp_path, monkeypatch
):
    model = saved("classification", tmp_path / "host")
    config = config_for("classification", model, steps=20)
    prune_folder(config_for("classification", model, steps=10), tmp_path / "small")
    before = (tmp_path / "small" / "model.safetensors").read_bytes()
    run_folder(tmp_path / "small").rename(tmp_path / "elsewhere")

    def full(*given, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", full)
        patch.setattr("headwise.recording.run.Run.save_tensors", lambda *given: None)
        with pytest.raises(OSError, match="No space left"):
            prune_folder(config, tmp_path / "small")
    assert (tmp_path / "small" / "model.safetensors").read_bytes() == before
    assert sum(heads_of(tmp_path / "small").values()) == 3
    prune_folder(config, tmp_path / "small")
    assert (tmp_path / "small" / "model.safetensors").read_bytes() != before


@pytest.mark.parametrize("choose", ["random", "greedy"])
def test_other_choices_keep_as_many_and_are_then_trained(choose, tmp_path):
    model = saved("classification", tmp_path / "host")
    run = prune_folder(config_for("classification", model, choose=choose), tmp_path / "small")
    assert sum(heads_of(tmp_path / "small").values()) == 3
    losses = [row["validation_loss"] for row in run.metrics() if "validation_loss" in row]
    assert losses[-1] < run.figures()["validation_loss_before"]
    assert sum(run.heads()["kept"]) == 3


def test_an_inspection_chooses_and_tells_functions(tmp_path):
    model = saved("classification", tmp_path / "host")
    text = str(tmp_path / "host" / "text")
    looked = inspect_folder(
        InspectConfig(str(model), text, sample=4, ablation_lines=0), tmp_path / "looked"
    )
    config = config_for(
        "classification", model, choose="confidence", inspection=str(tmp_path / "looked"), steps=0
    )
    run = prune_folder(config, tmp_path / "small")
    best = {str(head) for head in looked.sort("confidence").heads[:3]}
    table = run.heads()
    assert {str(h) for h, kept in zip(table.heads, table["kept"], strict=True) if kept} == best
    assert table["confidence"] == looked["confidence"] and "role" in table.columns
    with pytest.raises(ValueError, match="no column 'confidenze'"):
        prune_folder(
            config_for(
                "classification",
                model,
                choose="confidenze",
                inspection=str(tmp_path / "looked" / "heads.json"),
            ),
            tmp_path / "other",
        )


@pytest.mark.parametrize("kind", ["classification", "translation"])
def test_without_an_inspection_a_look_at_dev_lines_tells_functions(kind, tmp_path):
    model, changes = saved(kind, tmp_path / "host"), {"choose": "random", "steps": 0}
    run = prune_folder(config_for(kind, model, inspect_lines=12, **changes), tmp_path / "small")
    texts = (tmp_path / "host" / "source").read_text().splitlines()
    (tmp_path / "text").write_text("\n".join(texts[:12]))
    looking = InspectConfig(str(model), str(tmp_path / "text"), sample=0, samples=0)
    looked = inspect_folder(looking, tmp_path / "looked")
    table, page = run.heads(), run.path("report.html").read_text()
    assert table["role"] == looked["role"] and table["confidence"] == looked["confidence"]
    assert "what the heads did before pruning, in 12 lines of the dev set." in page
    assert (
        " kept)</li>" in page and dev_text(tmp_path / "small").read_text().split("\n")[:-1] == texts
    )
    tokenizer = json.loads((tmp_path / "small" / "tokenizer.json").read_text())
    assert tokenizer["truncation"] is None and tokenizer["padding"] is None

    run = prune_folder(config_for(kind, model, **changes), tmp_path / "unlooked")
    assert run.heads().columns.keys() == {"kept"}
    assert "was not inspected; --set inspect_lines=200 or" in run.path("report.html").read_text()


def test_a_failed_inspection_is_a_note(tmp_path, monkeypatch):
    def fail(*given):
        raise ValueError("No such words.")

    monkeypatch.setattr("headwise.workflows.prune.pruning.Examination.examined", fail)
    model = saved("masked", tmp_path / "host")
    config = config_for("masked", model, inspect_lines=5, choose="random", steps=0)
    page = prune_folder(config, tmp_path / "small").path("report.html").read_text()
    assert "What the heads do could not be found out: No such words." in page


def test_heads_that_share_keys_go_together(tmp_path):
    model = grouped(tmp_path / "host")
    prune_folder(config_for("causal", model, keep=2), tmp_path / "small")
    kept = heads_of(tmp_path / "small").values()
    assert sorted(kept) == [0, 2]
    with pytest.raises(ValueError, match="multiple of the 2 heads"):
        prune_folder(config_for("causal", model, keep=3), tmp_path / "odd")


def test_a_frozen_decoder_stays_and_two_files_are_pairs(tmp_path):
    model = saved("translation", tmp_path / "host")
    files = (str(tmp_path / "host" / "source"), str(tmp_path / "host" / "target"))
    config = config_for(
        "translation", model, data=files, dev=files, where="encoder.*", freeze="decoder"
    )
    prune_folder(config, tmp_path / "small")
    before, after = (load_file(path / "model.safetensors") for path in (model, tmp_path / "small"))
    decoder = [name for name in after if ".decoder." in name and name in before]
    encoder = [name for name in after if ".encoder." in name and name in before]
    assert decoder and all(torch.equal(before[name], after[name]) for name in decoder)
    assert any(
        before[name].shape == after[name].shape and not torch.equal(before[name], after[name])
        for name in encoder
    )


def test_a_pruned_hugging_face_model_is_inspected_and_pruned_again(tmp_path):
    model = saved("masked", tmp_path / "host")
    prune_folder(config_for("masked", model, keep=5, steps=10), tmp_path / "host" / "small")
    looking = InspectConfig(
        str(tmp_path / "host" / "small"), str(tmp_path / "host" / "text"), sample=0
    )
    table = inspect_folder(looking, tmp_path / "looked")
    kept = json.loads((tmp_path / "host" / "small" / "pruning.json").read_text())["record"]["kept"]
    names = [f"{site}.{head}" for site, heads in kept.items() for head in heads]
    assert len(table) == 5 and list(table["original"]) == names
    assert next(iter(table.columns)) == "original"
    page = (tmp_path / "looked" / "report.html").read_text()
    assert f'<td class="text">{names[-1]}</td>' in page and f", was {names[-1]}" in page
    again = config_for("masked", tmp_path / "host" / "small", keep=2, steps=10)
    assert prune_folder(again, tmp_path / "smaller").figures()["heads_before"] == 5
    assert sum(heads_of(tmp_path / "smaller").values()) == 2
