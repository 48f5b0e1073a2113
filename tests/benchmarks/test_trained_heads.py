"""The encoder whose heads are benchmarked has learned something, or there is none."""

from dataclasses import replace

import pytest
import torch

from benchmarks.trained_heads import RECIPE, ByteEncoder, Training, byte_entropy, train_heads

CPU = torch.device("cpu")
SMALL = Training(heads=2, width=16, steps=60, batch=8, length=32, positions=64, warm_up=10)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "wikitext-2").mkdir()
    (tmp_path / "wikitext-2" / "train.txt").write_text(" the cat sat on the mat .\n" * 40)
    return tmp_path


def test_an_encoder_learns_more_than_how_common_bytes_are(folder):
    trained = train_heads(CPU, folder=folder, training=replace(SMALL, rate=5e-3, enough=0.75))
    assert trained.loss <= 0.75 * byte_entropy(trained.text_N)
    q, k, v = trained.inputs(3, 20, torch.bfloat16)
    assert q.shape == k.shape == v.shape == (3, 2, 20, 16) and q.dtype == torch.bfloat16


def test_an_encoder_that_has_learned_nothing_is_refused(folder):
    untrained = replace(SMALL, steps=1, enough=RECIPE.enough)
    with pytest.raises(ValueError, match=r"have learned too little to stand for trained ones"):
        train_heads(CPU, folder=folder, training=untrained)


def test_the_recipe_asks_for_much_less_than_the_entropy_of_bytes():
    assert RECIPE.enough <= 0.8


def test_the_entropy_of_bytes_that_are_equally_common_is_their_number_s_logarithm():
    text_N = torch.arange(256).repeat(3).to(torch.uint8)
    torch.testing.assert_close(byte_entropy(text_N), torch.tensor(256.0).log().item())


def test_scores_depend_on_distance_alone():
    model = ByteEncoder(SMALL).eval()
    q, k, _ = model.heads_of(torch.full((1, 30), 65))
    scores = (q @ k.mT)[0, 0]
    torch.testing.assert_close(scores[3, 8], scores[20, 25])
    assert (scores[3, 8] - scores[3, 20]).abs() > 1e-3
