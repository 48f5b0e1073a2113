import math
import random
import sys
from collections import Counter
from types import ModuleType, SimpleNamespace

import pytest

from headwise.analysis.scores import bleu
from headwise_papers.measures import scores
from headwise_papers.measures.scores import (
    bits_per_character,
    caption_scores,
    paired_bootstrap,
    tokenised_bleu,
)

WORDS = ["a", "dog", "runs", "over", "the", "green", "hill", "and", "sees", "two", "more", "of"]
REFERENCES = [" ".join(random.Random(n).choices(WORDS, k=9)) + " ." for n in range(60)]


def damaged(share):
    """The references with some words replaced."""
    rng = random.Random(1)
    return [
        " ".join("cat" if rng.random() < share else word for word in line.split())
        for line in REFERENCES
    ]


def multi_bleu(hypotheses, references):
    """The formula of multi-bleu.perl, one reference."""
    matched, made, lengths = Counter(), Counter(), [0, 0]
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        said, wanted = hypothesis.lower().split(), reference.lower().split()
        lengths = [lengths[0] + len(said), lengths[1] + len(wanted)]
        for order in range(1, 5):
            grams = [
                Counter(tuple(side[n : n + order]) for n in range(len(side) - order + 1))
                for side in (said, wanted)
            ]
            matched[order] += (grams[0] & grams[1]).total()
            made[order] += grams[0].total()
    precision = sum(math.log(matched[order] / made[order]) for order in range(1, 5)) / 4
    return 100 * math.exp(min(0.0, 1 - lengths[1] / lengths[0]) + precision)


def test_tokenised_bleu_is_that_of_multi_bleu():
    said = [line.title()[: -2 * (n % 4)] if n % 4 else line for n, line in enumerate(damaged(0.1))]
    score = tokenised_bleu(said, REFERENCES)
    assert score.value == pytest.approx(multi_bleu(said, REFERENCES))
    assert "case:lc" in score.signature and "tok:none" in score.signature
    assert "smooth:none" in score.signature
    assert tokenised_bleu(said, REFERENCES, lowercase=False).value < score.value


def test_tokenised_bleu_without_a_common_four_words_is_nothing():
    assert tokenised_bleu(["a dog runs"], ["a dog runs"]).value == 0


@pytest.mark.parametrize("score", [bleu, tokenised_bleu])
def test_translations_without_references_are_refused(score):
    with pytest.raises(ValueError, match="got 2 translations and 1 references"):
        score(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="got 0 translations"):
        score([], [])


def test_guessing_among_bytes_takes_eight_bits():
    assert bits_per_character(math.log(256)).value == pytest.approx(8)
    assert bits_per_character(2 * math.log(2), tokens=3, characters=6).value == pytest.approx(1)
    assert bits_per_character(1.0).signature != bits_per_character(1.0, characters=2).signature
    with pytest.raises(ValueError, match="got nan"):
        bits_per_character(math.nan)


def test_a_better_system_is_found_and_an_equal_one_is_not():
    better, worse = damaged(0.05), damaged(0.3)
    found = paired_bootstrap(better, worse, REFERENCES, samples=200)
    wanted = bleu(better, REFERENCES).value - bleu(worse, REFERENCES).value
    assert found.value == pytest.approx(wanted)
    assert 0 < found.low < found.value < found.high and found.is_real
    other = paired_bootstrap(worse, better, REFERENCES, samples=200)
    assert (other.low, other.high) == pytest.approx((-found.high, -found.low))
    same = paired_bootstrap(better, better, REFERENCES, samples=40)
    assert (same.low, same.value, same.high) == (0, 0, 0) and not same.is_real


def test_resampling_every_sentence_once_gives_the_corpus_score():
    metric = scores._bleu_metric(False, "13a")
    counts = scores._counts(metric, damaged(0.2), REFERENCES)
    assert scores._resampled(metric, counts.sum(0)) == pytest.approx(
        bleu(damaged(0.2), REFERENCES).value
    )


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="40 or more for a 95 % interval, got 10"):
        paired_bootstrap(REFERENCES, REFERENCES, REFERENCES, samples=10)


def test_captions_without_the_toolkit_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocoevalcap.bleu.bleu", None)
    with pytest.raises(ValueError, match=r"need pycocoevalcap; install headwise\[captions\]"):
        caption_scores([["a"]], [[["a"]]])


class Metric:
    """Stands for a class of the toolkit, and remembers what it was given."""

    given = None

    def __init__(self, *_):
        self.lock = SimpleNamespace(locked=lambda: False)
        pipe = SimpleNamespace(close=lambda: None)
        self.meteor_p = SimpleNamespace(stdout=pipe, stderr=pipe)

    def compute_score(self, wanted, said, verbose=1):
        Metric.given = (wanted, said)
        return (0.5 if verbose else [0.4, 0.3, 0.2, 0.1]), []


@pytest.fixture
def toolkit(monkeypatch):
    """The toolkit's modules, without its mathematics."""
    for name, held in (("bleu", "Bleu"), ("cider", "Cider"), ("meteor", "Meteor")):
        module = ModuleType(f"pycocoevalcap.{name}.{name}")
        setattr(module, held, Metric)
        for package in ("pycocoevalcap", f"pycocoevalcap.{name}"):
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(scores.metadata, "version", lambda _: "1.2")


def test_captions_are_scored_against_all_their_references(toolkit, monkeypatch):
    monkeypatch.setattr(scores.shutil, "which", lambda _: "java")
    found = caption_scores([["a", "dog"], []], [[["a", "dog"], ["dog"]], [["men"]]])
    assert Metric.given == ({0: ["a dog", "dog"], 1: ["men"]}, {0: ["a dog"], 1: [""]})
    assert (found.bleu_4.value, found.cider.value, found.meteor.value) == (10, 50, 50)
    assert "pycocoevalcap:1.2" in found.cider.signature and not found.skipped


def test_meteor_is_skipped_with_a_reason_where_java_is_absent(toolkit, monkeypatch):
    monkeypatch.setattr(scores.shutil, "which", lambda _: None)
    found = caption_scores([["a"]], [[["a"]]])
    assert found.meteor is None and "there is no java" in found.skipped
    assert found.cider.value == 50


def test_meteor_that_fails_is_skipped_with_a_reason(toolkit, monkeypatch):
    monkeypatch.setattr(scores.shutil, "which", lambda _: "java")

    class Broken(Metric):
        def compute_score(self, wanted, said):
            raise ValueError("could not convert string to float")

    monkeypatch.setattr(sys.modules["pycocoevalcap.meteor.meteor"], "Meteor", Broken)
    assert "Java program failed" in caption_scores([["a"]], [[["a"]]]).skipped


def test_captions_and_references_come_in_pairs(toolkit):
    for hypotheses, references in (([["a"]], []), ([], []), ([["a"]], [[]])):
        with pytest.raises(ValueError, match="One caption and one reference or more"):
            caption_scores(hypotheses, references)


def test_the_toolkit_itself_gives_the_best_scores_to_the_references():
    pytest.importorskip("pycocoevalcap", reason="the extra `captions` is not installed")
    own = [["a", "dog", "runs", "on", "grass"], ["two", "men", "sit", "down"]]
    best = caption_scores(own, [[words] for words in own])
    worse = caption_scores(own[::-1], [[words] for words in own])
    assert best.bleu_4.value == pytest.approx(100, abs=0.01) and worse.bleu_4.value < 1
    assert best.cider.value > worse.cider.value
    assert best.meteor is None or best.meteor.value == pytest.approx(100)
