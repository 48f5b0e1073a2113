"""Probing, patterns and counts of attention guidance."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headwise.config import changed, override
from headwise.guidance import pattern
from headwise.recording.reading import Gold, Reading, Words
from headwise.recording.run import Run
from headwise.text.mentions import Passage, make_mention
from headwise.workflows.inspect.sentence import Sentence
from headwise.workflows.inspect.subject import Subject
from headwise_papers.attention_guidance import data, fraction, patterns, probing
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
from headwise_papers.attention_guidance._subjects import given_arms, runs_of, trained_arms
from headwise_papers.core.running import reproduce
from headwise_papers.data.subword import train_byte_level
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.output_relevance import rescue
from headwise_papers.recipes.encoder_subject import encoder_subject
from headwise_papers.recipes.pretraining import PretrainingConfig

WORDS = ("ann", "saw", "bob", "and", "she", "ran")
PIECES = train_byte_level([" ".join(WORDS)] * 9, size=300)


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke run of attention_guidance/patterns: two encoders were pre-trained in it."""
    folder = tmp_path_factory.mktemp("patterns") / "run"
    reproduce("attention_guidance/patterns", patterns.experiment.smoke, folder)
    return folder


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


def test_what_the_paper_does_not_say_of_our_texts_and_shares_has_no_verdict() -> None:
    assert all(item.paper is None and "Table 2 has" in item.where for item in data.EXPECTED)
    claims = [item for item in fraction.EXPECTED if " lower than of " in item.metric]
    judged = {item.metric.partition(" of ")[2] for item in claims if item.paper is not None}
    assert judged == {
        "guided lower than of MLM",
        "guided 1 lower than of MLM",
        "guided lower than of guided 1",
    }


def test_small_encoders_are_replayed_and_not_compiled() -> None:
    settings = patterns.Config().pretraining(seed=0, guided=True, text_of="")
    on_gpu = settings.fit.on_device(cuda=True, replayable=True)
    assert on_gpu.graphs and not on_gpu.compile


def test_lines_that_encoders_cannot_read_are_refused_before_the_work() -> None:
    with pytest.raises(ValueError, match="longest must be at most block=64"):
        patterns.Config(block=64)
    assert patterns.Config(block=64, trained="others").longest == 128


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


def test_guided_heads_follow_their_patterns_and_plain_ones_do_not(
    data_folder: Path, pictured: Path
) -> None:
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
        assert (pictured / "pictures" / f"{picture}.png").stat().st_size > 5000
    assert not (pictured / "guided-seed-0" / "checkpoints").exists()
    assert not (pictured / "guided-seed-0" / "checkpoint.safetensors").exists()


@pytest.mark.slow
def test_pretrained_encoders_are_probed_where_their_runs_lie(
    data_folder: Path, pictured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arm in ("mlm", "guided"):
        (tmp_path / f"{arm}-2-seed-0").symlink_to(pictured / f"{arm}-seed-0")
    config = replace(probing.experiment.smoke, trained=(str(tmp_path),), sets=("winogender",))
    figures = reproduce("attention_guidance/probing", config, tmp_path / "run")
    for arm in ("random", "MLM", "guided 1/2"):
        assert 0 <= figures[f"{arm}: winogender: best"].mean <= 1
    assert figures["MLM: MLM loss (valid)"].mean > 0
    assert Run.open(tmp_path / "run").read_json("skipped.json") == ["guided 1"]

    monkeypatch.setattr(probing, "probe", None)
    assert (
        reproduce("attention_guidance/probing", config, tmp_path / "run") == figures
    )  # nothing is repeated


@pytest.mark.slow
def test_encoders_asked_at_once_in_other_batches_find_the_same(
    pictured: Path, data_folder: Path, tmp_path: Path
) -> None:
    for arm in ("mlm", "guided"):
        (tmp_path / f"{arm}-2-seed-0").symlink_to(pictured / f"{arm}-seed-0")
    config = replace(probing.experiment.smoke, trained=(str(tmp_path),), sets=("winogender",))
    alone = reproduce("attention_guidance/probing", config, tmp_path / "alone")
    beside = replace(config, at_once=2, batch_size=16)
    assert reproduce("attention_guidance/probing", beside, tmp_path / "beside") == alone
    run = Run.open(tmp_path / "beside")
    assert len(run.names("probed/*/winogender.json")) == 3 and run.names("at-once/*.log")


@pytest.mark.parametrize(
    "convention", ["paper", pytest.param("reference_code", marks=pytest.mark.slow)]
)
def test_rules_and_an_untrained_encoder_are_probed_where_no_model_is_given(
    data_folder: Path, tmp_path: Path, convention: str
) -> None:
    config = replace(probing.experiment.smoke, convention=convention)
    figures = reproduce("attention_guidance/probing", config, tmp_path / "run")
    assert figures["rule: synthetic: previous"].mean == 0
    # the first words are meant, unless another sentence comes before
    assert figures["rule: synthetic: first"].mean == (1 if convention == "paper" else 0)
    assert figures["winogender: mentions"].mean == 40
    assert 0 <= figures["random: synthetic: best"].mean < 1
    assert (tmp_path / "run" / "pictures" / "table8.png").stat().st_size > 5000


def test_claims_compare_seed_by_seed_and_rules_with_every_seed() -> None:
    judged = "litbank: chosen on other passages, among mentions"
    scores = {
        f"MLM: {judged}": {0: 0.6, 1: 0.4},
        f"random: {judged}": {0: 0.3, 1: 0.2, 2: 0.25},
        f"guided 1/2: {judged}": {1: 0.25, 3: 0.1},
        f"guided 1: {judged}": {0: 0.1},
        "guided 1: litbank: best among mentions": {1: 0.1},  # the best by luck counts for nothing
    }
    rules = {"rule: litbank: sieve": [0.5], "rule: litbank: same word": [0.1]}
    assert probing.claims(scores, rules) == {
        "litbank, among mentions: rule is below MLM": [0.5],
        "litbank, among mentions: random is below rule": [1.0],  # three seeds, no 0 in the interval
        "litbank, among mentions: guided 1/2 is below MLM": [0.5],  # of seed 1; 3 has no partner
        "litbank, among mentions: guided 1/2 is below random": [0.5],
        "litbank, among mentions: guided 1 is below MLM": [0.5],
    }


def test_heads_are_below_others_by_each_reading_apart() -> None:
    """What guided heads look at and which mention they prefer need not say the same."""
    scores = {
        "MLM: litbank: chosen on other passages": {0: 0.10, 1: 0.12, 2: 0.11},
        "guided 1: litbank: chosen on other passages": {0: 0.0, 1: 0.01, 2: 0.0},
        "MLM: litbank: chosen on other passages, among mentions": {0: 0.5, 1: 0.52, 2: 0.51},
        "guided 1: litbank: chosen on other passages, among mentions": {0: 0.6, 1: 0.61, 2: 0.62},
    }
    assert probing.claims(scores, {"rule: litbank: sieve": [0.05]}) == {
        "litbank, among mentions: rule is below MLM": [1.0],
        "litbank, among mentions: guided 1 is below MLM": [0.0],
        "litbank, among all tokens: guided 1 is below MLM": [
            1.0
        ],  # and no rule, which takes mentions
    }
    claims = {item.metric for item in probing.EXPECTED if item.three_way}
    for reading in ("among mentions", "among all tokens"):
        for arm in ("guided 1/2", "guided 1"):
            assert f"litbank, {reading}: {arm} is below MLM" in claims


def test_heads_are_at_a_pattern_sooner_if_an_eye_could_see_it() -> None:
    figures = {
        "guided, 1 %: weight on next": [0.02033, 0.08, 0.2],
        "MLM, 1 %: weight on next": [0.02023, 0.02, 0.2],
    }
    assert patterns._sooner(figures) == {"1 %: sooner at next": [0.0, 1.0, 0.0]}


@pytest.mark.slow
def test_the_rule_is_the_sieve_whatever_others_reach(data_folder: Path, tmp_path: Path) -> None:
    config = replace(probing.experiment.smoke, sets=("litbank",), passages=6)
    figures = reproduce("attention_guidance/probing", config, tmp_path / "run")
    measured = {
        item.metric for item in probing.EXPECTED if item.metric.startswith(("rule", "rand"))
    }
    assert {name for name in measured if "litbank" in name} <= set(figures)
    assert "rule: litbank: best" not in figures
    among = figures["random: litbank: best among mentions"].mean
    assert among > 2 * figures["random: litbank: best"].mean


def test_folders_that_are_not_there_are_refused_before_there_is_a_run(tmp_path: Path) -> None:
    lost = str(tmp_path / "typo")
    for setting, said in (
        (f"trained={lost}", f"There is no folder {lost}"),
        (f"trained={tmp_path}", "holds none at all"),
        ("models=bert", "NAME=FOLDER"),
        (f"models=bert={lost}", f"There is no folder {lost} with a model"),
    ):
        with pytest.raises(ValueError, match=said):
            override(probing.Config(), [setting])


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no folder .*missing with pre-trained encoders"):
        runs_of([str(tmp_path / "missing")], "MLM", layers=12)
    with pytest.raises(ValueError, match="A model is given as NAME=FOLDER"):
        list(given_arms(["bert"], seed=0, device="cpu"))
    with pytest.raises(ValueError, match="sets are some of litbank, gap"):
        probing.Config(sets=("litbnak",))
    for names in (["MLM=a"], ["guided-1=a"], ["random=a"], ["one=a", "one=b"]):
        with pytest.raises(ValueError, match="Another model has the name"):
            list(given_arms(names, seed=0, device="cpu"))
    for wrong, said in (
        ({"languages": ("French",)}, "languages has no 'French'. Known: English"),
        ({"tasks": ("rtee",)}, "tasks has no 'rtee'. Did you mean 'rte'"),
        ({"tagged": ("conll",)}, "tagged has no 'conll'"),
    ):
        with pytest.raises(ValueError, match=said):
            data.Config(**wrong)


def test_folders_without_the_encoders_that_are_wanted_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds none at all"):
        list(trained_arms([str(tmp_path)], layers=12, device="cpu"))
    for name in ("mlm-8-seed-0", "guided-1-16-seed-0", "guided-1-4-12-seed-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "figures.json").write_text("{}")
    with pytest.raises(ValueError, match="holds some with 8 and 16; set layers"):
        list(trained_arms([str(tmp_path)], layers=12, device="cpu"))
    config = replace(patterns.experiment.smoke, trained=str(tmp_path))
    with pytest.raises(ValueError, match=r"with 2 layers, .* but holds some with 8 and 16"):
        reproduce("attention_guidance/patterns", config, tmp_path / "run")


def test_encoders_that_differ_in_more_than_guidance_are_refused(tmp_path: Path) -> None:
    folders = [str(tmp_path / "pretrain"), str(tmp_path / "fraction")]
    plain = changed(PretrainingConfig(), {"fit.steps": 5, "fit.warmup": 1})
    told = {"guide.plan": "first=4", "guide.alpha": 100.0, "fit.seed": 1, "fit.graphs": False}
    guided = changed(plain, told)
    Run.create(tmp_path / "pretrain" / "mlm-12-seed-0", plain).save_figures({})
    Run.create(tmp_path / "fraction" / "guided-1-12-seed-1", guided).save_figures({})
    assert next(trained_arms(folders, layers=12, device="cpu")).name == "MLM"
    longer = changed(guided, {"fit.steps": 50})
    Run.create(tmp_path / "fraction" / "guided-1-12-seed-2", longer).save_figures({})
    with pytest.raises(
        ValueError, match=r"fit.steps=50, but .*mlm-12-seed-0 with fit.steps=5; arms may"
    ):
        next(trained_arms(folders, layers=12, device="cpu"))


def test_a_sparse_encoder_is_asked_as_one_with_softmax() -> None:
    plain = looking({-4: 1.0})
    sparse = Encoder(replace(plain.config, attention="topk:2")).eval()
    sparse.load_state_dict(plain.state_dict())
    found = probe(encoder_subject(sparse, PIECES), [asked(), asked((*WORDS, "</s>"))] * 15)
    assert found.tokens["coreference"].best == found.words["coreference"].best == 1.0
    assert found == probe(encoder_subject(plain, PIECES), [asked(), asked((*WORDS, "</s>"))] * 15)


def test_texts_and_tasks_are_counted(data_folder: Path, tmp_path: Path) -> None:
    figures = reproduce("attention_guidance/data", data.experiment.smoke, tmp_path / "run")
    filipino, oromo = (852_809, 52_176), (828_526, 199_251)  # as `wc -w` counts
    assert {name: estimate.mean for name, estimate in figures.items()} == pytest.approx(
        {
            "Filipino: words to train on": filipino[0],
            "Filipino: share held out": filipino[1] / sum(filipino),
            "Oromo: words to train on": oromo[0],
            "Oromo: share held out": oromo[1] / sum(oromo),
            "rte: examples": 2767,
            "masakhanews-orm: examples": 1615,
        }
    )
    assert (tmp_path / "run" / "pictures" / "table2.png").stat().st_size > 5000


def test_guided_copying_is_compared_with_its_control_in_the_same_runs() -> None:
    good_S, control_S = torch.arange(20) < 14, torch.arange(20) < 8
    name = "guided, alpha 10"
    claim = f"{name}, succeed more often than to one before"
    found = rescue._against_control(name, good_S, control_S)
    assert found[claim] == [1.0]  # six runs succeed with guidance alone, and none without
    assert found[f"{name}: runs that succeed with it and not to one before"] == [6.0]
    assert rescue._against_control(name, good_S, torch.arange(20) < 9)[claim] == [0.0]  # five
    assert rescue._against_control(name, control_S, good_S)[claim] == [0.0]
