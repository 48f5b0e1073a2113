"""The stacked models against the clear one, trained by PyTorch's own SGD."""

from itertools import product

import pytest
import torch
from torch.nn.functional import cross_entropy

from headwise_papers.data.bags import Bags
from headwise_papers.data.synthetic import TopicTask
from headwise_papers.models.bag import BagClassifier, BagConfig
from headwise_papers.models.bag_stack import BagStack
from headwise_papers.models.pair_stack import PairStack
from headwise_papers.ops.sen import predicted_velocities

DOUBLE = torch.float64
VARIANTS = list(
    product(
        ("FC", "TC", "TL"),
        ("fixed", "trainable"),
        ("nothing", "scores", "embeddings"),
        (False, True),
    )
)


def _bags(seeds=3, sentences=20, width=6, vocabulary=12, classes=3):
    return Bags(
        torch.randint(vocabulary, (seeds, sentences, width)),
        torch.randint(2, width + 1, (seeds, sentences)),
        torch.randint(classes, (seeds, sentences)),
    )


def _models(config, *, seeds=3, dtype=DOUBLE):
    rngs = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    return [BagClassifier(config, generator=rng, dtype=dtype) for rng in rngs]


def _config(classifier="TC", query="fixed", freeze="nothing", convolution=False, key_width=3):
    return BagConfig(
        vocabulary=12,
        classes=3,
        width=5,
        key_width=key_width,
        classifier=classifier,
        hidden=4,
        query=query,
        query_std=0.7,
        embedding_std=0.5,
        freeze=freeze,
        convolution=convolution,
    )


def _train_alone(model, tokens, lengths, labels, *, steps, rate):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.SGD(trained, lr=rate), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens, lengths), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("classifier", "query", "freeze", "convolution"), VARIANTS)
def test_a_stack_goes_step_by_step_where_sgd_goes(classifier, query, freeze, convolution):
    bags, models = _bags(), _models(_config(classifier, query, freeze, convolution))
    stack = (PairStack if convolution else BagStack)(models)
    data = stack.prepare(bags)
    losses = torch.stack([stack.step(data, rate=0.3) for _ in range(4)])
    for seed, model in enumerate(models):
        own = bags.tokens[seed], bags.lengths[seed], bags.labels[seed]
        alone = _train_alone(model, *own, steps=4, rate=0.3)
        torch.testing.assert_close(losses[:, seed], torch.tensor(alone, dtype=DOUBLE))
        torch.testing.assert_close(dict(stack.model(seed).state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize(("kind", "convolution"), [(BagStack, False), (PairStack, True)])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_one_seed_of_a_stack_equals_that_seed_alone(kind, convolution, dtype):
    bags, models = _bags(), _models(_config(convolution=convolution), dtype=dtype)
    stack, alone = kind(models), kind(models[1:2])
    data, own = stack.prepare(bags), alone.prepare(bags.seed(1))
    for _ in range(50):
        stack.step(data, rate=0.3)
        alone.step(own, rate=0.3)
    for name, value in alone.parameters.items():
        torch.testing.assert_close(stack.parameters[name][1:2], value)


@pytest.mark.parametrize(("kind", "convolution"), [(BagStack, False), (PairStack, True)])
def test_evaluation_is_that_of_the_clear_model(kind, convolution):
    bags, models = _bags(), _models(_config("TL", convolution=convolution))
    stack = kind(models)
    result = stack.evaluate(stack.prepare(bags))
    for seed, model in enumerate(models):
        logits, labels = model(bags.tokens[seed], bags.lengths[seed]), bags.labels[seed]
        assert result.loss[seed].item() == pytest.approx(cross_entropy(logits, labels).item())
        right = (logits.argmax(-1) == labels).double().mean()
        assert result.accuracy[seed].item() == pytest.approx(right.item())


@pytest.mark.parametrize("classifier", ["TC", "TL"])
def test_context_gradients_are_those_of_each_sentences_loss(classifier):
    bags, models = _bags(), _models(_config(classifier))
    stack = BagStack(models)
    before = {name: value.clone() for name, value in stack.parameters.items()}
    gradients = stack.context_gradients(stack.prepare(bags))
    for seed, model in enumerate(models):
        context = model.context(bags.tokens[seed], bags.lengths[seed]).detach().requires_grad_()
        cross_entropy(model.classify(context), bags.labels[seed], reduction="sum").backward()
        # of the scaled context, ||query|| times this one
        torch.testing.assert_close(gradients[seed], context.grad / model.query.norm().detach())
    assert all(torch.equal(before[name], value) for name, value in stack.parameters.items())


@pytest.mark.parametrize("query", [{}, {"query_std": 2.0, "key_width": 5}], ids=["unit", "long"])
def test_a_step_goes_where_equations_6_and_7_say(query):
    config = BagConfig(vocabulary=12, classes=3, width=5, embedding_std=0.5, **query)
    bags, stack, rate = _bags(), BagStack(_models(config)), 1e-3
    assert bool(query) == bool(((stack.query_norms() - 1).abs() > 0.1).all())
    data = stack.prepare(bags)
    for _ in range(5):
        stack.step(data, rate=0.3)
    scores, vectors = stack.word_scores(), stack.word_vectors().clone()
    gradients = stack.context_gradients(data)
    stack.step(data, rate=rate)
    for seed, eta in enumerate(rate * stack.query_norms() ** 2):
        speed = predicted_velocities(
            torch.arange(12),
            scores=scores[seed],
            vectors=vectors[seed],
            sentences=bags.tokens[seed],
            lengths=bags.lengths[seed],
            gradient=gradients[seed],
        )
        moved = (stack.word_scores()[seed] - scores[seed]) / eta
        torch.testing.assert_close(speed.exact_scores, moved, rtol=1e-9, atol=1e-11)
        moved = (stack.word_vectors()[seed] - vectors[seed]) / eta
        torch.testing.assert_close(speed.vectors, moved, rtol=1e-9, atol=1e-11)


def test_scores_and_vectors_are_those_of_the_clear_model():
    models = _models(_config(query="trainable"))
    stack = BagStack(models)
    data = stack.prepare(_bags())
    for _ in range(3):
        stack.step(data, rate=0.3)
    for seed in range(3):
        model = stack.model(seed)
        torch.testing.assert_close(stack.word_scores()[seed], model.word_scores().detach())
        torch.testing.assert_close(stack.word_vectors()[seed], model.word_vectors().detach())


def test_pairs_have_the_scores_and_vectors_that_the_convolution_gives():
    models = _models(_config(convolution=True))
    stack = PairStack(models)
    pairs = torch.randint(12, (3, 4, 2))
    scores, vectors = stack.pair_scores(pairs), stack.pair_vectors(pairs)
    for seed, model in enumerate(models):
        for place, pair in enumerate(pairs[seed]):
            with torch.no_grad():
                key = model.mix_keys(model.keys[pair].T[None])[0, :, 0]
                value = model.mix_embeddings(model.embeddings[pair].T[None])[0, :, 0]
                torch.testing.assert_close(scores[seed, place], key @ model.query)
                torch.testing.assert_close(vectors[seed, place], value * model.query.norm())


def test_large_scores_do_not_overflow():
    models = _models(_config(key_width=1), dtype=torch.float32)
    with torch.no_grad():
        for model in models:
            model.query.fill_(1)
            model.keys.uniform_(500, 520)
    stack = BagStack(models)
    assert stack.evaluate(stack.prepare(_bags())).loss.isfinite().all()


def test_parameters_can_be_put_back():
    stack = BagStack(_models(_config()))
    data = stack.prepare(_bags())
    kept = {name: value.clone() for name, value in stack.parameters.items()}
    before = stack.step(data, rate=0.3)
    stack.load(kept)
    assert torch.equal(stack.step(data, rate=0.3), before)
    with pytest.raises(ValueError, match=r"keys of shape \(3, 12, 3\) was wanted, got none"):
        stack.load({name: value for name, value in kept.items() if name != "keys"})


def test_data_that_do_not_fit_are_refused():
    stack = BagStack(_models(_config()))
    with pytest.raises(ValueError, match="for 3 seeds were wanted, got 1"):
        stack.prepare(_bags(seeds=1))
    with pytest.raises(ValueError, match="Word numbers run from 0 to 11 here"):
        stack.prepare(_bags(vocabulary=40))
    with pytest.raises(ValueError, match="Labels run from 0 to 2 here"):
        stack.prepare(_bags(classes=9))
    pairs = PairStack(_models(_config(convolution=True)))
    with pytest.raises(ValueError, match="two or more words"):
        pairs.prepare(Bags.of([[1, 2], [3]], [0, 1]).repeated(3))


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="got 2 configs"):
        BagStack([*_models(_config()), *_models(_config("FC"))])
    with pytest.raises(ValueError, match="use PairStack"):
        BagStack(_models(_config(convolution=True)))
    with pytest.raises(ValueError, match="use BagStack"):
        PairStack(_models(_config()))


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "convolution"), [(BagStack, False), (PairStack, True)])
def test_the_gpu_goes_where_the_cpu_goes(kind, convolution):
    models, bags = _models(_config("TL", "trainable", convolution=convolution)), _bags()
    here = kind(models)
    there = kind([model.cuda() for model in models])
    data, data_there = here.prepare(bags), there.prepare(bags)
    for _ in range(20):
        here.step(data, rate=0.3)
        there.step(data_there, rate=0.3)
    for name, value in here.parameters.items():
        torch.testing.assert_close(there.parameters[name].cpu(), value)


def test_topic_words_stand_out_after_training():
    task = TopicTask(others=5, dictionary=200, train=200, test=100)
    drawn = task.draw([0, 1])
    stack = BagStack(_models(BagConfig(vocabulary=task.vocabulary), seeds=2))
    data = stack.prepare(drawn.train)
    for _ in range(600):
        stack.step(data, rate=1.0)
    assert stack.evaluate(stack.prepare(drawn.test)).accuracy.min() == 1
    scores = stack.word_scores()
    assert scores[:, :8].min() > scores[:, 8:].max()
