"""Speed, language models, captions and maps of sparse attention; the benchmark of translation."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import marian, translation
from headwise.ops import softmax_attention
from headwise.recording.run import Run
from headwise.sites import find_sites
from headwise_papers.core import Result, find_or_train, using_cache
from headwise_papers.core.runner import reproduce
from headwise_papers.data.translation import Lines, ParallelTexts
from headwise_papers.data.vocabulary import EOS, PAD
from headwise_papers.models import TransformerConfig
from headwise_papers.recipes.captioning import train_captioning
from headwise_papers.recipes.language import train_language
from headwise_papers.recipes.translator import Translator
from headwise_papers.sparse_transformer import _speed, captions, enwik, maps, speed
from headwise_papers.sparse_transformer._costs import costs
from headwise_papers.sparse_transformer._maps import (
    ToyConfig,
    alignment_error,
    count_keys,
    last_token_weight,
    toy_batch,
    toy_pairs,
    train_toy,
)

CPU = torch.device("cpu")
TINY = translation.Sizes(
    size="small",
    changes=(("width", 16), ("feed_forward", 16), ("encoder_layers", 1), ("decoder_layers", 1)),
    vocab=40,
    tokens=64,
    batches=1,
    sentences=4,
    beams=2,
    compiled=False,
    replayed=False,
)


@pytest.fixture(autouse=True)
def cached(tmp_path: Path):
    with using_cache(tmp_path / "models"):
        yield


def tried(name: str, config, folder: Path) -> dict[str, Result]:
    return reproduce(f"sparse_transformer/{name}", config, folder)


def validations(run: Run, name: str) -> list[float]:
    return [float(row[name]) for row in run.metrics() if name in row]


def test_times_of_models_that_shared_the_machine_are_left_out(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", captions.Config())
    run.save_figures({"updates": 20, "minutes": 1.5, "tokens_per_second": 300.0, "parameters": 7})
    assert costs([run], captions.COSTS)["minutes"].values == (1.5,)
    run.path(".trained-in-parallel").touch()
    assert list(costs([run], captions.COSTS)) == ["updates", "parameters"]


def test_language_models_learn_and_topk_of_all_keys_is_softmax(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tried("enwik", enwik.SMOKE, tmp_path / "run")
    bits = {
        name: results[f"enwiki-xml-6mb: {name}, bits per character"].mean
        for name in ("softmax", "topk:2", "topk:999")
    }
    assert bits["topk:999"] == pytest.approx(bits["softmax"], abs=1e-4)
    assert abs(bits["topk:2"] - bits["softmax"]) > 1e-3  # the op is used
    assert max(bits.values()) < 6  # of 8 that a byte has
    for name in ("softmax", "topk:2"):
        trained = find_or_train(train_language, enwik._models(enwik.SMOKE)[name][0])
        first, *_, last = validations(trained, "valid_bits")
        assert last < first
    assert (tmp_path / "run/figures/enwik.png").stat().st_size > 5000

    monkeypatch.setattr("headwise_papers.recipes.language.fit", None)
    assert tried("enwik", enwik.SMOKE, tmp_path / "again") == results  # nothing is repeated


def test_the_papers_language_model_has_its_size() -> None:
    (model, *_), _ = enwik._models(enwik.Config(corpus="enwik8")).values()
    assert (model.model.layers, model.model.memory, model.segment) == (12, 512, 512)
    assert (model.corpus, model.fit.steps) == ("enwik8", 400_000)
    with pytest.raises(ValueError, match="corpus is one of"):
        list(enwik.models(enwik.Config(corpus="enwik9")))


def test_captions_are_learnt_and_topk_of_all_keys_is_softmax(
    data_folder: Path, tmp_path: Path
) -> None:
    results = tried("captions", captions.SMOKE, tmp_path / "run")
    runs = {
        name: find_or_train(train_captioning, several[0])
        for name, several in captions._models(captions.SMOKE).items()
    }
    losses = {name: validations(run, "validation_loss") for name, run in runs.items()}
    assert losses["topk:99"] == pytest.approx(losses["softmax"], abs=1e-3)
    shape = runs["topk:99"].read_json("model.json")
    assert all(shape[f"{place}_attention"] == "topk:99" for place in ("encoder", "cross"))
    assert all(last < first for first, last in losses.values())
    assert results["BLEU-4: softmax"].mean >= 0
    assert results["BLEU-4: topk:99 - softmax"].kind == "difference"
    assert len(runs["softmax"].read_text("captions.txt").splitlines()) == 20
    assert (tmp_path / "run/figures/captions.png").stat().st_size > 5000


def test_bleu_4_of_captions_takes_the_best_of_five_references(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", captions.Config())
    run.write_text("captions.txt", "a dog runs on the beach\ntwo men sit on a bench\n")
    wrong = "somebody does something else here"
    references = [
        [wrong, wrong, "a dog runs on the beach", wrong, wrong],
        [wrong, wrong, wrong, "two men sit on a bench", wrong],
    ]
    assert captions.sacrebleu_4(run, references) == pytest.approx(100)
    assert captions.sacrebleu_4(run, [[wrong] * 5, [wrong] * 5]) == 0


def test_speeds_are_measured_for_five_methods_in_two_kinds_of_code(tmp_path: Path) -> None:
    results = tried("speed", speed.SMOKE, tmp_path / "run")
    for block in ("chosen", "eager"):
        for phase in speed.PHASES:
            name = f"multi30k on a CPU, {block}: {{}}, {phase}"
            for attention in speed.PAPER:
                assert min(results[name.format(attention)].values) > 0
            own, base = (results[name.format(x)].values for x in ("topk:8", "softmax"))
            ratios = results[name.format("topk:8 over softmax")].values
            assert list(ratios) == pytest.approx([a / b for a, b in zip(own, base, strict=True)])
    assert not any("replayed" in name for name in results)  # which takes a GPU
    assert (tmp_path / "run/figures/speed.png").stat().st_size > 5000


def test_every_claimed_speed_is_the_papers() -> None:
    paper = {claim.result: claim.paper for claim in speed.CLAIMS if claim.number is not None}
    assert len(paper) == 2 * (2 * 4 + 2)
    assert paper["iwslt14, eager: topk:8 over softmax, training"] == 0.98
    assert paper["iwslt14, eager: topk:8 over softmax, inference"] == 0.94
    assert not any("replayed" in name or "chosen" in name for name in paper)


def small_model(
    attention: str = "softmax", *, width: int = 16, dropout: float = 0.1
) -> _speed.Transformer:
    shape = TransformerConfig(
        30, 30, width=width, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=16,
        share_embeddings="all", encoder_attention=attention, decoder_attention=attention,
        cross_attention=attention, dropout=dropout,
    )  # fmt: skip
    return _speed.make_model(shape, CPU)


def test_sentences_end_as_long_as_their_sources() -> None:
    source, lengths = _speed.drawn_sources("iwslt14", vocab=30, count=6, device=CPU)
    found = _speed.translated(small_model().eval(), source, lengths, beams=3)
    assert [len(one.ids) + 1 for one in found] == lengths.tolist()
    assert all(one.ended and EOS not in one.ids for one in found)


def test_batches_have_the_lengths_of_a_corpus_and_fit_their_tokens() -> None:
    batches = _speed.drawn_batches("tatoeba", vocab=30, tokens=256, count=5, device=CPU)
    known = {target + 1 for _, target in _speed.LENGTHS["tatoeba"]}
    for batch in batches:
        assert set(batch.target_lengths.tolist()) <= known
        assert max(batch.source.numel(), batch.target_in.numel()) <= 256
        assert batch.source.shape[1] % 8 == 0
        assert int((batch.target_out != PAD).sum()) == int(batch.target_lengths.sum())


@pytest.mark.parametrize("attention", ["topk:2", "entmax:learned"])
def test_eager_code_computes_the_same_and_goes_away(attention: str) -> None:
    model = small_model(attention).eval()
    source, lengths = _speed.drawn_sources("tatoeba", vocab=30, count=3, device=CPU)
    chosen = model(source, lengths, source)
    with _speed.eager(model):
        assert all(site.replacements for site in find_sites(model))
        torch.testing.assert_close(model(source, lengths, source), chosen, rtol=1e-4, atol=1e-5)
    assert not any(site.replacements for site in find_sites(model))


def test_code_that_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = _speed.drawn_batches("tatoeba", vocab=30, tokens=128, count=1, device=CPU)
    training = _speed.Training(small_model("topk:2"), batches)
    _speed.check_loss("topk:2", training)
    monkeypatch.setattr(_speed, "eager", lambda model: _speed.replace(model, softmax_attention))
    monkeypatch.setattr(_speed, "AGREEMENT", {"cpu": 1e-6})
    with pytest.raises(ValueError, match="by its definition"):
        _speed.check_loss("topk:2", training)


def test_replayed_steps_alone_are_refused_without_a_gpu(tmp_path: Path) -> None:
    config = replace(speed.SMOKE, blocks=("replayed",))
    with pytest.raises(ValueError, match="Replayed steps need a GPU"):
        tried("speed", config, tmp_path / "run")


def test_replayed_steps_are_timed_once_all_batches_came_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(speed.SMOKE, batches=3, steps=2, turns=2)
    seen: list[tuple[int, bool]] = []

    def turns(trainings, device, *, turns: int, warm: int = 1):
        seen.append((warm, trainings["topk:8"].replayed))
        return {name: [1.0] * turns for name in trainings}

    monkeypatch.setattr(speed, "take_turns", turns)
    assert speed._block(config, "multi30k", "replayed", CPU).keys() == {"training"}
    assert seen == [(3, True)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("attention", list(speed.PAPER))
def test_replayed_training_steps_learn_the_same(attention: str) -> None:
    device = torch.device("cuda")
    batches = _speed.drawn_batches("tatoeba", vocab=30, tokens=256, count=3, device=device)
    plain, replayed = (
        _speed.Training(
            small_model(attention, width=64, dropout=0.0).to(device),
            batches,
            steps=3,
            replayed=is_replayed,
            rate=1e-3,
        )
        for is_replayed in (False, True)
    )
    before = plain.evaluated(batches[0])
    for _ in range(8):
        assert plain() == replayed()
    after = [training.evaluated(batches[0]) for training in (plain, replayed)]
    assert after[0] < 0.95 * before
    assert after[1] == pytest.approx(after[0], rel=1e-2)


def test_topk_maps_have_at_most_k_keys_and_softmax_spreads(tmp_path: Path) -> None:
    results = tried("maps", maps.SMOKE, tmp_path / "run")
    for kind in ("encoder", "decoder", "cross"):
        assert results[f"toy: most keys with weight, {kind}: topk:2"].mean == 2
        assert results[f"toy: most keys with weight, {kind}: softmax"].mean > 8
        carrying = results[f"toy: keys with 1 % of the weight or more, {kind}: topk:2"].mean
        assert 1 <= carrying <= 2
    # a word looked at by chance is the right one in a tenth of the cases
    assert results["toy: alignment error, bottom layer: softmax"].mean < 0.88
    assert results["toy: token accuracy: softmax"].mean > 0.2
    rows = find_or_train(*maps._toy(maps.SMOKE, "softmax", 0)).metrics()
    assert rows[-1]["loss"] < rows[0]["loss"]
    for name in ("maps-toy", "bars-toy", "keys-toy"):
        assert (tmp_path / f"run/figures/{name}.png").stat().st_size > 5000


@pytest.mark.slow
def test_real_translators_are_drawn_and_counted(
    small_translation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = toy_pairs(10, 8)[1]
    lines = Lines(*([" ".join(getattr(pair, x)) for pair in pairs] for x in ("source", "target")))
    lines.source[0] = 200 * "dog "  # too long for the model
    texts = ParallelTexts("toy", lines, lines, lines)
    monkeypatch.setattr(maps, "read_parallel_texts", lambda *given: texts)
    opened = Translator.load(Run.open(small_translation))
    monkeypatch.setattr(maps, "_opened", lambda job: opened)
    config = maps.Config(real=("softmax",), sentences=6, drawn=2)
    batches = maps._real_batches(opened, config)
    assert sum(len(batch.source) for batch in batches) == 6
    assert 4 < maps._looked(opened, batches)["keys with weight, cross"] < 64
    assert list(maps._draw_real(config)) == [
        f"{name}-multi30k-en-de" for name in ("keys", "maps", "bars")
    ]


def test_an_untrained_translator_has_the_keys_that_it_can_see(tmp_path: Path) -> None:
    _, test = toy_pairs(60, 4)
    settings = ToyConfig("topk:3", 0, 60, 2, 16, 2, 1, 8, 1e-3, 1)
    opened = Translator.load(train_toy(settings, tmp_path / "run"))
    batch = toy_batch(opened, test)
    keys = count_keys(opened, [batch])
    assert keys["cross"].weighted.tolist() == [[3, 3]]
    assert keys["decoder"].weighted.max() < 3  # the first position sees itself alone
    assert 1 < keys["cross"].effective.min() <= keys["cross"].effective.max() <= 3.001
    assert 0 < last_token_weight(opened, [batch]) < 0.5  # about one key in ten


def test_alignment_error_counts_words_and_leaves_end_marks_out() -> None:
    gold = [{0: 1, 1: 0}]
    weights_LBHTK = torch.zeros(2, 1, 1, 3, 3)
    weights_LBHTK[0, 0, 0, 0, 1] = weights_LBHTK[0, 0, 0, 1, 0] = 1  # right
    weights_LBHTK[1, 0, 0, 0, 1] = weights_LBHTK[1, 0, 0, 1, 2] = 1  # the second at the end mark
    found = alignment_error(weights_LBHTK, gold, [2])
    assert found.layer_error.tolist() == pytest.approx([0, 1 - 2 / 3])  # one link, two gold ones
    assert found.head_error[:, 0].tolist() == found.layer_error.tolist()
    assert found.layer_mass.tolist() == [1, 0.5]


@pytest.mark.slow
def test_the_translation_benchmark_has_a_row_for_every_contestant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(translation, "SIZES", {"cpu": TINY})
    measured = translation.measure(2, CPU)
    names = ["softmax", "topk:8", "Marian", "Marian with its Trainer"]
    names += ["softmax", "topk:8", "Marian"]
    assert [row["contestant"] for row in measured.rows] == names
    assert measured.wrong == 0
    assert all(row["tokens_per_second"] > 0 and row["ms"] > 0 for row in measured.rows)
    ours, topk, peer, _ = measured.rows[:4]
    assert ours["loss_after"] < ours["loss_before"]
    assert ours["loss_before"] == pytest.approx(peer["loss_before"], abs=1e-4)  # the same weights
    assert topk["aims"] == {"over softmax": 0.952} and topk["over softmax"] > 0


def test_on_a_gpu_the_translation_benchmark_replays_ours_too() -> None:
    sizes = replace(TINY, replayed=True)
    contestants = translation._contestants(sizes, translation._batches(sizes, CPU), CPU)
    replayed = {name for name, one in contestants.items() if one.replayed}
    assert replayed == {"softmax, replayed", "topk:8, replayed"}
    assert translation.SIZES["cuda"].replayed and not translation.SIZES["cpu"].replayed
    aims = {pair[:2]: pair[2] for pair in translation.AIMS["training"]}
    assert aims["topk:8, replayed", "softmax, replayed"] == pytest.approx(1 / 1.05)
    assert aims["softmax, replayed", marian.WITH_TRAINER] == 2.0


def test_a_marian_that_scores_otherwise_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "SIZES", {"cpu": TINY})
    monkeypatch.setitem(marian.LAYER, "attention.query", "self_attn.k_proj")
    with pytest.raises(SystemExit, match="nothing is reported"):
        translation.measure(1, CPU)


def test_searches_that_end_elsewhere_get_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "SIZES", {"cpu": TINY})
    monkeypatch.setattr(translation, "_check_translations", lambda *given, beams: None)
    monkeypatch.setattr(translation, "marian_translated", lambda *given, beams: [[5]] * 4)
    measured = translation.measure(1, CPU, only=("decoding",))
    assert measured.wrong == 1
    assert "tokens_per_second" not in measured.rows[-1]
    assert "did not end" in measured.rows[-1]["reason"]
