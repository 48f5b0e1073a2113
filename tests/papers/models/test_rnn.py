"""Recurrent models with attention, alone and stacked."""

import math
from dataclasses import replace as with_fields

import pytest
import torch
from torch.nn.functional import cross_entropy

from headwise.ops.fixed import uniform_attention
from headwise.ops.topk import topk_attention
from headwise.sites import find_sites, observe, replace
from headwise_papers.models.decode import beam, greedy
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig, Seq2Seq, Seq2SeqConfig
from headwise_papers.models.rnn_stack import RnnClassifierStack, Seq2SeqStack
from headwise_papers.ops.relevance import output_relevance

VARIANTS = ("normal", "uniform", "frozen")
SHAPES = (
    Seq2SeqConfig(vocabulary=13, embedding=7, hidden=6, dropout=0.0),
    Seq2SeqConfig(vocabulary=13, embedding=7, hidden=6, layers=1, bidirectional=False,
                  combine="concat", heads=3, dropout=0.0),
    Seq2SeqConfig(vocabulary=13, embedding=7, hidden=6, heads=2, sum_heads="mean", shared=False,
                  dropout=0.0),
    Seq2SeqConfig(vocabulary=400, embedding=7, hidden=6, dropout=0.0),  # words looked up first
)  # fmt: skip


@pytest.fixture(autouse=True)
def _exact():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def sentences(*rows: int, steps: int = 9, words: int = 12):
    lengths = torch.randint(1, steps + 1, rows)
    lengths.view(-1)[0] = steps
    return torch.randint(0, words, (*rows, steps)), lengths


def classifiers(variants=VARIANTS, vocabulary=12) -> list[RnnClassifier]:
    shape = RnnClassifierConfig(vocabulary=vocabulary, embedding=7, hidden=10, attention=6)
    return [RnnClassifier(with_fields(shape, variant=variant)) for variant in variants]


def test_padding_changes_nothing():
    (model,) = classifiers(["normal"])
    tokens, _ = sentences(4)
    lengths = torch.tensor([9, 3, 1, 5])
    alone = [model(tokens[i : i + 1, :n], torch.tensor([n])) for i, n in enumerate(lengths)]
    torch.testing.assert_close(model(tokens, lengths), torch.cat(alone))


def test_attention_averages_the_logits_of_positions():
    """Section 2: the prediction is the mean of theta under attention, so theta is exact."""
    (model,) = classifiers(["normal"])
    tokens, lengths = sentences(4)
    seen = []
    with observe(model, lambda site, attended: seen.append(attended.weights)):
        logits_BC = model(tokens, lengths)
    theta_BTC = model.output(model.encode(tokens, lengths))
    torch.testing.assert_close((seen[0][:, 0] @ theta_BTC)[:, 0], logits_BC)


def test_scores_are_those_of_the_paper():
    (model,) = classifiers(["normal"])
    tokens, lengths = sentences(2)
    looked = model.look(tokens, lengths, torch.tensor([0, 1]))
    hidden_BTM = model.encode(tokens, lengths)
    score_BT = (model.key(hidden_BTM).relu() * model.query.weight[0]).sum(-1)
    torch.testing.assert_close(looked.alpha[0], score_BT)
    beta_BT = output_relevance(model.output(hidden_BTM), torch.tensor([0, 1]))
    torch.testing.assert_close(looked.beta[0], beta_BT)


def test_the_site_computes_with_these_scores():
    (model,) = classifiers(["normal"])
    tokens, lengths = sentences(3)
    seen = []
    with observe(model, lambda site, attended: seen.append((site.name, attended.weights))):
        model(tokens, lengths)
    looked = model.look(tokens, lengths, torch.zeros(3, dtype=torch.long))
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    weights = looked.alpha[0].masked_fill(~real, -math.inf).softmax(-1)
    assert seen[0][0] == "encoder.0.pool"
    torch.testing.assert_close(seen[0][1][:, 0, 0], weights)


def test_a_uniform_model_attends_to_all_real_positions_alike():
    (model,) = classifiers(["uniform"])
    tokens, lengths = sentences(3)
    seen = []
    with observe(model, lambda site, attended: seen.append(attended.weights)):
        model(tokens, lengths)
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    torch.testing.assert_close(seen[0][:, 0, 0], real / lengths[:, None])


def test_replacing_attention_by_uniform_attention_gives_the_uniform_variant():
    normal, uniform = classifiers(["normal", "uniform"])
    uniform.load_state_dict(normal.state_dict())
    batch = sentences(3)
    with replace(normal, uniform_attention):
        torch.testing.assert_close(normal(*batch), uniform(*batch))


def test_a_frozen_model_learns_nothing_but_its_scores():
    (model,) = classifiers(["frozen"])
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learning == {"key.weight", "key.bias", "query.weight"}
    translator = Seq2Seq(with_fields(SHAPES[0], variant="frozen"))
    learning = {name for name, p in translator.named_parameters() if p.requires_grad}
    assert learning == {"heads.score_weight", "heads.score_bias"}


@pytest.mark.parametrize("vocabulary", [12, 400])
def test_a_stack_of_classifiers_is_each_of_them(vocabulary):
    models = classifiers(vocabulary=vocabulary)
    stack = RnnClassifierStack(models)
    tokens, lengths = sentences(3, 4)
    labels = torch.randint(0, 2, (3, 4))
    logits = stack(tokens, lengths)
    stack.loss(tokens, lengths, labels).sum().backward()
    for seed, model in enumerate(models):
        torch.testing.assert_close(logits[seed], model(tokens[seed], lengths[seed]))
        cross_entropy(model(tokens[seed], lengths[seed]), labels[seed]).backward()
        for name, parameter in model.named_parameters():
            wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(stack.weights[name].grad[seed], wanted)


def test_a_stack_looks_as_each_classifier_does():
    models = classifiers()
    stack = RnnClassifierStack(models)
    tokens, lengths = sentences(4)
    labels = torch.randint(0, 2, (4,))
    looked = stack.look(tokens, lengths, labels)
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    for seed, model in enumerate(models):
        alone = model.look(tokens, lengths, labels)
        torch.testing.assert_close(looked.alpha[seed][real], alone.alpha[0][real])
        torch.testing.assert_close(looked.beta[seed][real], alone.beta[0][real])
        assert torch.equal(looked.right[seed], alone.right[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stack_of_translators_is_each_of_them(shape):
    models = [Seq2Seq(with_fields(shape, variant=variant)) for variant in VARIANTS]
    stack = Seq2SeqStack(models)
    source, lengths = sentences(3, 4)
    target, target_lengths = sentences(3, 4, steps=5)
    following = torch.randint(0, 12, target.shape)
    logits = stack(source, target, lengths)
    stack.loss(source, target, following, lengths, target_lengths).sum().backward()
    real = torch.arange(target.shape[2]) < target_lengths[..., None]
    for seed, model in enumerate(models):
        alone = model(source[seed], lengths[seed], target[seed])
        torch.testing.assert_close(logits[seed].transpose(0, 1), alone)
        cross_entropy(alone[real[seed]], following[seed][real[seed]]).backward()
        for name, parameter in model.named_parameters():
            wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(stack.weights[name].grad[seed], wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stack_looks_as_each_translator_does(shape):
    models = [Seq2Seq(with_fields(shape, variant=variant)) for variant in VARIANTS]
    stack = Seq2SeqStack(models)
    source, lengths = sentences(4)
    target, target_lengths = sentences(4, steps=5)
    batch = (source, lengths, target, torch.randint(0, 12, target.shape), target_lengths)
    looked = stack.look(*batch)
    real = torch.arange(source.shape[1]) < looked.lengths[:, None]
    assert len(looked.lengths) == target_lengths.sum()
    for seed, model in enumerate(models):
        alone = model.look(*batch)
        torch.testing.assert_close(looked.alpha[seed][real], alone.alpha[0][real])
        torch.testing.assert_close(looked.beta[seed][real], alone.beta[0][real])
        assert torch.equal(looked.right[seed], alone.right[0])


@pytest.mark.parametrize("combine", ["add", "context", "concat"])
@pytest.mark.parametrize("sum_heads", ["sum", "mean"])
def test_relevance_is_of_what_a_head_adds_to_the_prediction(combine, sum_heads):
    """With one position all attention is there; heads that add nothing leave theta alone."""
    shape = with_fields(SHAPES[1], combine=combine, sum_heads=sum_heads)
    model = Seq2Seq(shape)
    source, lengths = torch.randint(0, 12, (4, 1)), torch.ones(4, dtype=torch.long)
    target, following = torch.randint(0, 12, (2, 4, 3))
    batch = (source, lengths, target, following, torch.full((4,), 3))
    with torch.no_grad():
        for weights in (model.heads.output_weight, model.heads.output_bias):
            weights[0] = weights[2] = 0
        theta = model(source, lengths, target)
        if combine == "add":  # the decoder's state is the same for all positions and left out
            theta = theta - model.output(model._states(target, model.encode(source, lengths)))
            theta = theta + model.output.bias
        wanted = output_relevance(theta.flatten(0, 1)[:, None], following.flatten())
    torch.testing.assert_close(model.look(*batch, head=1).beta[0], wanted)
    torch.testing.assert_close(Seq2SeqStack([model]).look(*batch, head=1).beta[0], wanted)


@pytest.mark.parametrize("head", [-1, 3])
def test_a_head_that_is_not_there_is_refused(head):
    model = Seq2Seq(SHAPES[1])
    source, lengths = sentences(2)
    batch = (source, lengths, source, source, lengths)
    for one in (model, Seq2SeqStack([model])):
        with pytest.raises(ValueError, match=f"between 0 and 2, as there are 3; got {head}"):
            one.look(*batch, head=head)


def test_without_lengths_all_positions_of_a_stack_are_real():
    stack = Seq2SeqStack([Seq2Seq(SHAPES[1]) for _ in range(2)])
    source, target = torch.randint(0, 12, (2, 3, 6)), torch.randint(0, 12, (2, 3, 4))
    full, wide = torch.full((2, 3), 6), torch.full((2, 3), 4)
    torch.testing.assert_close(stack(source, target), stack(source, target, full))
    torch.testing.assert_close(
        stack.loss(source, target, target), stack.loss(source, target, target, full, wide)
    )


def test_a_stacks_attention_can_be_replaced_at_its_site():
    stack = Seq2SeqStack([Seq2Seq(SHAPES[1]) for _ in range(2)])
    source, target = torch.randint(0, 12, (2, 3, 6)), torch.randint(0, 12, (2, 3, 4))
    weights = []
    with (
        replace(stack, lambda *x, **options: topk_attention(*x, keep=1, **options)),
        observe(stack, lambda site, attended: weights.append(attended.weights)),
    ):
        stack(source, target)
    assert [site.name for site in find_sites(stack)] == ["decoder.0.cross"]
    assert torch.equal((weights[0] > 0).sum(-1), torch.ones(6, 3, 4, dtype=torch.long))


def test_a_seed_is_taken_out_of_a_stack_as_it_is():
    models = [Seq2Seq(SHAPES[1]) for _ in range(2)]
    source, lengths = sentences(4)
    taken = Seq2SeqStack(models).model(1)
    target = torch.randint(0, 12, (4, 3))
    assert torch.equal(taken(source, lengths, target), models[1](source, lengths, target))


def test_models_of_different_shapes_are_not_stacked():
    with pytest.raises(ValueError, match="one config but for the variant"):
        RnnClassifierStack([*classifiers(["normal"]), *classifiers(["normal"], vocabulary=13)])


def test_decoding_word_by_word_gives_what_teacher_forcing_gives():
    model = Seq2Seq(SHAPES[0]).eval()
    source, lengths = sentences(4)
    found = greedy(model, source, lengths, bos=1, eos=2, max_length=7)
    for row, hypothesis in enumerate(found):
        target = torch.tensor([[1, *hypothesis.ids]])
        logits = model(source[row : row + 1], lengths[row : row + 1], target)
        said = [*hypothesis.ids, 2][: target.shape[1]] if hypothesis.ended else hypothesis.ids
        assert logits[0].argmax(-1).tolist()[: len(said)] == said
    assert len(beam(model, source, lengths, bos=1, eos=2, max_length=7, beams=3)) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 7}, "odd 7"),
        ({"vocabulary": 0}, "vocabulary must be at least 1"),
    ],
)
def test_bad_shapes_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RnnClassifierConfig(**{"vocabulary": 9, **settings})
