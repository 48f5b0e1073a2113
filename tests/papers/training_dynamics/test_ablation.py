from pathlib import Path

import torch

from headwise_papers.core.running import reproduce
from headwise_papers.data.synthetic import TopicTask
from headwise_papers.training_dynamics import ablation
from headwise_papers.training_dynamics.ablation import EXPECTED, experiment


def test_score_and_embedding_enhance_each_other_and_eq_8_foretells_diminution(
    tmp_path: Path,
) -> None:
    figures = reproduce("training_dynamics/ablation", experiment.smoke, tmp_path / "run")
    assert figures["TC test accuracy"].mean == 1
    assert figures["seeds where TC's loss falls fastest"].mean == 1
    assert 0 < figures["diminished words"].mean < 1
    # not all: Eq. 8 takes the mean of a product for the product of means; a lot would give half
    assert figures["diminished words that first lose score"].mean > 0.8
    assert figures["enhanced words that first gain score"].mean > 0.8
    assert {item.metric for item in EXPECTED} <= set(figures)
    for picture in ("fig3-evolution", "foretold-by-eq8"):
        assert (tmp_path / "run" / "pictures" / f"{picture}.png").stat().st_size > 5000


def test_variants_start_alike_and_keep_what_is_frozen() -> None:
    config = experiment.smoke
    task = TopicTask(others=5, dictionary=config.dictionary, train=50, test=10)
    train = task.draw(range(config.seeds)).train
    stacks = {name: ablation._stack(name, config, task) for name in ablation.VARIANTS}
    first = {name: own.parameters["embeddings"].clone() for name, own in stacks.items()}
    for stack in stacks.values():
        stack.step(stack.prepare(train), rate=0.1)
    assert torch.equal(first["TC"], first["KF"])
    assert torch.equal(first["TC"], first["EF"])
    assert torch.equal(stacks["EF"].parameters["embeddings"], first["EF"])
    assert not stacks["KF"].word_scores().any()
    assert stacks["TC"].word_scores().any()


def test_a_word_of_diminution_projects_less_on_its_pull_than_the_words_beside_it() -> None:
    config = experiment.smoke
    task = TopicTask(others=5, dictionary=config.dictionary, train=200, test=10)
    train = task.draw(range(config.seeds)).train
    stack = ablation._stack("TC", config, task)
    speeds = ablation._first_speeds(stack, train, task.topic_words)
    gradient = stack.context_gradients(stack.prepare(train))
    vectors = stack.word_vectors()
    for seed in range(config.seeds):
        for word in range(task.topic_words):
            tokens = train.tokens[seed]
            with_word = (tokens == word).any(-1)
            pull = -gradient[seed, with_word].mean(0)
            beside = tokens[with_word]
            others = vectors[seed, beside[beside != word]].mean(0)
            lead = (vectors[seed, word] - others) @ pull
            assert (lead < 0) == (speeds[seed, word] < 0)
