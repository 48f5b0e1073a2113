"""inspect: the same table however a corpus is fed, for every kind of model, changing nothing."""

import json
import lzma
from dataclasses import replace

import pytest
import torch
import transformers as hf
from tokenizers import normalizers

import headwise
from headwise.recording import Run
from headwise.recording.columns import column_of, printed_names
from headwise.text.frequencies import WordRanks
from headwise.text.mentions import Mention, Passage
from headwise.text.treebank import read_treebank
from headwise.workflows.inspect import InspectConfig, inspect, inspect_folder
from headwise.workflows.inspect.annotation import Annotation, Rules
from headwise.workflows.inspect.config import columns_of
from headwise.workflows.inspect.hugging_face import HuggingFaceSubject, padding_right
from headwise.workflows.inspect.opening import open_subject
from headwise.workflows.inspect.sentence import Sentence
from headwise_papers.data.vocabulary import Vocabulary
from headwise_papers.models import Transformer, TransformerConfig
from headwise_papers.models.classifier import ClassifierConfig, TransformerClassifier
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig, Seq2Seq, Seq2SeqConfig
from headwise_papers.recipes.translator import WordCodec
from tests.hf.families import SIZES, TWO_STACKS
from tests.workflows.small_hosts import LINES, classifier, host, save, tokenizer_for
from tests.workflows.small_trees import write_treebank

NAMES = ("BERT", "GPT-2", "BART", "T5")
SITES = {
    "BERT": ["encoder.0.self", "encoder.1.self"],
    "GPT-2": ["decoder.0.self", "decoder.1.self"],
    "BART": [
        *("encoder.0.self", "encoder.1.self"),
        *("decoder.0.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross"),
    ],
}
SITES |= {"T5": SITES["BART"], "MPNet": SITES["BERT"], "DeBERTa-v3": SITES["BERT"]}
LOOKING = {"sample": 0}  # where heads look, and not what they are worth


def table_of(name, data=LINES, **options):
    return inspect(host(name), tokenizer_for(name), data, **options)


def assert_close(one, other):
    assert one.heads == other.heads and one.columns.keys() == other.columns.keys()
    for column in one.columns:
        if "role" not in column:
            assert one[column] == pytest.approx(other[column], abs=1e-5), column


def text_file(folder, lines=LINES):
    path = folder / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def bert(tmp_path):
    return save(host("BERT"), tokenizer_for("BERT"), tmp_path / "model")


@pytest.mark.parametrize("name", SITES)
def test_there_is_a_row_for_each_head_and_every_measure_is_in_range(name):
    table = table_of(name, LINES * 2, sample=12, ablation_lines=10)
    assert sorted(map(str, table.heads)) == sorted(
        f"{s}.{h}" for s in SITES[name] for h in range(4)
    )
    assert all(column_of(name) for name in printed_names(table.columns))
    for _, row in table:
        assert 0 < row["confidence"] <= 1 and 0 <= row["offset_share"] <= 1
        assert 0 <= row["special_mass"] < 1 and 0 <= row["first_share"] <= 1
        assert row["output_change"] > 0 and 0 <= row["prediction_change"] <= 1
        assert row["gradient_importance"] > 0 and row["output_norm"] > 0
        for measure in ("confidence", "relevance", "gradient_importance", "loss_rise"):
            assert row[f"{measure}_low"] <= row[f"{measure}_high"]


@pytest.mark.parametrize("name", NAMES)
def test_relevances_of_a_layer_sum_to_at_most_one(name):
    for layers in table_of(name, sample=3, ablation_lines=0).layers("relevance").values():
        for heads in layers.values():
            assert 0 < sum(map(abs, heads)) <= 1 + 1e-6


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("BERT", "GPT-2")), "BART"]
)
def test_batches_of_any_size_give_the_same_numbers(name):
    options = {"sample": 4, "ablation_lines": 2}
    whole = table_of(name, batch_size=100, **options)
    for size in (1, 3):
        assert_close(table_of(name, batch_size=size, **options), whole)


def test_special_tokens_draw_weight_in_bert_but_are_no_words():
    table = table_of("BERT", ["the dog saw a cat ."], **LOOKING)
    assert all(0 < mass < 1 for mass in table["special_mass"])
    assert set(table_of("GPT-2", **LOOKING)["special_mass"]) == {0}


def test_more_tokens_can_be_made_special():
    assert all(mass > 0 for mass in table_of("GPT-2", special=["the"], **LOOKING)["special_mass"])


@pytest.mark.parametrize(
    "name",
    ["BERT", "GPT-2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("BART", "T5"))],
)
def test_the_folder_journey_finds_what_inspect_finds(name, tmp_path):
    folder = save(host(name), tokenizer_for(name), tmp_path / "model")
    small = {"batch_size": 4, "sample": 5, "ablation_lines": 1}
    config = InspectConfig(str(folder), str(text_file(tmp_path)), **small)
    table = inspect_folder(config, tmp_path / "run")
    assert_close(table, table_of(name, **small))
    run = Run.open(tmp_path / "run")
    assert run.heads() == table
    assert run.figures()["lines"] == len(LINES) and run.figures()["truncated_lines"] == 0
    assert all(str(head) in (run.path("report.html")).read_text() for head in table.heads)
    sentences = run.read_json("trace/attention.json")["sentences"]
    assert config.samples <= len(sentences) <= config.samples + 6
    stack = "decoder" if name == "GPT-2" else "encoder"
    assert set(LINES[0].split()) <= set(sentences[0]["tokens"][stack])
    shown = {head for sentence in sentences for head in sentence["examples"]}
    assert shown == {str(head) for head in table.heads}
    assert run.has("heads.csv") and not run.names("state/*")


def test_the_trace_says_what_was_found_and_what_was_not(bert, tmp_path):
    inspect_folder(InspectConfig(str(bert), str(text_file(tmp_path))), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    about = run.read_json("trace/inspection.json")
    assert set(about["left_out"]) == {"syntax", "rarest", "intervals and roles"}
    assert "word outside the 500 commonest" in about["left_out"]["rarest"]
    assert about["lines"] == len(LINES)
    assert run.read_json("trace/baselines.json")["previous"] == 1
    assert run.read_json("trace/offsets.json")["next"].keys() == {"1"}


def test_a_treebank_asks_for_its_relations(bert, tmp_path):
    path = write_treebank(tmp_path / "trees.conllu")
    config = InspectConfig(str(bert), str(path), sample=0, relations=("nsubj", "det"))
    table = inspect_folder(config, tmp_path / "run")
    wanted = {f"{r}_to_{way}" for r in ("nsubj", "det") for way in ("head", "dependent")}
    assert wanted <= table.columns.keys() and "amod_to_head" not in table.columns
    left_out = Run.open(tmp_path / "run").read_json("trace/inspection.json")["left_out"]
    assert left_out.keys() == {"importance", "rarest", "intervals and roles"}
    trees = list(read_treebank(path))
    assert_close(table_of("BERT", trees, relations=("nsubj", "det"), **LOOKING), table)
    assert_close(table_of("BERT", path, relations=("nsubj", "det"), **LOOKING), table)
    every = table_of("BERT", path, relations=("all",), **LOOKING)
    assert wanted < every.columns.keys() and "advmod_to_head" in every.columns


def test_syntax_is_asked_of_causal_models_too_as_far_as_they_can_see(tmp_path):
    table = table_of("GPT-2", write_treebank(tmp_path / "trees.conllu"), **LOOKING)
    assert {"nsubj_to_dependent", "duplicate"} <= table.columns.keys()


def test_words_are_ranked_by_the_data_or_by_counts_of_ones_own(bert, tmp_path):
    assert "rarest" not in table_of("BERT", **LOOKING).columns  # all among the 500 commonest
    counts = {f"word{number}": 10 for number in range(600)} | {"the": 20}
    ranks = WordRanks(counts)
    assert "rarest" in table_of("BERT", ranks=ranks, **LOOKING).columns
    ranks.save(tmp_path / "ranks.json")
    text, ranked = str(text_file(tmp_path)), str(tmp_path / "ranks.json")
    table = inspect_folder(InspectConfig(str(bert), text, ranks=ranked, sample=0), tmp_path / "run")
    assert "two_rarest" in table.columns


def test_a_stream_is_read_once_and_has_no_rare_words():
    streamed = table_of("BERT", iter(LINES), ablation_lines=2, sample=3)
    assert_close(streamed, table_of("BERT", ablation_lines=2, sample=3))


@pytest.mark.slow
def test_antecedents_are_found_in_a_coreference_set(data_folder, bert, tmp_path):
    config = InspectConfig(str(bert), str(text_file(tmp_path)), coreference="winogender", sample=0)
    table = inspect_folder(config, tmp_path / "run")
    assert all(0 <= share <= 1 for share in table["coreference_pronoun"])
    run = Run.open(tmp_path / "run")
    rules = run.read_json("trace/antecedents.json")["coreference"]
    assert {"random", "fixed_distance", "nearest_noun"} <= rules.keys()
    assert run.read_json("trace/baselines.json")["coreference"] >= rules["random"]


def test_a_run_of_the_demo_can_be_inspected(small_run, tmp_path):
    config = InspectConfig(str(small_run), str(text_file(tmp_path)), ablation_lines=4)
    table = inspect_folder(config, tmp_path / "run")
    assert set(table.heads) == set(Run.open(small_run).heads().heads)
    assert all(change > 0 for change in table["output_change"])


def words_of_the_lines():
    return Vocabulary.from_sentences([line.split() for line in LINES])


@pytest.mark.parametrize("kind", ["recurrent", "Transformer"])
def test_our_classifiers_are_inspected_with_their_vocabulary(kind):
    words = words_of_the_lines()
    model = (
        RnnClassifier(RnnClassifierConfig(len(words), embedding=8, hidden=8, attention=8))
        if kind == "recurrent"
        else TransformerClassifier(ClassifierConfig(len(words), width=8, heads=2, layers=1))
    )
    table = inspect(model.train(), words, LINES)
    assert model.training and len(table) == (1 if kind == "recurrent" else 2)
    assert all(value > 0 for value in table["gradient_importance"])
    assert all(value is not None for value in table["relevance"])
    with pytest.raises(ValueError, match="give its Vocabulary"):
        inspect(model, tokenizer_for("BERT"), LINES)


@pytest.mark.parametrize("kind", ["recurrent", "Transformer"])
def test_our_translators_are_inspected_with_their_codecs(kind):
    codec = WordCodec(words_of_the_lines())
    size = len(codec)
    model = (
        Seq2Seq(Seq2SeqConfig(size, embedding=8, hidden=8, heads=2))
        if kind == "recurrent"
        else Transformer(TransformerConfig(size, size, width=8, heads=2))
    )
    table = inspect(model.eval(), (codec, codec), LINES, sample=3, ablation_lines=2)
    assert "decoder.0.cross" in {head.site for head in table.heads}
    assert all(value is not None for value in table["relevance"])
    with pytest.raises(ValueError, match="give the codecs of source and target"):
        inspect(model, codec, LINES)


def test_a_finished_inspection_is_not_done_again(bert, tmp_path):
    text = text_file(tmp_path)
    config = InspectConfig(str(bert), str(text), sample=2)
    first = inspect_folder(config, tmp_path / "run")
    seconds = Run.open(tmp_path / "run").figures()["seconds"]
    assert inspect_folder(config, tmp_path / "run") == first
    assert Run.open(tmp_path / "run").figures()["seconds"] == seconds
    text.write_text("the dog ran .\n")
    with pytest.raises(ValueError, match="The data have changed since"):
        inspect_folder(config, tmp_path / "run")


def changed_weights(folder):
    model = hf.BertForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.bias[0] += 1
    model.save_pretrained(folder)


def changed_tokenizer(folder):
    tokenizer = tokenizer_for("BERT")
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save_pretrained(folder)


def changed_settings(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "layer_norm_eps": 0.1}))


@pytest.mark.parametrize("change", [changed_weights, changed_tokenizer, changed_settings])
def test_a_finished_inspection_is_of_the_model_it_read(change, bert, tmp_path):
    config = InspectConfig(str(bert), str(text_file(tmp_path)), **LOOKING)
    inspect_folder(config, tmp_path / "run")
    inspect_folder(config, tmp_path / "run")
    change(bert)
    with pytest.raises(ValueError, match="The model, its settings or its tokenizer have changed"):
        inspect_folder(config, tmp_path / "run")


def test_a_finished_inspection_is_of_the_counts_it_read(bert, tmp_path):
    path = tmp_path / "ranks.json"
    WordRanks({"the": 2}).save(path)
    config = InspectConfig(str(bert), str(text_file(tmp_path)), ranks=str(path), **LOOKING)
    inspect_folder(config, tmp_path / "run")
    WordRanks({"the": 3}).save(path)
    with pytest.raises(ValueError, match="The word counts have changed since"):
        inspect_folder(config, tmp_path / "run")


def test_a_model_saved_without_its_pooler_is_the_same_each_time(tmp_path):
    torch.manual_seed(0)
    bare = hf.BertModel(hf.BertConfig(**SIZES), add_pooling_layer=False)
    model = save(bare, tokenizer_for("BERT"), tmp_path / "model")
    config = InspectConfig(str(model), str(text_file(tmp_path)), **LOOKING)
    table = inspect_folder(config, tmp_path / "run")
    assert inspect_folder(config, tmp_path / "run") == table


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_parameters_that_are_no_numbers_are_named(value, tmp_path):
    model = host("BERT")
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.bias[0] = value
    said = r"The parameter bert\.encoder\.layer\.1\.output\.dense\.bias of BertForMaskedLM holds"
    with pytest.raises(ValueError, match=said):
        inspect(model, tokenizer_for("BERT"), LINES)
    with pytest.raises(ValueError, match=said):
        open_subject(save(model, tokenizer_for("BERT"), tmp_path / "model"))


def test_inspect_can_leave_a_run_and_go_on_with_it(tmp_path):
    options = {"sample": 3, "ablation_lines": 1, "out": tmp_path / "run"}
    table = table_of("BERT", **options)
    run = Run.open(tmp_path / "run")
    assert run.heads() == table and run.has("report.html")
    tokenizer = tokenizer_for("BERT")
    tokenizer(LINES, padding=True)  # which leaves the tokenizer set to padding
    assert inspect(host("BERT"), tokenizer, LINES, **options) == table
    with pytest.raises(ValueError, match="The data have changed since"):
        table_of("BERT", LINES[1:], **options)
    with pytest.raises(ValueError, match="no run can be kept of them; give a list"):
        table_of("BERT", iter(LINES), out=tmp_path / "other")


def test_the_rule_of_relevance_can_be_chosen():
    ratio, other = (
        table_of("GPT-2", sample=3, ablation_lines=0, rule=rule) for rule in ("ratio", "alpha_beta")
    )
    assert ratio["relevance"] != other["relevance"] and ratio["confidence"] == other["confidence"]


@pytest.mark.parametrize(
    ("relation", "said"),
    [("nsubjj", "Did you mean 'nsubj'"), ("nsubj:pas", "Did you mean 'nsubj'"), ("xyz", "Known: ")],
)
def test_a_misspelt_relation_is_said_before_the_work(relation, said, bert, tmp_path):
    path = write_treebank(tmp_path / "trees.conllu")
    config = InspectConfig(str(bert), str(path), relations=("obj", relation))
    with pytest.raises(ValueError, match=f"has no relation '{relation}'. {said}"):
        inspect_folder(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_relations_that_a_treebank_happens_not_to_have_are_told(bert, tmp_path):
    path = write_treebank(tmp_path / "trees.conllu")
    config = InspectConfig(str(bert), str(path), relations=("obj", "vocative"), **LOOKING)
    inspect_folder(config, tmp_path / "run")
    about = Run.open(tmp_path / "run").read_json("trace/inspection.json")
    assert about["left_out"]["syntax"] == "The treebank has no vocative that could be found."


def test_special_tokens_must_be_tokens():
    with pytest.raises(ValueError, match=r"but 'teh' is none\. Did you mean 'the'"):
        table_of("BERT", special=["teh"])
    words = words_of_the_lines()
    model = TransformerClassifier(ClassifierConfig(len(words), width=8, heads=2, layers=1))
    with pytest.raises(ValueError, match=r"but 'zzz' is none\. They are written"):
        inspect(model, words, LINES, special=["zzz"])


def test_translations_that_were_cut_are_counted(tmp_path):
    model = save(host("BART"), tokenizer_for("BART"), tmp_path / "model")
    text, counts = str(text_file(tmp_path)), []
    for most in (2, 30):
        config = InspectConfig(str(model), text, max_translation=most, **LOOKING)
        inspect_folder(config, tmp_path / f"run{most}")
        counts.append(Run.open(tmp_path / f"run{most}").figures()["unfinished_translations"])
    assert len(LINES) >= counts[0] > counts[1]


def test_plain_text_can_be_parsed(bert, tmp_path, monkeypatch):
    def parse(lines, *, parser):
        assert parser == "spacy:small"
        trees = {" ".join(tree.words): tree for tree in read_treebank(path)}
        return (trees[line] for line in lines)

    path = write_treebank(tmp_path / "trees.conllu")
    monkeypatch.setattr("headwise.workflows.inspect.corpus.parse_lines", parse)
    text = text_file(tmp_path, [" ".join(tree.words) for tree in read_treebank(path)])
    config = InspectConfig(str(bert), str(text), parser="spacy:small", **LOOKING)
    table = inspect_folder(config, tmp_path / "run")
    assert_close(table, table_of("BERT", path, **LOOKING))
    with pytest.raises(ValueError, match=r"trees\.conllu has trees of its own"):
        inspect_folder(
            InspectConfig(str(bert), str(path), parser="spacy:small"), tmp_path / "other"
        )


def test_heads_and_rules_are_asked_for_the_same_mentions(bert):
    # "it" comes before what it means, which only an encoder can look for; "they" after
    back = Mention((4, 5), 4, "pronoun", (1,), ())
    ahead = Mention((0, 1), 0, "pronoun", (3,), ())
    words = ("it", "dogs", "saw", "horses", "they", "ran")
    passage = Passage(words, " ".join(words), (back, ahead))
    for name, asked in (("BERT", 2), ("GPT-2", 1)):
        subject = HuggingFaceSubject(headwise.adopt(host(name)), padding_right(tokenizer_for(name)))
        sentence = Sentence.of_passage(passage)
        annotation = Annotation()
        (gold, _) = annotation.coreference(subject.prepare([sentence]), [sentence])
        assert len(gold.right) == asked
        # some word before: never right for "it", one in four for "they"
        assert annotation.rules.shares()["coreference"]["random"] == 0.25 / asked
        again = Rules()
        again.load(annotation.rules.state())
        assert again.shares() == annotation.rules.shares()
    cut = Sentence.of_passage(replace(passage, mentions=(replace(back, head=5),)))
    subject = HuggingFaceSubject(subject.model, subject.tokenizer, frozenset({"ran"}))
    assert Annotation().coreference(subject.prepare([cut]), [cut]) == []


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["BERT", "BART"])
def test_model_and_tokenizer_are_left_as_they_came(name, training):
    model, tokenizer = host(name), tokenizer_for(name)
    tokenizer.padding_side = "left"
    inputs = tokenizer(LINES, padding=True, return_tensors="pt")
    with torch.no_grad():
        before = model(**inputs).logits
        model.train(training)
        inspect(model, tokenizer, LINES, sample=3)
        assert model.training == training
        assert torch.equal(model.eval()(**inputs).logits, before)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert tokenizer.padding_side == "left"
    with pytest.raises(ValueError, match="has no attention sites"):
        headwise.find_sites(model)


def test_parts_that_were_frozen_in_eval_mode_stay_so():
    model = host("BERT").train()
    model.bert.embeddings.eval()
    before = {name: part.training for name, part in model.named_modules()}
    inspect(model, tokenizer_for("BERT"), LINES, **LOOKING)
    assert {name: part.training for name, part in model.named_modules()} == before


def test_a_model_that_cannot_be_adopted_is_left_untouched():
    model = host("BERT").train()
    model.bert.encoder.layer[0].attention.self.site = "taken"
    with pytest.raises(ValueError, match="an attribute `site` that is not headwise's"):
        inspect(model, tokenizer_for("BERT"), LINES)
    assert all(part.training for part in model.modules())


def test_what_is_no_model_of_these_is_named():
    with pytest.raises(ValueError, match=r"inspect\(\) takes a Hugging Face model .*got Linear"):
        inspect(torch.nn.Linear(2, 2), tokenizer_for("BERT"), LINES)


def test_the_columns_are_those_that_were_announced(tmp_path):
    path = write_treebank(tmp_path / "trees.conllu")
    for name in ("BERT", "GPT-2"):
        found = set(table_of(name, path).columns)
        assert found <= set(columns_of(InspectConfig("", "")))
    assert columns_of(InspectConfig("", "", relations=("all",))) == ()
    few = InspectConfig("", "", relevance=False, ablation_lines=0)
    assert not {"relevance", "output_change"} & set(columns_of(few))
    assert "output_norm" not in columns_of(InspectConfig("", "", sample=0))


def test_an_adopted_model_stays_adopted():
    model = headwise.adopt(host("BERT"))
    inspect(model, tokenizer_for("BERT"), LINES, **LOOKING)
    assert len(headwise.find_sites(model)) == 2


def test_a_tokenizer_without_padding_is_not_changed():
    tokenizer = tokenizer_for("GPT-2")
    inspect(host("GPT-2"), tokenizer, LINES, **LOOKING)
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
        (hf.BertForTokenClassification, hf.BertConfig(**SIZES), True),
        (hf.GPT2Model, hf.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4), False),
        (hf.BartModel, hf.BartConfig(**TWO_STACKS), False),
        (hf.BartForSequenceClassification, hf.BartConfig(**TWO_STACKS), True),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_models_without_a_word_predictor_are_measured_too(kind, config, scores):
    name = {"Be": "BERT", "GP": "GPT-2", "Ba": "BART"}[kind.__name__[:2]]
    table = inspect(kind(config).eval(), tokenizer_for(name), LINES, sample=4, ablation_lines=3)
    assert sorted({head.site for head in table.heads}) == sorted(SITES[name])
    assert ("prediction_change" in table.columns) == ("relevance" in table.columns) == scores
    assert all(change > 0 for change in table["output_change"])


def test_long_lines_are_cut_and_counted(bert, tmp_path, capfd):
    text = text_file(tmp_path, [" ".join(["dog"] * 100), "it ran ."])
    capfd.readouterr()
    inspect_folder(InspectConfig(str(bert), str(text)), tmp_path / "run")
    figures = Run.open(tmp_path / "run").figures()
    assert (figures["truncated_lines"], figures["words"]) == (1, 38 + 3)
    assert figures["token_limit"] == 40
    assert capfd.readouterr().err == ""


def test_no_lines_are_refused():
    with pytest.raises(ValueError, match="There is no text to read"):
        table_of("BERT", [])
    with pytest.raises(ValueError, match="at least 1, got 0"):
        table_of("BERT", batch_size=0)
    with pytest.raises(ValueError, match=r"give \[line\] for one line"):
        table_of("BERT", "the dog ran .")


def test_lines_without_a_word_are_refused_only_if_there_are_no_others():
    tokenizer = tokenizer_for("BERT")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("~", "")
    wordless = ["~~", "~"]
    with pytest.raises(ValueError, match="There is no text to read"):
        inspect(host("BERT"), tokenizer, wordless)
    mixed = inspect(host("BERT"), tokenizer, [*wordless, *LINES], sample=5)
    assert all(value is not None for value in mixed["relevance"])


def test_a_batch_without_a_token_is_named():
    tokenizer = tokenizer_for("GPT-2")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("~", "")
    with pytest.raises(ValueError, match="finds no token in '~'; leave such lines out"):
        inspect(host("GPT-2"), tokenizer, ["~"])


def test_an_empty_file_leaves_no_run_behind(bert, tmp_path):
    with pytest.raises(ValueError, match="holds no text"):
        inspect_folder(InspectConfig(str(bert), str(text_file(tmp_path, [""]))), tmp_path / "run")
    (tmp_path / "empty.conllu").write_text("# nothing\n")
    with pytest.raises(ValueError, match="holds no sentence"):
        inspect_folder(InspectConfig(str(bert), str(tmp_path / "empty.conllu")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_are_not_text(tmp_path):
    torch.manual_seed(0)
    config = hf.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    hf.ViTModel(config).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="reads pixel_values, not text"):
        open_subject(tmp_path / "model")


def test_runs_of_other_models_and_unknown_devices_are_named(small_run, tmp_path):
    Run.create(tmp_path / "lm", InspectConfig("", ""), "language")
    with pytest.raises(ValueError, match="holds a language model of characters, which"):
        open_subject(tmp_path / "lm")
    with pytest.raises(ValueError, match="A device such as cpu, cuda or cuda:1 was wanted"):
        open_subject(small_run, device="abacus")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"sample": -1}, "sample must not be negative"),
        ({"relations": ()}, "relations must name some"),
    ],
)
def test_bad_settings_are_named(setting, said):
    with pytest.raises(ValueError, match=said):
        InspectConfig("model", "data", **setting)


@pytest.mark.slow
def test_real_text_and_a_real_treebank(data_folder, tmp_path):
    with lzma.open(data_folder / "wikitext-2" / "valid.txt.xz", "rt") as file:
        lines = [line.strip() for _, line in zip(range(400), file, strict=False) if line.strip()]
    many, few = (table_of("GPT-2", lines, batch_size=size, **LOOKING) for size in (32, 5))
    assert_close(many, few)
    path = data_folder / "ud" / "en_ewt-ud-dev.conllu.xz"
    trees = [tree for _, tree in zip(range(60), read_treebank(path), strict=False)]
    table = table_of("BERT", trees, **LOOKING)
    assert all(0 <= share <= 1 for share in table["amod_to_head"])
    assert json.loads(json.dumps(table.to_json())) == table.to_json()
