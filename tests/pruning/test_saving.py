"""save and load: what comes back is what was pruned, and what is not whole is refused."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers as hf

from headwise.hf import adopt, release
from headwise.kinds import Kind, register
from headwise.pruning import record, saving
from headwise.pruning.cutting import prune, rebuild
from headwise.pruning.record import RECIPE, record_of
from headwise.pruning.saving import load, save
from headwise.recording import files
from headwise.recording.checksums import digest
from headwise.sites import find_sites, masked
from tests.hf.families import FAMILIES, GROUPED, batch_of, build, outputs, randomised
from tests.pruning.shrinking import bare_keep, randomised_biases, removed, uneven_keep
from tests.pruning.small_disk import run_on_small_disk
from tests.support.small_transformer import SmallConfig, SmallTransformer


def small(name="BERT"):
    model = adopt(randomised_biases(build(name)))
    return prune(model, {**uneven_keep(model), **bare_keep(model)})


@pytest.fixture
def saved(tmp_path) -> Path:
    save(small(), tmp_path / "small")
    return tmp_path / "small"


def rewritten(folder: Path, **changes) -> None:
    """Change the recipe and its checksum, as somebody would who knows how it is made."""
    held = json.loads((folder / RECIPE).read_text())
    held.pop("checksum")
    held.update(changes)
    (folder / RECIPE).write_text(json.dumps({**held, "checksum": record._checksum(held)}))


def own(**settings) -> SmallTransformer:
    """A model of one's own, of which heads were pruned."""
    return prune(SmallTransformer(SmallConfig(**settings)).eval(), {"encoder.0.self": [1]})


def test_a_model_that_says_how_it_is_rebuilt_comes_back(tmp_path):
    model = own()
    save(model, tmp_path / "small")
    again, inputs = load(tmp_path / "small"), model.example_inputs(2, 5, 3, padding=2)
    with torch.no_grad():
        assert torch.equal(again(**inputs), model(**inputs))
    assert again.read_out.weight is again.embed_target.words.weight
    assert json.loads((tmp_path / "small" / RECIPE).read_text())["kind"] == "small"


def test_a_clean_process_loads_it_without_the_original(saved, tmp_path):
    wanted = outputs(small(), batch_of("BERT"))
    safetensors.torch.save_file(batch_of("BERT"), tmp_path / "batch.safetensors")
    script = (
        "import sys, safetensors.torch, torch; from headwise.pruning.saving import load\n"
        "model = load(sys.argv[1]); batch = safetensors.torch.load_file(sys.argv[2])\n"
        "logits = model(**batch).logits.detach()\n"
        "safetensors.torch.save_file({'logits': logits}, sys.argv[3])\n"
    )
    paths = [saved, tmp_path / "batch.safetensors", tmp_path / "logits.safetensors"]
    subprocess.run([sys.executable, "-c", script, *map(str, paths)], check=True)
    got = safetensors.torch.load_file(tmp_path / "logits.safetensors")["logits"]
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_precision_and_tied_weights_are_kept(dtype, tmp_path):
    model = small("Llama").to(dtype)
    save(model, tmp_path / "llama")
    again = load(tmp_path / "llama")
    assert {parameter.dtype for parameter in again.parameters()} == {dtype}
    bart = small("BART")
    save(bart, tmp_path / "bart")
    again = load(tmp_path / "bart")
    assert again.lm_head.weight is again.model.encoder.embed_tokens.weight
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in bart.parameters())
    save(own().to(dtype), tmp_path / "own")
    assert load(tmp_path / "own").embed_source.positions.dtype == dtype


def test_t5_s_shared_table_is_still_shared(tmp_path):
    model = adopt(build("T5"))
    save(prune(model, uneven_keep(model)), tmp_path / "small")
    blocks = load(tmp_path / "small").encoder.block
    tables = [block.layer[0].SelfAttention.relative_attention_bias.weight for block in blocks]
    assert tables[0] is tables[1]


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"input_ids": torch.arange(3, 9) + index, "labels": torch.arange(4, 8) + index}


@pytest.mark.parametrize("keep", [{"encoder.1.self": [0, 1]}, {"encoder.0.self": []}])
@pytest.mark.parametrize("loaded", [False, True])
def test_transformers_trains_and_saves_a_pruned_t5(loaded, keep, tmp_path):
    model = prune(adopt(build("T5")), keep)
    release(model)
    if loaded:
        save(model, tmp_path / "small")
        model = load(tmp_path / "small")
    arguments = hf.TrainingArguments(
        str(tmp_path / "run"),
        max_steps=2,
        save_steps=2,
        per_device_train_batch_size=2,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
    )
    hf.Trainer(model, arguments, train_dataset=Pairs()).train()
    stored = safetensors.torch.load_file(tmp_path / "run/checkpoint-2/model.safetensors")
    tables = [name for name in stored if "relative_attention_bias" in name]
    assert len(tables) == 2  # of the encoder and of the decoder, once each
    fresh = rebuild(build("T5"), record_of(model))
    missing, unexpected = fresh.load_state_dict(stored, strict=False)
    assert not unexpected and missing  # names that are another's
    assert torch.equal(outputs(fresh, batch_of("T5")), outputs(model.eval(), batch_of("T5")))
    model.save_pretrained(tmp_path / "again")


def test_what_is_loaded_is_pruned_again_and_saved_again(saved):
    model = adopt(load(saved))
    assert record_of(model) == record_of(small())
    prune(model, {"encoder.1.self": [1]})
    save(model, saved)
    assert record_of(load(saved)).kept == {"encoder.0.self": (), "encoder.1.self": (3,)}
    assert find_sites(adopt(load(saved)))[0].num_heads == 1


def test_a_model_with_equal_layers_is_one_that_transformers_loads(tmp_path):
    model = adopt(build("Llama"))
    prune(model, {"decoder.0.self": [0, 2], "decoder.1.self": [1, 3]})
    save(model, tmp_path / "small")
    again = hf.LlamaForCausalLM.from_pretrained(tmp_path / "small", attn_implementation="sdpa")
    torch.testing.assert_close(outputs(again, batch_of("Llama")), outputs(model, batch_of("Llama")))
    assert load(tmp_path / "small").config.num_attention_heads == 2
    told = json.loads((tmp_path / "small" / "config.json").read_text())["headwise_pruning"]
    assert told == {"kept": {"decoder.0.self": [0, 2], "decoder.1.self": [1, 3]}}


BY_LAYER = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
    "max_position_embeddings": 40,
}


def gemma(wider: int):
    """Its second layer may have wider heads than its first."""
    inputs = {"vocab_size_per_layer_input": 100, "hidden_size_per_layer_input": 4}
    config = hf.Gemma4TextConfig(**BY_LAYER, **inputs, global_head_dim=wider)
    return randomised(hf.Gemma4ForCausalLM(config)).eval()


def step():
    return randomised(hf.Step3p7TextModel(hf.Step3p7TextConfig(**BY_LAYER))).eval()


def first_output(model):
    with torch.no_grad():
        return model(**batch_of("Llama"))[0]


@pytest.mark.parametrize(
    ("make", "keep", "written"),
    [
        (
            lambda: gemma(8),
            {"decoder.0.self": [0, 1], "decoder.1.self": [1, 2]},
            {"0": {"num_key_value_heads": 1}, "1": {"num_key_value_heads": 2}},
        ),
        (
            lambda: gemma(16),
            {"decoder.0.self": [0, 1], "decoder.1.self": [1, 2]},
            {"0": {"num_key_value_heads": 1}, "1": {"head_dim": 16, "num_key_value_heads": 2}},
        ),
        (
            lambda: gemma(16),
            {"decoder.0.self": [0, 1], "decoder.1.self": [2, 3]},
            {"0": {}, "1": {"head_dim": 16}},
        ),
        (
            step,
            {"decoder.0.self": [1, 3]},
            {"0": {"num_attention_heads": 2}, "1": {"num_attention_heads": 4}},
        ),
    ],
    ids=["Gemma 4", "Gemma 4, wider", "Gemma 4, even", "Step 3.7"],
)
def test_numbers_by_layer_are_written_where_the_host_reads_them(make, keep, written, tmp_path):
    model, folder = adopt(make()), tmp_path / "small"
    with masked(model, removed(model, keep)):
        wanted = first_output(model)
    assert not torch.allclose(first_output(model), wanted, rtol=1e-2, atol=1e-2)
    save(prune(model, keep), folder)
    assert json.loads((folder / "config.json").read_text())["per_layer_config"] == written
    theirs = type(model).from_pretrained(folder)
    for again in (model, load(folder), theirs):
        torch.testing.assert_close(first_output(again), wanted, rtol=1e-4, atol=1e-5)
    # and what transformers loaded is pruned and saved as any
    prune(adopt(theirs), {"decoder.0.self": [0]})
    save(theirs, folder)
    torch.testing.assert_close(first_output(load(folder)), first_output(theirs))


def test_numbers_by_layer_are_not_written_where_no_host_reads_them(tmp_path):
    model = adopt(build("Llama"))
    save(prune(model, {"decoder.0.self": [0, 1]}), tmp_path / "small")
    settings = json.loads((tmp_path / "small" / "config.json").read_text())
    assert "per_layer_config" not in settings and settings["num_attention_heads"] == 4


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_with_some_heads_each_come_back(name, tmp_path):
    model = adopt(randomised_biases(build(name)))
    save(prune(model, uneven_keep(model)), tmp_path / "small")
    wanted = outputs(model, batch_of(name))
    torch.testing.assert_close(outputs(load(tmp_path / "small"), batch_of(name)), wanted)


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_refuses_a_layer_without_heads_and_does_not_make_it_up(name, tmp_path):
    model = adopt(randomised_biases(build(name)))
    save(prune(model, {find_sites(model)[0].name: []}), tmp_path / "small")
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        type(model).from_pretrained(tmp_path / "small")
    wanted = outputs(model, batch_of(name))
    torch.testing.assert_close(outputs(load(tmp_path / "small"), batch_of(name)), wanted)


MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}


def test_infinite_numbers_in_the_settings_come_back(tmp_path):
    config = hf.BambaConfig(**GROUPED, **MAMBA, mamba_chunk_size=8, attn_layer_indices=[1])
    model = adopt(randomised(hf.BambaForCausalLM(config)).eval())
    save(prune(model, {"decoder.1.self": [0, 1]}), tmp_path / "small")
    again = load(tmp_path / "small")
    assert again.config.time_step_limit[1] == float("inf")
    torch.testing.assert_close(first_output(again), first_output(model))


CAPPED = {"head_dim": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 0.5}


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_the_backend_comes_back_and_the_caller_may_choose_another(backend, tmp_path):
    """sdpa ignores the softcapping of Gemma 2, so the two differ."""
    config = hf.Gemma2Config(**GROUPED, **CAPPED, attn_implementation=backend)
    model = adopt(randomised(hf.Gemma2ForCausalLM(config)).eval())
    save(prune(model, {"decoder.0.self": [0, 1]}), tmp_path / "small")
    again = load(tmp_path / "small")
    assert again.config._attn_implementation == backend
    torch.testing.assert_close(first_output(again), first_output(model))
    other = "sdpa" if backend == "eager" else "eager"
    changed = load(tmp_path / "small", attn_implementation=other)
    assert changed.config._attn_implementation == other
    assert not torch.allclose(first_output(changed), first_output(model), atol=1e-3)
    with pytest.raises(ValueError, match='"nothing"` is not supported'):
        load(tmp_path / "small", attn_implementation="nothing")


def test_stacks_with_backends_of_their_own_keep_them(tmp_path):
    model = prune(adopt(build("T5", "eager")), {"encoder.0.self": [0]})
    release(model)
    model.encoder.set_attn_implementation("sdpa")
    save(model, tmp_path / "small")
    again = load(tmp_path / "small")
    backends = [part.config._attn_implementation for part in (again.encoder, again.decoder)]
    assert backends == ["sdpa", "eager"]


def test_a_backend_that_the_host_refuses_is_told_and_left_out(tmp_path):
    config = hf.GptOssConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1)
    model = adopt(randomised(hf.GptOssForCausalLM(config)).eval())
    save(prune(model, {"decoder.0.self": [0, 1]}), tmp_path / "small")
    rewritten(tmp_path / "small", attention={"": "sdpa"})
    with pytest.warns(UserWarning, match="was saved with sdpa attention, which it refuses here"):
        again = load(tmp_path / "small")
    assert again.config._attn_implementation == "eager"


def test_a_backend_that_headwise_does_not_adopt_comes_back(saved):
    model = load(saved, attn_implementation="flex_attention")
    assert model.config._attn_implementation == "flex_attention"
    save(model, saved)
    assert load(saved).config._attn_implementation == "flex_attention"


def test_folders_with_a_backend_of_others_open_with_the_default(saved):
    rewritten(saved, attention={"": "somebody/kernel"})
    with pytest.warns(UserWarning, match="saved with somebody/kernel attention and is loaded with"):
        assert load(saved).config._attn_implementation == "sdpa"


def test_models_of_one_s_own_have_no_backend_to_choose(tmp_path):
    save(own(), tmp_path / "small")
    with pytest.raises(ValueError, match="attn_implementation is for Hugging Face models, but"):
        load(tmp_path / "small", attn_implementation="eager")


def test_what_could_not_be_opened_is_not_saved(saved):
    before = {path.name: digest(path) for path in saved.iterdir()}
    model = small("RoBERTa")
    model.config.num_hidden_layers = 3  # no longer true
    with pytest.raises(ValueError, match=r"small was not written, as pruning\.load could not open"):
        save(model, saved)
    assert {path.name: digest(path) for path in saved.iterdir()} == before
    assert [path.name for path in saved.parent.iterdir()] == ["small"]


def test_generation_settings_and_tokenizers_come_along(tmp_path):
    class Words:
        def save_pretrained(self, save_directory):
            (Path(save_directory) / "tokenizer.json").write_text("{}")

    model = small("BART")
    model.generation_config.num_beams = 3
    save(model, tmp_path / "small", Words())
    assert load(tmp_path / "small").generation_config.num_beams == 3
    (tmp_path / "small" / "tokenizer.json").write_text("{ }")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not the file that was saved"):
        load(tmp_path / "small")


def test_folders_of_a_tokenizer_come_along_and_are_checked(saved):
    class Templates:
        def save_pretrained(self, save_directory):
            (Path(save_directory) / "more").mkdir()
            (Path(save_directory) / "more" / "tool.jinja").write_text("{}")

    for _ in range(2):  # a second time over the first
        save(small(), saved, Templates())
    load(saved)
    (saved / "more" / "tool.jinja").write_text("{ }")
    with pytest.raises(ValueError, match=r"tool\.jinja is not the file that was saved"):
        load(saved)
    (saved / "more" / "mine.txt").write_text("")
    with pytest.raises(ValueError, match=r"holds more/mine\.txt, which"):
        save(small(), saved)


def test_a_recipe_names_files_of_its_folder_alone(saved):
    (saved.parent / "secret").write_text("")
    rewritten(saved, files={"../secret": digest(saved.parent / "secret")})
    with pytest.raises(ValueError, match=r"has no \.\./secret"):
        load(saved)


def test_a_model_without_heads_says_that_they_were_pruned(saved):
    model = adopt(load(saved))
    emptied = prune(model, {site.name: [] for site in find_sites(model)})
    save(emptied, saved)
    for trouble in (find_sites, adopt):
        with pytest.raises(ValueError, match="All 8 heads of this BertForMaskedLM were pruned"):
            trouble(load(saved))


def test_what_was_not_pruned_or_is_gated_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="Nothing was pruned"):
        save(build("BERT"), tmp_path / "small")
    model = small()
    with masked(model, {"encoder.1.self": [0]}), pytest.raises(ValueError, match="before save"):
        save(model, tmp_path / "small")


class Mine(hf.BertForMaskedLM):
    """A class that load could not find."""


def test_classes_that_load_does_not_know_are_not_saved(tmp_path):
    mine = prune(adopt(Mine(build("BERT").config)), {"encoder.0.self": [0]})
    with pytest.raises(ValueError, match="Mine is not a model of transformers and has no method"):
        save(mine, tmp_path / "small")
    other = type("SmallTransformer", (SmallTransformer,), {})(SmallConfig())
    prune(other, {"encoder.0.self": [0]})
    with pytest.raises(ValueError, match="kind 'small' makes another SmallTransformer"):
        save(other, tmp_path / "small")
    assert not list(tmp_path.iterdir())


def test_kinds_that_are_not_installed_or_rebuild_nothing_are_named(tmp_path):
    save(own(), tmp_path / "small")
    rewritten(tmp_path / "small", kind="elsewhere")
    with pytest.raises(ValueError, match="No installed package knows the kind 'elsewhere'"):
        load(tmp_path / "small")
    register("nothing", lambda: Kind("nothing"))
    rewritten(tmp_path / "small", kind="nothing")
    with pytest.raises(ValueError, match="Models of the kind 'nothing' cannot be rebuilt"):
        load(tmp_path / "small")


@pytest.mark.parametrize(
    ("text", "message"),
    [("[]", "must hold a JSON object"), ('{"files": {', "is not valid JSON .* cut short")],
)
def test_a_folder_whose_recipe_is_cut_is_not_replaced(saved, text, message):
    (saved / RECIPE).write_text(text)
    with pytest.raises(ValueError, match=message):
        save(small(), saved)


def test_a_folder_whose_recipe_names_no_files_is_not_replaced(saved):
    (saved / RECIPE).write_text('{"files": 3}')
    with pytest.raises(ValueError, match=r"holds config\.json, which"):
        save(small(), saved)


def test_folders_of_others_are_not_replaced(saved):
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds notes\.txt, which is no part of a pruned model"):
        save(small(), saved)
    assert (saved / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("how", ["cut", "changed", "missing"])
def test_files_that_are_not_whole_are_refused(saved, name, how):
    path, held = saved / name, (saved / name).read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(held[: len(held) // 2] if how == "cut" else held[:-9] + b"!" + held[-8:])
    with pytest.raises(ValueError, match=f"{name}.* not (whole|the file)|no {name}"):
        load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:90], "is not valid JSON .* cut short"),
        (lambda text: "[]", "must hold a JSON object"),
        (lambda text: text.replace('"encoder.1.self": 4', '"encoder.1.self": 5'), "was changed"),
        (lambda text: text.replace('"format": 2', '"format": 3'), "reads format 2"),
    ],
)
def test_a_recipe_that_is_not_whole_is_refused(saved, change, message):
    path = saved / RECIPE
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message):
        load(saved)


def test_a_folder_without_a_recipe_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"There is no pruned model in .*: it has no pruning\.json"
    ):
        load(tmp_path)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def test_a_pickle_is_never_opened(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pytorch_model.bin", "model.pt"):
        (saved / name).write_bytes(pickle.dumps(Bomb()))
    load(saved)
    (saved / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    files = json.loads((saved / RECIPE).read_text())["files"]
    rewritten(saved, files={**files, "model.safetensors": digest(saved / "model.safetensors")})
    with pytest.raises(ValueError, match="is not a safetensors file"):
        load(saved)
    (saved / "model.safetensors").unlink()
    rewritten(saved, files={"config.json": files["config.json"]})
    with pytest.raises(ValueError, match=r"no model\.safetensors; other formats"):
        load(saved)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_name": "Trainer"}, "holds a Trainer, which transformers .* does not have"),
        ({"class_name": "RobertaForMaskedLM"}, "do not fit a RobertaForMaskedLM of these versions"),
        ({"files": {"../model.safetensors": "0"}}, "is not whole"),
        ({"record": {}}, "A pruning record must hold the field 'heads'"),
        ({"record": {"heads": {"a": 2}, "kept": {"a": [2]}, "settings": {}}}, "that a site has"),
        ({"buffers": {"nothing": "os"}}, "names a buffer nothing in os; there is none"),
        ({"buffers": {"nothing": 3}}, "must hold text in buffers.nothing"),
        ({"versions": None}, "must hold a JSON object in versions"),
        ({"tied": {"nothing": ["cls"]}}, "must hold text in tied.nothing"),
    ],
)
def test_a_recipe_that_asks_for_something_else_is_refused(saved, changes, message):
    rewritten(saved, **changes)
    with pytest.raises(ValueError, match=message):
        load(saved)


@pytest.mark.parametrize(
    ("name", "first", "message"),
    [
        ("nothing.weight", "nobody", "ties nothing.weight to nobody; there is no such tensor"),
        ("nothing", "nobody", "ties nothing to nobody; there is no such tensor"),
        ("bert.embeddings.LayerNorm.bias", "os", "LayerNorm.bias to os; there is no such tensor"),
        ("nothing", "bert.embeddings.LayerNorm.bias", "do not fit a BertForMaskedLM"),
    ],
)
def test_foreign_names_of_tied_weights_are_refused(saved, name, first, message):
    tied = json.loads((saved / RECIPE).read_text())["tied"]
    rewritten(saved, tied={**tied, name: first})
    with pytest.raises(ValueError, match=message):
        load(saved)


def test_a_recipe_without_versions_is_refused(saved):
    held = json.loads((saved / RECIPE).read_text())
    del held["versions"], held["checksum"]
    (saved / RECIPE).write_text(json.dumps({**held, "checksum": record._checksum(held)}))
    with pytest.raises(ValueError, match=r"pruning\.json must hold the field 'versions'"):
        load(saved)


def with_settings(folder: Path, **changes) -> None:
    """Change config.json and its checksum."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    files = json.loads((folder / RECIPE).read_text())["files"]
    rewritten(folder, files={**files, "config.json": digest(path)})


def test_settings_that_build_nothing_are_refused(saved):
    with_settings(saved, num_hidden_layers="two")
    with pytest.raises(ValueError, match="No BertForMaskedLM can be built with"):
        load(saved)


def test_settings_that_are_none_are_refused(saved):
    (saved / "config.json").write_text("[]")
    files = json.loads((saved / RECIPE).read_text())["files"]
    rewritten(saved, files={**files, "config.json": digest(saved / "config.json")})
    with pytest.raises(ValueError, match=r"config\.json must hold a JSON object"):
        load(saved)


def test_settings_cannot_name_kernels_of_others(saved):
    with_settings(saved, attn_implementation="somebody/kernel", _attn_implementation="a/b")
    assert load(saved).config._attn_implementation == "sdpa"


def test_a_full_disk_leaves_the_old_folder(saved, monkeypatch):
    before = {path.name: digest(path) for path in saved.iterdir()}

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise safetensors.SafetensorError("Error: No space left on device (os error 28)")

    monkeypatch.setattr(saving.safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left on device"):
        save(small("RoBERTa"), saved)
    assert {path.name: digest(path) for path in saved.iterdir()} == before
    assert [path.name for path in saved.parent.iterdir()] == ["small"]


def test_a_save_that_was_killed_between_the_renames_is_put_right(saved):
    saved.rename(files._aside(saved))
    assert load(saved).config.model_type == "bert"
    assert [path.name for path in saved.parent.iterdir()] == ["small"]


def test_what_killed_saves_left_is_deleted_and_nothing_else(saved):
    half, aside = saved.parent / ".small.0123abcd.partial", files._aside(saved)
    others = [".small.mine.partial", ".smaller.0123abcd.partial", ".small.0123abcd.partial2"]
    for path in (half, aside, *(saved.parent / name for name in others)):
        path.mkdir()
        (path / "model.safetensors").write_bytes(b"half")
    load(saved)
    assert {path.name for path in saved.parent.iterdir()} == {"small", *others}


def test_what_is_being_written_is_left_alone(saved):
    with files.replacing_folder(saved) as new:
        (new / "model.safetensors").write_bytes(b"half")
        load(saved)
        assert new.exists()
        (new / "model.safetensors").write_bytes(b"whole")
    assert [path.name for path in saved.iterdir()] == ["model.safetensors"]
    assert [path.name for path in saved.parent.iterdir()] == ["small"]


SAVING = """
import sys
from tests.pruning.test_saving import small
from headwise.pruning.saving import save
model = small()
print("ready", flush=True)
while True:
    save(model, sys.argv[1])
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_nothing(saved):
    for trial in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(saved)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.01 + 0.013 * trial)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert load(saved).config.model_type == "bert"
        assert [path.name for path in saved.parent.iterdir()] == ["small"]


WITHOUT_ROOM = """
import resource, signal, sys
from tests.pruning.test_saving import small
from headwise.pruning.saving import save
model = small("BART")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    save(model, sys.argv[1])
except OSError as problem:
    print(problem)
"""


@pytest.mark.slow
def test_a_file_that_cannot_be_written_whole_leaves_the_old_folder(saved):
    before = {path.name: digest(path) for path in saved.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROOM, str(saved)], capture_output=True, text=True, check=True
    )
    assert "could not be written" in done.stdout
    assert {path.name: digest(path) for path in saved.iterdir()} == before
    assert [path.name for path in saved.parent.iterdir()] == ["small"]


ON_A_FULL_DISK = """
import sys
from itertools import count
from pathlib import Path
from headwise.recording.checksums import digest
from headwise.pruning.saving import load, save
from tests.workflows.small_hosts import tokenizer_for
from tests.pruning.small_disk import PAGE, leave_room
from tests.pruning.test_saving import small

disk, model, tokenizer = Path(sys.argv[1]), small(), tokenizer_for("BERT")
folder = disk / "small"
save(small("RoBERTa"), folder)
before = {path.name: digest(path) for path in folder.iterdir()}
for pages in count():
    leave_room(disk, pages * PAGE)
    try:
        save(model, folder, tokenizer)
    except OSError as problem:
        print(problem)
        assert {path.name: digest(path) for path in folder.iterdir()} == before
        assert load(folder).config.model_type == "roberta"
        assert {path.name for path in disk.iterdir()} == {"small", "filler"}
    else:
        break
assert load(folder).config.model_type == "bert"
"""


def test_a_disk_that_is_full_at_any_file_leaves_the_old_folder(tmp_path):
    said = run_on_small_disk(ON_A_FULL_DISK, tmp_path / "disk").stdout.splitlines()
    start, end = f"{tmp_path / 'disk' / 'small'} could not be written (", "); it is as it was."
    assert len(said) > 20  # pages of weights, and then one for each other file
    for sentence in said:
        assert sentence.startswith(start) and sentence.endswith(end)
        assert "No space left on device" in sentence
