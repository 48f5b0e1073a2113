"""Probing, patterns and counts of attention guidance."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headwise.config import override
from headwise.guidance import pattern
from headwise.recording.reading import Gold, Reading, Words
from headwise.recording.run import Run
from headwise.text.mentions import Passage, make_mention
from headwise.workflows.inspect.sentence import Sentence
from headwise.workflows.inspect.subject import Subject
from headwise_papers.attention_guidance import _probing, patterns, probing
from headwise_papers.attention_guidance._encoders import TINY
from headwise_papers.attention_guidance._maps import (
    attention_maps,
    pattern_matrices,
    weight_on_patterns,
)
from headwise_papers.attention_guidance._probe import (
    CANDIDATES,
    Probed,
    among_mentions,
    among_tokens,
    probe,
)
from headwise_papers.core import Result, find_or_train, using_cache
from headwise_papers.core.runner import reproduce
from headwise_papers.data.subword import train_byte_level
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.recipes.encoder_subject import encoder_subject

WORDS = ("ann", "saw", "bob", "and", "she", "ran")
PIECES = train_byte_level([" ".join(WORDS)] * 9, size=300)


@pytest.fixture(scope="module")
def pictured(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The smoke run of attention_guidance/patterns, in whose cache two encoders were trained."""
    folder = tmp_path_factory.mktemp("patterns")
    with using_cache(folder / "models"):
        reproduce("attention_guidance/patterns", patterns.SMOKE, folder / "run")
        yield folder / "run"


def asked(words: tuple[str, ...] = WORDS) -> Sentence:
    """Whom does "she" mean? Ann."""
    mention = make_mention(words, (4, 5), right=[(0, 1)], wrong=[(2, 3)])
    return Sentence.of_passage(Passage(words, " ".join(words), (mention,)))


def looking(at: Mapping[int, float]) -> Encoder:
    """An encoder of one head that looks at fixed distances, more at those with larger numbers."""
    width = 32
    shape = EncoderConfig.tiny(len(PIECES), layers=1, heads=1, width=width, max_length=width)
    encoder = Encoder(shape)
    attention = encoder.layers[0].attention
    turned_DD = sum(torch.eye(width).roll(distance, 0) * more for distance, more in at.items())
    with torch.no_grad():  # words do not matter, and each position has a direction of its own
        encoder.embed.words.weight.zero_()
        encoder.embed.positions.weight.copy_(torch.eye(width))
        attention.key.weight.copy_(torch.eye(width))
        attention.query.weight.copy_(turned_DD)
    return encoder.eval()


def subject(at: Mapping[int, float]) -> Subject:
    return encoder_subject(looking(at), PIECES)


def test_special_tokens_get_numbers_of_their_own_and_gold_follows() -> None:
    of_BT = torch.tensor([[-1, 0, 1, 1, 2, -1], [-1, 0, 1, -1, -1, -1]])
    gold = Gold("coreference", "encoder.self", torch.tensor([[0, 2, 1], [1, 1, 0]]))
    counted = among_tokens(Reading([0, 1], {"encoder": Words(of_BT)}, [gold]))
    assert counted.words["encoder"].of.tolist() == [[0, 1, 2, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert counted.gold[0].right.tolist() == [[0, 3, 2], [1, 2, 1]]


def test_a_head_that_looks_at_the_antecedent_resolves_all() -> None:
    found = probe(subject({-4: 1.0}), [asked()] * 30)
    scores = found.tokens["coreference"], found.words["coreference_pronoun"]
    for score in (*scores, found.candidates["coreference"]):
        assert (score.head, score.best, score.held_out) == ("encoder.0.self.0", 1.0, 1.0)
        assert 0.5 < score.held_out_low < 1.0  # 15 passages do not say all
    assert found.mentions == {"coreference": 30, "coreference_pronoun": 30}
    assert found.rules["coreference"]["first"] == found.rules["coreference"]["fixed_distance"] == 1
    assert found.rules["coreference"]["previous"] == 0
    assert Probed.from_json(found.to_json()) == found


def test_a_head_that_rests_on_a_special_token_resolves_nothing_unless_only_words_count() -> None:
    found = probe(subject({-5: 1.0, -4: 0.5}), [asked()] * 30)  # <s> stands before Ann
    assert found.tokens["coreference"].best == 0.0
    assert found.words["coreference"].best == 1.0


def test_among_mentions_only_words_of_mentions_count() -> None:
    # most at <s>, then at "and", then at Ann, who is meant, and then at Bob
    found = probe(subject({-5: 1.0, -1: 0.9, -4: 0.7, -2: 0.5}), [asked()] * 30)
    assert found.tokens["coreference"].best == found.words["coreference"].best == 0.0
    assert found.candidates["coreference"].held_out == 1.0
    found = probe(subject({-4: 0.5, -2: 0.7, -5: 1.0}), [asked()] * 30)
    assert found.candidates["coreference"].best == 0.0


def test_among_mentions_every_mention_has_its_own_candidates() -> None:
    of_BT = torch.tensor([[-1, 0, 1, 1, 2, -1], [-1, 0, 1, 2, -1, -1]])
    right = torch.tensor([[0, 2, 1], [1, 1, 0], [1, 2, 0], [1, 2, 1]])
    gold = [Gold("candidates", CANDIDATES, right)]
    mask_BTT = among_mentions(Reading([0, 1], {"encoder": Words(of_BT)}, gold)).squeeze(1)
    places = [[0, 4, 2], [0, 4, 3], [1, 2, 1], [1, 3, 1], [1, 3, 2]]
    assert mask_BTT.nonzero().tolist() == places


def test_passages_with_words_in_pieces_are_asked_or_left_out() -> None:
    cut = asked(("ann", "saw", "zebras", "and", "she", "ran"))
    both = [sentence for _ in range(12) for sentence in (asked(), asked(), cut)]
    reads = subject({-4: 1.0})
    assert probe(reads, both).mentions["coreference"] == 36
    assert probe(reads, both, whole_words=True).mentions["coreference"] == 24
    assert probe(reads, [cut] * 5, whole_words=True) == Probed({}, {}, {}, {}, {})


def test_small_encoders_are_replayed_and_not_compiled() -> None:
    on_gpu = patterns.ENCODER.fit.on_device(cuda=True, replayable=True)
    assert on_gpu.graphs and not on_gpu.compile


def test_lines_that_encoders_cannot_read_are_refused_before_the_work() -> None:
    with pytest.raises(ValueError, match=r"longest must be at most encoder.model.max_length=256"):
        patterns.Config(longest=257)


def test_patterns_are_those_written_out() -> None:
    ids = [0, 7, 8, 4, 2]
    aims = {name: pattern(name) for name in ("next", "prev", "first")}
    aims["delim"], aims["period"] = pattern("delim", tokens=(0, 2)), pattern("period", tokens=(4,))
    matrices = pattern_matrices(ids, aims)
    uniform = torch.full((1, 5), 0.2)
    eye = torch.eye(5)
    assert torch.allclose(matrices["next"], torch.cat([eye[1:], uniform]))
    assert torch.allclose(matrices["prev"], torch.cat([uniform, eye[:-1]]))
    assert torch.equal(matrices["first"], eye[:1].expand(5, 5))
    assert torch.equal(matrices["delim"], (eye[:1] + eye[4:]).expand(5, 5) / 2)
    assert torch.equal(matrices["period"], eye[3:4].expand(5, 5))
    code = pattern_matrices(ids, aims, convention="reference_code")
    assert not code["next"][-1].any() and not code["prev"][0].any()
    assert torch.equal(code["delim"], (eye[:1] + eye[4:]).expand(5, 5))


def test_weights_lie_on_a_pattern_where_a_head_follows_it() -> None:
    ids = [PIECES.begin, *PIECES.encode(" ".join(WORDS)), PIECES.end]
    maps_LHTT = attention_maps(looking({-1: 3.0}), ids)
    assert maps_LHTT.shape == (1, 1, 8, 8)
    on = weight_on_patterns(maps_LHTT, ids, {name: pattern(name) for name in ("prev", "next")})
    assert on["prev"].item() > 0.99 and on["next"].item() < 0.05
    even = weight_on_patterns(torch.full((2, 3, 8, 8), 1 / 8), ids, {"next": pattern("next")})
    assert torch.allclose(even["next"], torch.full((2, 3), 1 / 8))


def test_guided_heads_follow_their_patterns_and_plain_ones_do_not(pictured: Path) -> None:
    figures = Run.open(pictured).figures()
    assert figures["patterns: rows that sum to 1"] == 1
    assert figures["patterns: depend on the text"] == 2
    for name in ("next", "prev", "first"):
        start, *ends = (
            figures[f"{moment}: weight on {name}"]
            for moment in ("guided, 0 %", "guided, 100 %", "MLM, 100 %")
        )
        assert figures[f"MLM, 0 %: weight on {name}"] == start  # the same first weights
        assert ends[0] > 2 * ends[1]
        assert f"guided, 1 %: weight on {name}" in figures
    for picture in ("heads", "patterns"):
        assert (pictured / "figures" / f"{picture}.png").stat().st_size > 5000
    there = find_or_train(patterns.watch, patterns.SMOKE.watched("guided", 0)).folder / "encoder"
    assert [path.name for path in there.rglob("*.safetensors")] == ["model.safetensors"]


@pytest.mark.slow
def test_pretrained_encoders_are_probed(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(probing.SMOKE, seeds=1, sets=("winogender",), changes=TINY)
    with using_cache(tmp_path / "models"):
        results = reproduce("attention_guidance/probing", config, tmp_path / "run")
        for arm in ("random", "MLM", "guided 1/2", "guided 1"):
            assert 0 <= results[f"{arm}: winogender: best"].mean <= 1
        assert results["MLM: MLM loss (valid)"].mean > 0
        smaller = replace(config, batch_size=16)
        again = reproduce("attention_guidance/probing", smaller, tmp_path / "smaller", jobs=2)
        assert again == results
        monkeypatch.setattr(_probing, "probe", None)
        assert reproduce("attention_guidance/probing", config, tmp_path / "again") == results


@pytest.mark.parametrize(
    "convention", ["paper", pytest.param("reference_code", marks=pytest.mark.slow)]
)
def test_rules_and_an_untrained_encoder_are_probed_where_no_model_is_given(
    data_folder: Path, tmp_path: Path, convention: str
) -> None:
    config = override(probing.SMOKE, [f"convention={convention}"])
    with using_cache(tmp_path / "models"):
        results = reproduce("attention_guidance/probing", config, tmp_path / "run")
    assert results["rule: synthetic: previous"].mean == 0
    # the first words are meant, unless another sentence comes before
    assert results["rule: synthetic: first"].mean == (1 if convention == "paper" else 0)
    assert results["winogender: mentions"].mean == 40
    assert 0 <= results["random: synthetic: best"].mean < 1
    assert (tmp_path / "run" / "figures" / "table8.png").stat().st_size > 5000


def test_heads_are_compared_seed_by_seed_and_rules_with_every_seed() -> None:
    judged = "litbank: chosen on other passages, among mentions"
    scores = {
        f"MLM: {judged}": {0: 0.6, 1: 0.4},
        f"random: {judged}": {0: 0.3, 1: 0.2, 2: 0.25},
        f"guided 1/2: {judged}": {1: 0.25, 3: 0.1},
        f"guided 1: {judged}": {0: 0.1},
        "guided 1: litbank: best among mentions": {1: 0.1},  # the best by luck counts for nothing
        "MLM: litbank: chosen on other passages": {0: 0.2},
        "guided 1: litbank: chosen on other passages": {0: 0.0},
    }
    rules = {"rule: litbank: sieve": Result([0.5]), "rule: litbank: same word": Result([0.1])}
    found = probing.differences(scores, rules)
    assert {name: result.values for name, result in found.items()} == {
        "litbank, among mentions: rule - MLM": pytest.approx((-0.1, 0.1)),
        "litbank, among mentions: random - rule": pytest.approx((-0.2, -0.3, -0.25)),
        "litbank, among mentions: guided 1/2 - MLM": pytest.approx((-0.15,)),  # seed 3 is alone
        "litbank, among mentions: guided 1/2 - random": pytest.approx((0.05,)),
        "litbank, among mentions: guided 1 - MLM": pytest.approx((-0.5,)),
        "litbank, among all tokens: guided 1 - MLM": pytest.approx((-0.2,)),
    }


def test_heads_are_at_a_pattern_sooner_if_an_eye_could_see_it() -> None:
    results = {
        f"{arm}, 1 %: weight on {name}": Result(values)
        for name in patterns.STATIC
        for arm, values in (("guided", [0.02033, 0.08, 0.2]), ("MLM", [0.02023, 0.02, 0.2]))
    }
    assert patterns.sooner(results)["1 %: sooner at next"].values == (0.0, 1.0, 0.0)


@pytest.mark.slow
def test_the_rule_is_the_sieve_whatever_others_reach(data_folder: Path, tmp_path: Path) -> None:
    config = replace(probing.SMOKE, sets=("litbank",), passages=6)
    with using_cache(tmp_path / "models"):
        results = reproduce("attention_guidance/probing", config, tmp_path / "run")
    assert "rule: litbank: sieve" in results and "rule: litbank: best" not in results
    among = results["random: litbank: best among mentions"].mean
    assert among > 2 * results["random: litbank: best"].mean


def test_wrong_settings_are_refused_before_there_is_a_run(tmp_path: Path) -> None:
    for setting, said in (
        ("models=bert", "A model is given as NAME=FOLDER"),
        (f"models=bert={tmp_path / 'typo'}", "There is no folder .*typo with a model"),
        (f"models=MLM={tmp_path}", "Another model has the name"),
        (f"models=one={tmp_path},one={tmp_path}", "Another model has the name"),
        ("sets=litbnak", "sets are some of litbank, gap"),
    ):
        with pytest.raises(ValueError, match=said):
            override(probing.Config(), [setting])


def test_a_sparse_encoder_is_asked_as_one_with_softmax() -> None:
    plain = looking({-4: 1.0})
    sparse = Encoder(replace(plain.config, attention="topk:2")).eval()
    sparse.load_state_dict(plain.state_dict())
    found = probe(encoder_subject(sparse, PIECES), [asked(), asked((*WORDS, "</s>"))] * 15)
    assert found.tokens["coreference"].best == found.words["coreference"].best == 1.0
    assert found == probe(encoder_subject(plain, PIECES), [asked(), asked((*WORDS, "</s>"))] * 15)
