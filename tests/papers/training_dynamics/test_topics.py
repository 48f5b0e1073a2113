"""Experiments on made-up sentences: synthetic, ablation, query, cnn."""

from dataclasses import replace

import torch

from headwise_papers.training_dynamics import ablation, cnn, query
from headwise_papers.training_dynamics._topics import build_stack


def test_topic_words_follow_the_theory_whatever_classifies(smoke):
    results = smoke("synthetic")
    for model in ("FC", "TC", "TL"):
        assert results[f"{model} test accuracy"].mean == 1
        assert 0 < results[f"{model} deviation"].high < 0.1
        assert results[f"{model} topic score"].low > 10 * results[f"{model} others' score"].high
    assert results["FC sentences whose topic word is attended"].mean == 1
    assert min(results["FC topic score - TC topic score"].values) > 0
    assert min(results["TC topic score - TL topic score"].values) > 0


def test_score_and_embedding_enhance_each_other_and_eq_8_foretells_diminution(smoke):
    results = smoke("ablation")
    assert results["TC test accuracy"].mean == 1
    assert results["seeds where TC's loss falls fastest"].mean == 1
    assert 0 < results["diminished words"].mean < 1
    # not all: Eq. 8 takes the mean of a product for the product of means; chance would give half
    assert results["diminished words that first lose score"].mean > 0.8
    assert results["enhanced words that first gain score"].mean > 0.8


def test_variants_start_alike_and_keep_what_is_frozen():
    config = ablation.SMOKE
    train = config.task.draw(range(config.seeds)).train
    stacks = {name: build_stack(config.of(freeze=x)) for name, x in ablation.FROZEN.items()}
    first = {name: own.parameters["embeddings"].clone() for name, own in stacks.items()}
    for stack in stacks.values():
        stack.step(stack.prepare(train), rate=0.1)
    assert torch.equal(first["TC"], first["KF"])
    assert torch.equal(first["TC"], first["EF"])
    assert torch.equal(stacks["EF"].parameters["embeddings"], first["EF"])
    assert not stacks["KF"].word_scores().any()
    assert stacks["TC"].word_scores().any()


def test_a_word_of_diminution_projects_less_on_its_pull_than_the_words_beside_it():
    config = ablation.SMOKE
    train, stack = config.task.draw(range(config.seeds)).train, build_stack(config)
    speeds = ablation.first_speeds(config)
    gradient = stack.context_gradients(stack.prepare(train))
    vectors = stack.word_vectors()
    for seed in range(config.seeds):
        for word in range(config.task.topic_words):
            tokens = train.tokens[seed]
            with_word = (tokens == word).any(-1)
            pull = -gradient[seed, with_word].mean(0)
            beside = tokens[with_word]
            others = vectors[seed, beside[beside != word]].mean(0)
            lead = (vectors[seed, word] - others) @ pull
            assert (lead < 0) == (speeds[seed, word] < 0)


def test_score_and_norm_grow_together_with_a_trained_query(smoke):
    results = smoke("query")
    for model in query.MODELS:
        assert results[f"{model} words with a positive relation"].mean == 1
        growth = [
            results[f"{model} growth of the query, variance {x:g}"].mean for x in query.VARIANCES
        ]
        assert growth == sorted(growth, reverse=True)
        assert growth[0] > 1
    assert max(results["FC deviation, variance 0.5 - 0.1"].values) < 0


def test_score_and_norm_of_topic_pairs_grow_together_and_others_stay_behind(smoke):
    results = smoke("cnn")
    for name in cnn.QUERIES:
        assert results[f"{name}: topic pairs whose score and norm grow together"].mean == 1
        assert results[f"{name}: test accuracy"].mean > 0.9
        for what in ("score", "norm"):
            related = results[f"{name}: others' {what} over topic pairs'"].mean
            unrelated = results[f"{name}: unrelated others' {what} over topic pairs'"].mean
            assert unrelated < related < 1


def test_queries_of_a_seed_differ_in_length_alone():
    stacks = [build_stack(query.settings(query.SMOKE, "TL", x)) for x in query.VARIANCES]
    squares = torch.stack([own.query_norms().square() for own in stacks])
    wanted = torch.tensor(query.VARIANCES, dtype=torch.float64)[:, None] * squares[2]
    torch.testing.assert_close(squares, wanted)
    assert_alike_but_for_the_length_of_the_query(stacks)
    pairs = [cnn.build_stack(replace(cnn.SMOKE, unit_query=x)) for x in (True, False)]
    torch.testing.assert_close(pairs[0].query_norms(), torch.ones(2, dtype=torch.float64))
    assert_alike_but_for_the_length_of_the_query(pairs)


def assert_alike_but_for_the_length_of_the_query(stacks):
    for name in stacks[0].parameters:
        first, *others = (own.parameters[name] for own in stacks)
        for other in others:
            if name == "query":
                first, other = (x / x.norm(dim=-1, keepdim=True) for x in (first, other))
            torch.testing.assert_close(other, first, rtol=0, atol=1e-15)
