import pytest
import torch

from headwise.sites import find_sites, observe
from headwise_papers.models.bag import BagClassifier, BagConfig

SMALL = BagConfig(vocabulary=12, classes=3, width=5, embedding_std=1.0)


def _model(**changes):
    config = BagConfig(**{**vars(SMALL), **changes})
    return BagClassifier(config, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _spread_keys(model):
    with torch.no_grad():
        model.keys.normal_()
    return model


def test_the_context_is_the_weighted_mean_of_the_words():
    model = _spread_keys(_model(key_width=3, query_std=1.0))
    tokens = torch.tensor([[1, 2, 2, 7]])
    weights = (model.keys[tokens[0]] @ model.query).softmax(-1)
    wanted = weights @ model.embeddings[tokens[0]]
    torch.testing.assert_close(model.context(tokens)[0], wanted)


@pytest.mark.parametrize("convolution", [False, True])
def test_padding_changes_nothing(convolution):
    model = _spread_keys(_model(convolution=convolution, key_width=2))
    short, padded = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 3, 9, 9]])
    torch.testing.assert_close(model(short), model(padded, torch.tensor([3])))


def test_every_word_starts_with_score_0_and_the_model_as_an_average():
    model = _model()
    tokens = torch.tensor([[1, 2, 3]])
    assert model.word_scores().abs().max() == 0
    torch.testing.assert_close(model.context(tokens)[0], model.embeddings[tokens[0]].mean(0))


def test_the_site_can_be_watched():
    model, seen = _spread_keys(_model()), []
    assert [site.name for site in find_sites(model)] == ["encoder.0.pool"]
    with observe(model, lambda site, attended: seen.append(attended.weights)):
        model(torch.tensor([[1, 2, 3, 0]]), torch.tensor([3]))
    weights = seen[0][0, 0, 0]
    torch.testing.assert_close(weights[:3], model.word_scores()[1:4].softmax(-1))
    assert weights[3] == 0


def test_fc_has_orthonormal_columns_that_are_not_trained():
    model = _model(classifier="FC")
    weight = model.output.weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(3, dtype=torch.float64))
    assert not weight.requires_grad
    normal = _model(classifier="FC", fixed="normal").output.weight
    assert normal.diagonal().tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="width >= classes, got width=5 and classes=6"):
        BagConfig(classes=6, width=5, classifier="FC")


@pytest.mark.parametrize(
    ("changes", "frozen"),
    [
        ({}, {"query"}),
        ({"freeze": "scores", "query": "trainable"}, {"keys", "query"}),
        ({"freeze": "embeddings"}, {"embeddings", "query"}),
        ({"query": "trainable", "classifier": "TL"}, set()),
        (
            {"freeze": "embeddings", "convolution": True},
            {"embeddings", "query", "mix_embeddings.weight", "mix_embeddings.bias"},
        ),
    ],
)
def test_what_is_frozen_requires_no_gradient(changes, frozen):
    model = _model(**changes)
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == frozen


def test_variants_of_a_seed_start_from_the_same_numbers_in_every_dtype():
    whole, frozen = _model(), _model(freeze="embeddings")
    assert torch.equal(whole.embeddings, frozen.embeddings)
    assert torch.equal(whole.output.weight, frozen.output.weight)
    single = BagClassifier(SMALL, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(single.embeddings, whole.embeddings.float())


def test_vectors_are_scaled_by_the_norm_of_the_query():
    model = _model(key_width=4, query_std=2.0)
    wanted = model.embeddings.norm(dim=-1) * model.query.norm()
    torch.testing.assert_close(model.word_vectors().norm(dim=-1), wanted)
    assert _model(key_width=4).query.norm().item() == pytest.approx(1)
