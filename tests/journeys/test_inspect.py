"""inspect: the same table however a corpus is fed, for every kind of model, changing nothing."""

import lzma
import sys

import pytest
import torch
import transformers as hf
from tokenizers import normalizers

import headwise
from headwise.journeys import InspectConfig, inspect, inspect_folder
from headwise.journeys.inspect import profile
from headwise.journeys.opening import open_subject
from headwise.models import Transformer, TransformerConfig
from headwise.recording import Run
from tests.hf.families import SIZES, TWO_STACKS, build
from tests.journeys.small_hosts import LINES, classifier, host, save, tokenizer_for

module = sys.modules[inspect.__module__]
NAMES = ("BERT", "GPT-2", "BART", "T5")
SITES = {
    "BERT": ["encoder.0.self", "encoder.1.self"],
    "GPT-2": ["decoder.0.self", "decoder.1.self"],
    "BART": [
        *("encoder.0.self", "encoder.1.self"),
        *("decoder.0.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross"),
    ],
}
SITES["T5"] = SITES["BART"]


def table_of(name, lines=LINES, **options):
    return inspect(host(name), tokenizer_for(name), lines, **options)


def assert_close(one, other, columns=None):
    assert one.heads == other.heads and one.columns.keys() == other.columns.keys()
    for column in columns or one.columns:
        assert one[column] == pytest.approx(other[column], abs=1e-5), column


def text_file(folder, lines=LINES):
    path = folder / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_row_for_each_head_and_every_measure_is_in_range(name):
    table = table_of(name)
    assert sorted(map(str, table.heads)) == sorted(
        f"{s}.{h}" for s in SITES[name] for h in range(4)
    )
    for _, row in table:
        assert 0 < row["confidence"] <= 1 and 0 <= row["offset_share"] <= 1
        assert 0 <= row["special_mass"] < 1 and 0 <= row["first_share"] <= 1
        assert row["output_change"] > 0 and 0 <= row["prediction_change"] <= 1


@pytest.mark.parametrize("name", NAMES)
def test_batches_of_any_size_give_the_same_numbers(name):
    whole = table_of(name, batch_size=100, ablation_lines=0)
    for size in (1, 3):
        assert_close(table_of(name, batch_size=size, ablation_lines=0), whole)


def test_the_translations_looked_at_end_at_different_lengths():
    # what the test above needs in order to show that end marks do not count
    subject = module.HuggingFaceSubject(host("BART"), tokenizer_for("BART"))
    words_BT = subject.prepare(LINES).words["decoder"]
    assert len(set(words_BT.sum(dim=1).tolist())) > 1


def test_special_tokens_draw_weight_in_bert_but_are_no_words():
    table = table_of("BERT", ["the dog saw a cat ."], ablation_lines=0)
    assert all(0 < mass < 1 for mass in table["special_mass"])
    assert set(table_of("GPT-2", ablation_lines=0)["special_mass"]) == {0}


@pytest.mark.parametrize("name", NAMES)
def test_the_folder_journey_finds_what_inspect_finds(name, tmp_path):
    folder = save(host(name), tokenizer_for(name), tmp_path / "model")
    config = InspectConfig(str(folder), str(text_file(tmp_path)), batch_size=4, ablation_lines=5)
    table = inspect_folder(config, tmp_path / "run")
    assert_close(table, table_of(name, batch_size=4, ablation_lines=5))
    run = Run.open(tmp_path / "run")
    assert run.heads() == table
    assert run.figures()["lines"] == len(LINES) and run.figures()["truncated_lines"] == 0
    assert all(str(head) in (run.path("report.html")).read_text() for head in table.heads)
    sentences = run.read_json("trace/attention.json")["sentences"]
    assert len(sentences) == config.samples
    stack = "decoder" if name == "GPT-2" else "encoder"
    assert set(LINES[0].split()) <= set(sentences[0]["tokens"][stack])


def test_a_run_of_the_demo_can_be_inspected(small_run, tmp_path):
    config = InspectConfig(str(small_run), str(text_file(tmp_path)), ablation_lines=4)
    table = inspect_folder(config, tmp_path / "run")
    assert set(table.heads) == set(Run.open(small_run).heads().heads)
    assert all(change > 0 for change in table["output_change"])
    single = profile(open_subject(small_run), LINES, batch_size=1).table
    assert_close(profile(open_subject(small_run), LINES, batch_size=7).table, single)


def test_inspecting_again_into_the_same_folder_gives_the_same(tmp_path):
    folder = save(host("BERT"), tokenizer_for("BERT"), tmp_path / "model")
    config = InspectConfig(str(folder), str(text_file(tmp_path)))
    first = inspect_folder(config, tmp_path / "run")
    assert inspect_folder(config, tmp_path / "run") == first


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["BERT", "BART"])
def test_model_and_tokenizer_are_left_as_they_came(name, training):
    model, tokenizer = host(name), tokenizer_for(name)
    tokenizer.padding_side = "left"
    inputs = tokenizer(LINES, padding=True, return_tensors="pt")
    with torch.no_grad():
        before = model(**inputs).logits
        model.train(training)
        inspect(model, tokenizer, LINES)
        assert model.training == training
        assert torch.equal(model.eval()(**inputs).logits, before)
    assert tokenizer.padding_side == "left"
    with pytest.raises(ValueError, match="has no attention sites"):
        headwise.find_sites(model)


def test_parts_that_were_frozen_in_eval_mode_stay_so():
    model = host("BERT").train()
    model.bert.embeddings.eval()
    before = {name: part.training for name, part in model.named_modules()}
    inspect(model, tokenizer_for("BERT"), LINES, ablation_lines=0)
    assert {name: part.training for name, part in model.named_modules()} == before


def test_a_model_that_cannot_be_adopted_is_left_untouched():
    model = host("BERT").train()
    model.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(ValueError, match="attends with 'flex_attention'"):
        inspect(model, tokenizer_for("BERT"), LINES)
    assert all(part.training for part in model.modules())
    assert model.config._attn_implementation == "flex_attention"


def test_our_own_models_are_told_where_they_are_inspected():
    model = Transformer(TransformerConfig(10, 10, width=8, heads=2))
    with pytest.raises(ValueError, match=r"inspect\(\) takes a Hugging Face .*inspect_folder"):
        inspect(model, tokenizer_for("BERT"), LINES)


def test_the_columns_are_those_that_were_announced():
    assert tuple(table_of("BERT").columns) == module.COLUMNS
    assert set(table_of("BERT", ablation_lines=0).columns) < set(module.COLUMNS)


def test_an_adopted_model_stays_adopted():
    model = headwise.adopt(host("BERT"))
    inspect(model, tokenizer_for("BERT"), LINES)
    assert len(headwise.find_sites(model)) == 2


def test_a_tokenizer_without_padding_is_not_changed():
    tokenizer = tokenizer_for("GPT-2")
    inspect(host("GPT-2"), tokenizer, LINES, ablation_lines=0)
    assert tokenizer.pad_token is None


def test_a_tokenizer_with_nothing_to_pad_with_is_refused():
    tokenizer = tokenizer_for("GPT-2")
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match=r"set tokenizer\.pad_token"):
        inspect(host("GPT-2"), tokenizer, LINES)


def test_a_classifier_is_measured_by_its_classes():
    table = inspect(classifier(), tokenizer_for("BERT"), LINES)
    assert all(change > 0 for change in table["output_change"])
    shares = {round(value * len(LINES), 4) for value in table["prediction_change"]}
    assert shares <= set(range(len(LINES) + 1))


@pytest.mark.parametrize(
    ("kind", "config", "scores"),
    [
        (hf.BertModel, hf.BertConfig(**SIZES), False),
        (hf.BertForQuestionAnswering, hf.BertConfig(**SIZES), True),
        (hf.BertForPreTraining, hf.BertConfig(**SIZES), True),
        (hf.GPT2Model, hf.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4), False),
        (hf.BartModel, hf.BartConfig(**TWO_STACKS), False),
        (hf.BartForSequenceClassification, hf.BartConfig(**TWO_STACKS), True),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_models_without_a_word_predictor_are_measured_too(kind, config, scores):
    name = {"Be": "BERT", "GP": "GPT-2", "Ba": "BART"}[kind.__name__[:2]]
    table = inspect(kind(config).eval(), tokenizer_for(name), LINES)
    assert sorted({head.site for head in table.heads}) == sorted(SITES[name])
    assert ("prediction_change" in table.columns) == scores
    assert all(change > 0 for change in table["output_change"])


def test_long_lines_are_cut_and_counted(tmp_path, capfd):
    folder = save(host("BERT"), tokenizer_for("BERT"), tmp_path / "model")
    text = text_file(tmp_path, [" ".join(["dog"] * 100), "it ran ."])
    capfd.readouterr()
    inspect_folder(InspectConfig(str(folder), str(text)), tmp_path / "run")
    figures = Run.open(tmp_path / "run").figures()
    assert (figures["truncated_lines"], figures["words"]) == (1, 38 + 3)
    assert figures["token_limit"] == 40
    assert capfd.readouterr().err == ""


def unlimited_tokenizer(name):
    tokenizer = tokenizer_for(name)
    tokenizer.model_max_length = int(1e30)  # as transformers writes it where none was saved
    return tokenizer


@pytest.mark.parametrize(
    ("name", "own", "room"), [("BERT", 700, 700), ("Llama", 900, 900), ("T5", None, 512)]
)
def test_lines_are_cut_to_the_limit_of_the_model_and_to_512_tokens_where_it_has_none(
    name, own, room
):
    model = build(name) if own is None else build(name, max_position_embeddings=own)
    subject = module.HuggingFaceSubject(model, unlimited_tokenizer(name))
    assert subject.room == room
    prepared = subject.prepare(["dog " * 1000])
    assert prepared.truncated == 1 and prepared.inputs["input_ids"].shape[1] == room


@pytest.mark.parametrize("padding", [0, 1])
def test_positions_that_begin_after_the_padding_index_are_counted(padding):
    shape = {**SIZES, "max_position_embeddings": 20, "pad_token_id": padding}
    torch.manual_seed(0)
    model = hf.RobertaForMaskedLM(hf.RobertaConfig(**shape))
    tokenizer = unlimited_tokenizer("RoBERTa")
    assert module.HuggingFaceSubject(model, tokenizer).room == 19 - padding
    assert len(inspect(model, tokenizer, ["the dog " * 100], ablation_lines=0)) == 8


def test_a_corpus_is_read_as_it_is_needed(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 8)
    drawn, looked_at, ahead = 0, 0, []

    def corpus():
        nonlocal drawn
        for _ in range(100):
            drawn += 1
            yield "the dog ran ."

    class Counted(module.HuggingFaceSubject):
        def prepare(self, lines):
            nonlocal looked_at
            looked_at += len(lines)
            ahead.append(drawn - looked_at)
            return super().prepare(lines)

    subject = Counted(headwise.adopt(host("GPT-2")), tokenizer_for("GPT-2"))
    subject.tokenizer.pad_token = "</s>"
    found = profile(subject, corpus(), batch_size=4, keep=6)
    assert (found.lines, len(found.kept), drawn) == (100, 6, 100)
    assert max(ahead) <= 8


def test_no_lines_are_refused():
    with pytest.raises(ValueError, match="There is no text to look at"):
        table_of("BERT", [])
    with pytest.raises(ValueError, match="at least one line, got 0"):
        table_of("BERT", batch_size=0)


def test_lines_without_a_word_are_refused_only_if_there_are_no_others():
    tokenizer = tokenizer_for("BERT")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("~", "")
    wordless = ["~~", "~"]
    with pytest.raises(ValueError, match="There is no text to look at"):
        inspect(host("BERT"), tokenizer, wordless)
    mixed = inspect(host("BERT"), tokenizer, [*wordless, *LINES], ablation_lines=2)
    assert_close(mixed, table_of("BERT", ablation_lines=0))


def test_a_batch_without_a_token_is_named():
    tokenizer = tokenizer_for("GPT-2")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("~", "")
    with pytest.raises(ValueError, match="finds no token in '~'; leave such lines out"):
        inspect(host("GPT-2"), tokenizer, ["~"])


def test_an_empty_file_leaves_no_run_behind(tmp_path):
    folder = save(host("BERT"), tokenizer_for("BERT"), tmp_path / "model")
    with pytest.raises(ValueError, match="holds no text"):
        inspect_folder(InspectConfig(str(folder), str(text_file(tmp_path, [""]))), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_are_not_text(tmp_path):
    torch.manual_seed(0)
    config = hf.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    hf.ViTModel(config).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="reads pixel_values, not text"):
        open_subject(tmp_path / "model")


def test_real_text(data_folder):
    with lzma.open(data_folder / "wikitext-2" / "valid.txt.xz", "rt") as file:
        lines = [line.strip() for _, line in zip(range(400), file, strict=False) if line.strip()]
    many, few = (table_of("GPT-2", lines, batch_size=size, ablation_lines=0) for size in (32, 5))
    assert_close(many, few)
