import doctest
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from headwise.config import from_json, to_json
from headwise.ops.fixed import uniform_attention
from headwise.sites import find_sites, masked, observe, replace
from headwise_papers.models import classifier
from headwise_papers.models.classifier import ClassifierConfig, TransformerClassifier

SMALL = ClassifierConfig(vocabulary=11, classes=3, width=16, heads=2, feed_forward=24)
SHAPES = pytest.mark.parametrize("norm", ["pre", "post"])
POOLINGS = pytest.mark.parametrize("pooling", ["mean", "first"])


def make(**settings):
    config = ClassifierConfig(**{**to_json(SMALL), "dropout": 0.0, **settings})
    return TransformerClassifier(config).eval()


def sentences():
    return torch.randint(11, (4, 6)), torch.tensor([6, 2, 1, 4])


@SHAPES
@POOLINGS
def test_a_sentence_does_not_depend_on_its_padding(norm, pooling):
    model, (tokens, lengths) = make(norm=norm, pooling=pooling), sentences()
    together = model(tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model(tokens[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=1e-5)


@SHAPES
def test_sites_are_named_by_layer_in_forward_order(norm):
    model, seen = make(norm=norm, layers=3), []
    with observe(model, lambda site, attended: seen.append(site.name)):
        model(*sentences())
    assert seen == [f"encoder.{layer}.self" for layer in range(3)]
    assert [site.num_heads for site in find_sites(model)] == [2, 2, 2]


@SHAPES
def test_a_masked_head_changes_the_output_and_is_restored(norm):
    model, batch = make(norm=norm), sentences()
    wanted = model(*batch)
    with masked(model, {"encoder.1.self": [1]}):
        assert not torch.allclose(model(*batch), wanted, atol=1e-4)
    assert torch.equal(model(*batch), wanted)


def test_attention_can_be_replaced_where_chosen():
    model, batch = make(), sentences()
    with replace(model, uniform_attention, where="encoder.0.self"):
        peaks = []
        with observe(model, lambda _, attended: peaks.append(attended.peak), where="encoder.0.*"):
            model(*batch)
    torch.testing.assert_close(peaks[0][:, 0, 0], 1 / batch[1].float())


@SHAPES
@POOLINGS
def test_the_gradient_reaches_every_parameter(norm, pooling):
    model, (tokens, lengths) = make(norm=norm, pooling=pooling), sentences()
    cross_entropy(model(tokens, lengths), torch.tensor([0, 1, 2, 0])).backward()
    # a bias of the keys adds the same to all scores of a query: softmax cannot see it
    unreached = [
        name
        for name, parameter in model.named_parameters()
        if not name.endswith("key.bias") and not parameter.grad.any()
    ]
    assert not unreached


def test_the_classifier_learns_which_of_two_words_a_sentence_has():
    model = make(classes=2, layers=1)
    tokens = torch.randint(2, 11, (64, 5))
    labels = torch.arange(64) % 2
    tokens[torch.arange(64), torch.randint(5, (64,))] = labels
    lengths = torch.full((64,), 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        loss = cross_entropy(model(tokens, lengths), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1 < math.log(2)


def test_every_word_of_a_sentence_and_no_other_matters():
    model, (tokens, lengths) = make(layers=1), sentences()
    before = model(tokens, lengths)
    tokens[0, 5] = (tokens[0, 5] + 1) % 11
    after = model(tokens, lengths)
    assert not torch.allclose(after[0], before[0])
    assert torch.equal(after[1:], before[1:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": 0}, "classes must be at least 1"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"pooling": "last"}, "pooling must be 'mean' or 'first'"),
        ({"width": 18, "heads": 4}, "multiple of heads"),
    ],
)
def test_shapes_that_cannot_be_are_refused(settings, message, unchecked):
    with pytest.raises(ValueError, match=message):
        ClassifierConfig(**{"vocabulary": 5, **settings})


def test_the_config_survives_json():
    assert from_json(ClassifierConfig, to_json(SMALL)) == SMALL


def test_examples_in_docstrings_hold():
    result = doctest.testmod(classifier)
    assert result.attempted > 0
    assert result.failed == 0
