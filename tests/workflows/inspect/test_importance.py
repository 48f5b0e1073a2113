"""What heads are worth: equal to what one would compute by hand, sentence by sentence."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import headwise
from headwise.analysis.propagation import head_relevance, top_class
from headwise.workflows.inspect import InspectConfig
from headwise.workflows.inspect.hugging_face import HuggingFaceSubject, padding_right
from headwise.workflows.inspect.importance import (
    Means,
    by_ablation,
    by_gradient,
    by_relevance,
    measure_importance,
    predictions_of,
)
from headwise.workflows.inspect.sentence import Sentence
from tests.workflows.inspect.test_subjects import wordpieces
from tests.workflows.small_hosts import LINES, host, tokenizer_for

SENTENCES = [Sentence.of_text(line) for line in LINES[:3]]


def settings(**changes):
    return InspectConfig("", "", steps=None, **changes)


@pytest.fixture
def asked():
    """A causal model in float64, and everything that can be asked of three sentences."""
    model = headwise.adopt(host("GPT-2").double())
    subject = HuggingFaceSubject(model, padding_right(tokenizer_for("GPT-2")))
    prepared = subject.prepare(SENTENCES)
    return subject, predictions_of(subject, prepared, "next", numbers=range(3))


def losses(subject, sentence):
    """The mean loss of the model's own choices in one sentence, and these choices."""
    inputs = subject.prepare([sentence]).inputs
    logits_TV = subject.forward(inputs).values[0]
    return logits_TV, logits_TV.argmax(-1)


def test_relevance_is_the_mean_over_the_steps_of_a_sentence(asked):
    subject, questions = asked
    found = by_relevance(subject, questions, rows=2, rule="ratio")
    for number, sentence in enumerate(SENTENCES):
        inputs = subject.prepare([sentence]).inputs
        steps = [
            head_relevance(
                subject.model,
                lambda inputs=inputs: subject.forward(inputs).values,
                top_class(torch.tensor([[0, place]])),
            )
            for place in range(len(sentence.words))
        ]
        for site, value_BH in found.items():
            mean = torch.stack([step[site][0] for step in steps]).mean(0)
            assert torch.allclose(value_BH[number], mean.double())


def test_the_loss_rises_as_it_does_with_one_head_off(asked):
    subject, questions = asked
    found = by_ablation(subject, questions, rows=2)
    with torch.no_grad():
        for number, sentence in enumerate(SENTENCES):
            whole_TV, best_T = losses(subject, sentence)
            for head in (0, 3):
                with headwise.masked(subject.model, {"decoder.1.self": [head]}):
                    off_TV, choice_T = losses(subject, sentence)
                rise = cross_entropy(off_TV, best_T) - cross_entropy(whole_TV, best_T)
                moved = (off_TV - whole_TV).norm() / whole_TV.norm()
                values = {name: by["decoder.1.self"][number, head] for name, by in found.items()}
                assert values["loss_rise"].item() == pytest.approx(rise.item(), abs=1e-5)
                assert values["output_change"].item() == pytest.approx(moved.item(), rel=1e-4)
                changed = (choice_T != best_T).double().mean().item()
                assert values["prediction_change"].item() == pytest.approx(changed)


def test_gradient_importance_is_the_slope_of_the_loss(asked):
    subject, questions = asked
    found = by_gradient(subject, questions, rows=2)["decoder.0.self"]
    eps = 1e-4
    with torch.no_grad():
        for head in range(4):
            gate_H = torch.ones(4).double()
            gate_H[head] = 1 - eps
            whole_TV, best_T = losses(subject, SENTENCES[0])
            with headwise.gated(subject.model, {"decoder.0.self": gate_H}):
                less_TV, _ = losses(subject, SENTENCES[0])
            slope = (cross_entropy(whole_TV, best_T) - cross_entropy(less_TV, best_T)) / eps
            assert found[0, head].item() == pytest.approx(abs(slope.item()), rel=1e-2, abs=1e-5)


def test_a_model_of_hidden_words_is_asked_with_each_word_hidden():
    model = headwise.adopt(host("BERT").double())
    subject = HuggingFaceSubject(model, wordpieces())
    sentence = Sentence.of_text("the dogs ran.")
    means = measure_importance(subject, [(0, sentence)], settings())
    inputs = subject.prepare([sentence]).inputs
    found = []
    for place in range(1, 6):
        ids = inputs["input_ids"].clone()
        ids[0, place] = subject.mask_id
        logits = lambda ids=ids: model(**{**inputs, "input_ids": ids}).logits  # noqa: E731
        found.append(head_relevance(model, logits, top_class(torch.tensor([[0, place]]))))
    mean_H = torch.stack([each["encoder.1.self"][0] for each in found]).mean(0)
    columns = means.columns()
    assert columns["relevance"]["encoder.1.self"] == pytest.approx(mean_H.tolist())
    assert {"gradient_importance", "output_norm", "loss_rise"} <= columns.keys()


def test_only_the_first_of_the_sample_are_read_without_heads():
    subject = HuggingFaceSubject(headwise.adopt(host("BERT")), tokenizer_for("BERT"))
    drawn = list(enumerate(SENTENCES))
    few = measure_importance(subject, drawn, settings(ablation_lines=1, batch_size=2)).columns()
    alone = measure_importance(subject, drawn[:1], settings(ablation_lines=1)).columns()
    site = "encoder.0.self"
    assert few["loss_rise"][site] == pytest.approx(alone["loss_rise"][site], abs=1e-6)
    assert few["relevance"][site] != pytest.approx(alone["relevance"][site])
    assert (
        "loss_rise" not in measure_importance(subject, drawn, settings(ablation_lines=0)).columns()
    )
    assert (
        "relevance" not in measure_importance(subject, drawn, settings(relevance=False)).columns()
    )


def test_means_weigh_sentences_and_can_be_put_away():
    means = Means()
    values = {"encoder.0.self": torch.tensor([[1.0, 0.0], [4.0, 2.0]])}
    means.add("worth", values, [0, 1], [3, 1])
    assert means.columns()["worth"] == {"encoder.0.self": [(3 + 4) / 4, 2 / 4]}
    again = Means()
    again.load(means.state())
    for one in (means, again):
        one.add("worth", {"encoder.0.self": torch.tensor([[0.5, 0.1]])}, [2], [1.0])
    assert again.columns() == means.columns()
    assert means.columns()["worth"]["encoder.0.self"][0] == 7.5 / 5


def test_means_of_other_sentences_can_be_merged():
    value_BH = torch.rand(24, 2, generator=torch.Generator().manual_seed(0)).double()
    whole, first, second = Means(), Means(), Means()
    whole.add("worth", {"encoder.0.self": value_BH}, range(24), [1] * 24)
    first.add("worth", {"encoder.0.self": value_BH[:9]}, range(9), [1] * 9)
    second.add("worth", {"encoder.0.self": value_BH[9:]}, range(9, 24), [1] * 15)
    first.merge(second)
    for name, column in whole.columns().items():
        assert first.columns()[name]["encoder.0.self"] == pytest.approx(column["encoder.0.self"])
    with pytest.raises(ValueError, match="with the seed 1; their intervals cannot be merged"):
        whole.merge(Means(seed=1))
