"""The papers' models lose heads, are saved, loaded and exported."""

import pytest
import torch

from headwise.pruning import PruningRecord, export, load, prune, rebuild, record_of, save
from headwise.pruning.timing import random_text
from headwise.sites import find_sites, masked
from headwise_papers.models import (
    Encoder,
    EncoderConfig,
    MaskedLM,
    MaskedLMWithNextSentence,
    NextSentence,
    ReplacedToken,
    SequenceClassifier,
    TokenClassifier,
    greedy,
    rebuilding,
)
from headwise_papers.models.caption import CaptionConfig, CaptionModel
from headwise_papers.models.classifier import ClassifierConfig, TransformerClassifier
from headwise_papers.models.rnn import Seq2Seq, Seq2SeqConfig
from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.models.transformer import Transformer, TransformerConfig
from headwise_papers.models.xl import TransformerXL, XLConfig
from tests.alone import run_alone
from tests.pruning.shrinking import randomised_biases, removed
from tests.pruning.test_matrix import NO_ONNX, tried

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SOURCE, LENGTHS = torch.tensor([[4, 5, 6, 7, 2], [6, 5, 2, 0, 0]]), torch.tensor([5, 3])
TARGET = torch.tensor([[1, 4, 6, 5], [1, 8, 7, 2]])


def transformer(**settings) -> Transformer:
    sizes = {"width": 16, "heads": 4, "feed_forward": 16}
    return Transformer(TransformerConfig(9, 9, **sizes, **settings)).eval()


def translate(model):
    return model(SOURCE, LENGTHS, TARGET)


def seq2seq(**settings) -> Seq2Seq:
    return Seq2Seq(
        Seq2SeqConfig(vocabulary=9, embedding=8, hidden=8, heads=4, layers=1, **settings)
    ).eval()


def language(distances):
    config = XLConfig(vocab=9, width=16, heads=4, layers=2, memory=4, distances=distances)
    return TransformerXL(config).eval()


def encoder(**settings) -> Encoder:
    sizes = {"width": 16, "heads": 4, "layers": 2, "feed_forward": 16, "max_length": 8}
    return Encoder(EncoderConfig(9, **sizes, **settings))


def encode(model):
    return model(SOURCE, lengths=LENGTHS)


def guess(model):
    return model(SOURCE, torch.tensor([1, 6]), lengths=LENGTHS)


CASES = {
    "pre-norm": (transformer, translate),
    "post-norm": (lambda: transformer(norm="post"), translate),
    "learned entmax": (lambda: transformer(encoder_attention="entmax:learned"), translate),
    "XL": (lambda: language("bias"), lambda model: model(SOURCE)[0]),
    "XL folded": (lambda: language("folded"), lambda model: model(SOURCE)[0]),
    "classifier": (
        lambda: TransformerClassifier(ClassifierConfig(9, width=16, heads=4)).eval(),
        lambda model: model(SOURCE, LENGTHS),
    ),
    "encoder": (lambda: encoder().eval(), encode),
    "masked words": (lambda: MaskedLM(encoder(embedding_width=8)).eval(), guess),
    "next sentence": (lambda: NextSentence(encoder(family="bert")).eval(), encode),
    "replaced tokens": (lambda: ReplacedToken(encoder(family="electra")).eval(), encode),
    "classes of texts": (
        lambda: SequenceClassifier(encoder(), 3, dropout=0.3).eval(),
        encode,
    ),
    "classes of tokens": (lambda: TokenClassifier(encoder(), 3).eval(), encode),
    "words and next": (
        lambda: MaskedLMWithNextSentence(encoder(family="bert")).eval(),
        lambda model: torch.cat([scores.flatten() for scores in guess(model)]),
    ),
    "RNN": (seq2seq, translate),
    "RNN mean": (lambda: seq2seq(sum_heads="mean"), translate),
    "RNN concat": (lambda: seq2seq(combine="concat", sum_heads="mean"), translate),
}


def built(case):
    torch.manual_seed(0)
    model = randomised_biases(CASES[case][0]())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sharpness" in name or name.endswith(("content_bias", "distance_bias")):
                parameter.normal_()
    return model


def uneven(model):
    return {
        site.name: ([0, 2, 3], [1], [1, 3])[place % 3]
        for place, site in enumerate(find_sites(model))
    }


def bare(model):
    return {find_sites(model)[0].name: []}


@torch.no_grad()
@pytest.mark.parametrize("choose", [uneven, bare])
@pytest.mark.parametrize("case", CASES)
def test_a_pruned_model_gives_what_the_masked_one_gives(case, choose):
    model, run = built(case), CASES[case][1]
    keep = choose(model)
    with masked(model, removed(model, keep)):
        wanted = run(model)
    assert not torch.allclose(run(model), wanted, **CLOSE)
    torch.testing.assert_close(run(prune(model, keep)), wanted, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_a_model_is_rebuilt_from_its_record(case):
    model, run = built(case), CASES[case][1]
    prune(model, {**uneven(model), **bare(model)})
    again = rebuild(CASES[case][0](), PruningRecord.from_json(record_of(model).to_json()))
    again.load_state_dict(model.state_dict())
    assert torch.equal(run(again), run(model))
    assert record_of(again) == record_of(model)


@pytest.mark.parametrize("case", CASES)
def test_gradient_reaches_all_that_is_left(case):
    model, run = built(case), CASES[case][1]
    prune(model, uneven(model))
    run(model).square().sum().backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not without


def test_decoding_with_a_cache_gives_the_same_words():
    model = built("pre-norm")
    sites = [site.name for site in find_sites(model)]
    keep = {"encoder.0.self": [], "decoder.0.self": [], "decoder.1.cross": [], sites[-2]: [1]}
    options = {"bos": 1, "eos": 2, "max_length": 6}
    with masked(model, removed(model, keep)):
        wanted = greedy(model, SOURCE, LENGTHS, **options)
    got = greedy(prune(model, keep), SOURCE, LENGTHS, **options)
    assert [hypothesis.ids for hypothesis in got] == [hypothesis.ids for hypothesis in wanted]


def test_captions_lose_heads_too():
    model = CaptionModel(CaptionConfig(vocab=9, width=16, heads=4)).eval()
    prune(model, {find_sites(model)[0].name: [1]})
    assert find_sites(model)[0].num_heads == 1


def test_stacks_of_seeds_are_refused():
    model = Seq2SeqStack([seq2seq(), seq2seq()])
    with pytest.raises(ValueError, match="No projections to queries, keys and values"):
        prune(model, {"decoder.0.cross": [0]})


@pytest.mark.parametrize("case", CASES)
def test_a_saved_model_comes_back(case, tmp_path):
    model, run = built(case), CASES[case][1]
    save(prune(model, uneven(model)), tmp_path / "small")
    with torch.no_grad():
        assert torch.equal(run(load(tmp_path / "small")), run(model))


@torch.no_grad()
@pytest.mark.parametrize("case", ["pre-norm", "RNN"])
def test_gates_removal_and_saving_give_the_same(case, tmp_path):
    model, run = built(case), CASES[case][1]
    keep = {**uneven(model), **(bare(model) if case == "pre-norm" else {})}
    found = tried(model, keep, run, tmp_path / "small")
    assert all(found.values()), found


class Translator(Transformer):
    """A class that load could not find."""


def test_other_classes_and_settings_are_refused(tmp_path):
    model = Translator(TransformerConfig(9, 9, width=8, heads=2))
    with pytest.raises(ValueError, match="headwise_papers has no model Translator"):
        save(prune(model, {"encoder.0.self": [0]}), tmp_path / "small")
    assert not list(tmp_path.iterdir())
    _, name, settings = SequenceClassifier(encoder(), 3).headwise_rebuild()
    with pytest.raises(ValueError, match="must say how many classes it has"):
        rebuilding.rebuild(name, {**settings, "classes": None})


def test_what_cannot_be_exported_is_refused(tmp_path):
    model = built("RNN")
    save(prune(model, uneven(model)), tmp_path / "small")
    with pytest.raises(ValueError, match="Seq2Seq cannot be exported; Hugging Face models"):
        export(tmp_path / "small", "torch")


def test_inputs_to_time_a_translator_hold_words_alone():
    inputs = random_text(transformer(), 4, 30)
    assert inputs["source"].min() == 4 and inputs["target"].min() == 4


@pytest.mark.slow
def test_our_own_transformer_is_exported_or_refused_with_a_reason(tmp_path):
    done = run_alone("tests/papers/pruning/exporting.py", str(tmp_path))
    assert ("ONNX differs by" in done) != bool(NO_ONNX)
    assert "PyTorch cannot trace this Transformer: Could not guard" in done
