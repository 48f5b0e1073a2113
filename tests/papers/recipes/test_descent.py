import pytest
import torch

from headwise.recording.run import Run
from headwise_papers.data.bags import Bags
from headwise_papers.data.synthetic import TopicTask
from headwise_papers.measures.sen_curves import SenCurves
from headwise_papers.models.bag import BagClassifier, BagConfig
from headwise_papers.models.bag_stack import BagStack
from headwise_papers.ops.sen import deviation
from headwise_papers.recipes.descent import descend

TASK = TopicTask(others=4, dictionary=30, train=40, test=30)
CONFIG = BagConfig(vocabulary=TASK.vocabulary, width=6)


def _stack(seeds=(0, 1, 2), config=CONFIG, dtype=torch.float64):
    rngs = [torch.Generator().manual_seed(seed) for seed in seeds]
    return BagStack([BagClassifier(config, generator=rng, dtype=dtype) for rng in rngs])


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", CONFIG) as opened:
        yield opened


def test_the_loss_falls_and_every_epoch_is_in_the_history():
    drawn = TASK.draw([0, 1, 2])
    stack, recorder = _stack(), SenCurves(torch.arange(8))
    descent = descend(stack, drawn.train, epochs=200, rate=0.5, recorders=[recorder])
    assert descent.loss.shape == (200, 3)
    assert (descent.loss[-1] < 0.5 * descent.loss[0]).all()
    assert descent.stopped.tolist() == descent.best_epoch.tolist() == [200] * 3
    curves = recorder.tensors()
    assert curves["epoch"].tolist() == list(range(201))
    assert torch.equal(curves["score"][-1], stack.word_scores()[:, :8])


def _noisy(bags):
    """With some labels wrong, a model that learns is soon punished for being sure."""
    wrong = torch.rand(bags.labels.shape) < 0.5
    labels = torch.where(wrong, torch.randint(4, bags.labels.shape), bags.labels)
    return Bags(bags.tokens, bags.lengths, labels)


def test_each_seed_stops_for_itself_and_ends_with_its_best_parameters():
    drawn, stack = TASK.draw([0, 1, 2]), _stack()
    held_out = _noisy(drawn.test)
    descent = descend(stack, drawn.train, epochs=1000, rate=1.0, validation=held_out, patience=20)
    got = stack.evaluate(stack.prepare(held_out)).loss
    assert len(descent.stopped.unique()) > 1
    assert len(descent.loss) == descent.stopped.max() < 1000
    for seed in range(3):
        own = descent.validation_loss[: descent.stopped[seed] + 1, seed]
        assert descent.stopped[seed] == descent.best_epoch[seed] + 20
        assert own.argmin() == descent.best_epoch[seed] > 20
        assert got[seed].item() == pytest.approx(own.min().item())


def test_a_seed_stops_where_it_stops_alone():
    drawn, stack = TASK.draw([0, 1, 2]), _stack()
    held_out = _noisy(drawn.test)
    options = {"epochs": 1000, "rate": 1.0, "patience": 20}
    together = descend(stack, drawn.train, validation=held_out, **options)
    for seed in range(3):
        single, own = _stack([seed]), drawn.train.seed(seed)
        alone = descend(single, own, validation=held_out.seed(seed), **options)
        assert alone.stopped[0] == together.stopped[seed]
        assert alone.best_epoch[0] == together.best_epoch[seed]
        torch.testing.assert_close(single.word_scores()[0], stack.word_scores()[seed])


def test_a_killed_training_goes_on_through_the_same_numbers(run):
    drawn = TASK.draw([0, 1, 2])
    options = {"rate": 0.5, "epochs": 60, "validation": drawn.test}
    whole, recorder = _stack(), SenCurves(torch.arange(8))
    wanted = descend(whole, drawn.train, recorders=[recorder], **options)

    class Killed(SenCurves):
        def __call__(self, epoch, model):
            if epoch == 47:
                raise KeyboardInterrupt
            super().__call__(epoch, model)

    with pytest.raises(KeyboardInterrupt):
        descend(
            _stack(),
            drawn.train,
            recorders=[Killed(torch.arange(8))],
            run=run,
            checkpoint_every=20,
            **options,
        )
    again, resumed = _stack(), SenCurves(torch.arange(8))
    got = descend(again, drawn.train, recorders=[resumed], run=run, **options)
    for name, value in vars(wanted).items():
        assert torch.equal(getattr(got, name), value), name
    for name, value in recorder.tensors().items():
        assert torch.equal(resumed.tensors()[name], value), name
        assert torch.equal(run.load_tensors("trace/sen/curves.safetensors")[name], value), name
    for name, value in whole.parameters.items():
        assert torch.equal(again.parameters[name], value), name


def test_a_finished_training_is_not_done_again(run):
    drawn, stack = TASK.draw([0, 1, 2]), _stack()
    first = descend(stack, drawn.train, epochs=30, rate=0.5, run=run)
    other = _stack([7, 8, 9])
    second = descend(other, drawn.train, epochs=30, rate=0.5, run=run)
    assert torch.equal(first.loss, second.loss)
    assert torch.equal(other.word_scores(), stack.word_scores())


def test_what_does_not_fit_the_checkpoint_is_refused(run):
    drawn = TASK.draw([0, 1, 2])
    descend(_stack(), drawn.train, epochs=5, rate=0.5, run=run)
    with pytest.raises(ValueError, match="ended after its 5 epochs; for 9 choose another"):
        descend(_stack(), drawn.train, epochs=9, rate=0.5, run=run)
    recorders = [SenCurves(torch.arange(8))]
    with pytest.raises(ValueError, match="holds no records of 'sen'"):
        descend(_stack(), drawn.train, epochs=5, rate=0.5, run=run, recorders=recorders)
    with pytest.raises(ValueError, match="of the same config and seeds"):
        descend(_stack([0, 1]), TASK.draw([0, 1]).train, epochs=5, rate=0.5, run=run)


def test_losses_are_logged_and_reported(run):
    seen = []
    descend(
        _stack(),
        TASK.draw([0, 1, 2]).train,
        epochs=30,
        rate=0.5,
        run=run,
        log_every=10,
        progress=lambda epoch, metrics: seen.append((epoch, metrics["loss"])),
    )
    logged = [(line["step"], line["loss"]) for line in run.metrics()]
    assert logged == seen
    assert [epoch for epoch, _ in seen] == [10, 20, 30]
    assert run.load_tensors("trace/descent/losses.safetensors")["loss"].shape == (30, 3)


def test_a_training_that_diverges_is_reported():
    with pytest.raises(ValueError, match="not finite; lower the rate"):
        descend(_stack(), TASK.draw([0, 1, 2]).train, epochs=300, rate=1e9)


def test_patience_without_validation_is_refused():
    with pytest.raises(ValueError, match="patience needs validation"):
        descend(_stack(), TASK.draw([0, 1, 2]).train, epochs=1, rate=0.1, patience=3)


@pytest.mark.parametrize("classifier", ["FC", "TC"])
def test_topic_words_follow_equation_10(classifier):
    task = TopicTask(train=400, test=1)
    config = BagConfig(vocabulary=task.vocabulary, classifier=classifier)
    recorder = SenCurves(torch.arange(task.topic_words))
    descend(
        _stack([0, 1], config), task.draw([0, 1]).train, epochs=700, rate=1.0, recorders=[recorder]
    )
    curves = recorder.tensors()
    off = deviation(curves["score"], curves["norm"], task.others)
    assert curves["score"][-1].min() > 2
    assert off.largest.max() < 0.02
