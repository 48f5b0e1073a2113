"""Translators of Marian compute what Marian's equations say, and bad files get one sentence."""

import math
import random
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headwise.sites import find_sites
from headwise.workflows.inspect import inspect
from headwise.workflows.inspect.opening import open_subject
from headwise_papers.data.marian import MarianCodec, marian_folder, read_marian
from headwise_papers.data.subword import train_subwords
from headwise_papers.data.vocabulary import BOS, EOS, PAD, UNK
from headwise_papers.models.cache import Cache
from headwise_papers.models.marian import MarianTransformer, load_marian
from headwise_papers.recipes.translator import open_translator
from tests.papers.models.small_marian import (
    DECODER,
    ENCODER,
    FLOAT32,
    HEADS,
    SETTINGS,
    TEXT,
    WIDTH,
    as_item,
    settings_item,
    small_marian,
    weights,
    written,
)

MODEL = "model.xxyy.intgemm.alphas.bin"
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Weights]:
    """A folder, and the weights in it."""
    folder = tmp_path_factory.mktemp("marian")
    return folder, small_marian(folder)


@pytest.fixture(scope="module")
def model(made) -> MarianTransformer:
    return load_marian(made[0] / MODEL)


def embedded(w: Weights, ids: list[int | None]) -> Tensor:
    """Marian's embeddings of its own ids; None is the zero vector a translation begins with."""
    half = WIDTH // 2
    rows = []
    for place, number in enumerate(ids):
        row = torch.zeros(WIDTH) if number is None else w["Wemb"][number]
        angles = [place * math.exp(-i * math.log(10000) / (half - 1)) for i in range(half)]
        waves = [*map(math.sin, angles), *map(math.cos, angles)]
        rows.append(row * math.sqrt(WIDTH) + torch.tensor(waves))
    return torch.stack(rows)


def normed(w: Weights, name: str, x: Tensor) -> Tensor:
    spread = (x.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
    return w[f"{name}_scale"] * (x - x.mean(-1, keepdim=True)) / spread + w[f"{name}_bias"]


def attended(w: Weights, name: str, x: Tensor, seen: Tensor) -> Tensor:
    q, k, v = (
        (y @ w[f"{name}_W{letter}"] + w[f"{name}_b{letter}"]).split(WIDTH // HEADS, dim=-1)
        for letter, y in (("q", x), ("k", seen), ("v", seen))
    )
    heads = [
        torch.softmax(q[h] @ k[h].T / math.sqrt(WIDTH // HEADS), -1) @ v[h] for h in range(HEADS)
    ]
    return torch.cat(heads, -1) @ w[f"{name}_Wo"] + w[f"{name}_bo"]


def fed_forward(w: Weights, layer: str, x: Tensor) -> Tensor:
    inner = (x @ w[f"{layer}_ffn_W1"] + w[f"{layer}_ffn_b1"]).relu()
    return normed(w, f"{layer}_ffn_ffn_ln", x + inner @ w[f"{layer}_ffn_W2"] + w[f"{layer}_ffn_b2"])


def recurred(w: Weights, layer: str, x: Tensor) -> Tensor:
    state, states = torch.zeros(WIDTH), []
    for row in x:
        keep = (row @ w[f"{layer}_rnn_Wf"] + w[f"{layer}_rnn_bf"][0]).sigmoid()
        state = keep * state + (1 - keep) * (row @ w[f"{layer}_rnn_W"])
        states.append(state.relu())
    return torch.stack(states)


def translated(w: Weights, source: list[int], target: list[int]) -> Tensor:
    """Logits of Marian's words after a beginning, from its equations, without batches."""
    x = embedded(w, list(source))
    for number in range(1, ENCODER + 1):
        layer = f"encoder_l{number}"
        x = normed(w, f"{layer}_self_Wo_ln", x + attended(w, f"{layer}_self", x, x))
        x = fed_forward(w, layer, x)
    y = embedded(w, [None, *target])
    for number in range(1, DECODER + 1):
        layer = f"decoder_l{number}"
        y = normed(w, f"{layer}_rnn_ffn_ln", y + recurred(w, layer, y))
        y = normed(w, f"{layer}_context_Wo_ln", y + attended(w, f"{layer}_context", y, x))
        y = fed_forward(w, layer, y)
    return y @ w["Wemb"].T + w["decoder_ff_logit_out_b"]


@torch.no_grad()
def test_it_computes_what_marians_equations_say(made, model) -> None:
    source, target = [5, 9, 2, 7, 0], [4, 8, 3]
    expected_TV = translated(made[1], source, target)
    ids = torch.tensor([[number + 2 for number in source] + [PAD] * 3])  # padding changes nothing
    after = torch.tensor([[BOS, *(number + 2 for number in target)]])
    found_BTV = model(ids, torch.tensor([len(source)]), after)
    torch.testing.assert_close(found_BTV[0, :, 2:], expected_TV, atol=2e-5, rtol=1e-4)
    assert found_BTV[..., :2].max() < found_BTV[..., 2:].min()  # never PAD or BOS


@torch.no_grad()
def test_a_word_at_a_time_gives_what_all_at_once_give(model) -> None:
    source, lengths = torch.tensor([[5, 6, EOS], [7, EOS, PAD]]), torch.tensor([3, 2])
    target = torch.tensor([[BOS, 6, 9, 4], [BOS, 8, 8, 5]])
    memory = model.encode(source, lengths)
    whole = model.decode(target, memory, lengths)
    cache = Cache()
    steps = [model.decode(target[:, t : t + 1], memory, lengths, cache=cache) for t in range(4)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=1e-5)


def test_its_sites_are_those_of_encoder_and_source(model) -> None:
    names = [site.name for site in find_sites(model)]
    assert names == ["encoder.0.self", "encoder.1.self", "decoder.0.cross", "decoder.1.cross"]


def test_weights_are_unscrambled_and_dequantised(made) -> None:
    held = read_marian(made[0] / MODEL)
    assert held.tensors.keys() == made[1].keys()  # multipliers of activations are left out
    for name, weight in made[1].items():
        torch.testing.assert_close(held.tensors[name], weight)
    assert held.settings["transformer-preprocess"] == ""
    assert held.settings["dim-vocabs"] == "48,48"


def test_ids_of_the_vocabulary_are_counted_as_headwise_counts(made) -> None:
    pieces = MarianCodec.load(made[0] / "vocab.xxyy.spm")
    ids = pieces.encode("the cat")
    assert min(ids) > UNK and pieces.decode([BOS, *ids, EOS, 7]) == "the cat"
    assert [pieces.piece(number) for number in (PAD, EOS, UNK)] == ["<pad>", "<eos>", "<unk>"]
    assert pieces.encode_all(["the cat"]) == [ids]
    assert max(ids) < len(pieces)
    with pytest.raises(ValueError, match="Ids run from 0"):
        pieces.piece(len(pieces))


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="has </s> at 0 and <unk> at 1, but this one at 2 and 3"):
        MarianCodec(train_subwords(TEXT, size=40).model)


def test_a_folder_translates_and_can_be_inspected(made) -> None:
    translator = open_translator(made[0])
    found = translator.translate(TEXT, beams=1)
    assert found == translator.translate(TEXT, beams=1, batch=2)
    assert any(found)
    assert len(translator.translate(TEXT, beams=3)) == len(TEXT)
    subject = open_subject(made[0], device="cpu")
    table = inspect(
        subject.model,
        (translator.source, translator.target),
        TEXT * 6,
        sample=2,
        steps=2,
        ablation_lines=0,
    )
    assert len(table) == HEADS * (ENCODER + DECODER)
    assert all(value is not None for value in table["relevance"])
    assert "offset_share" in table.columns


def test_a_folder_without_a_model_is_none_of_marians(tmp_path: Path) -> None:
    (tmp_path / "lex.bin").write_bytes(b"")
    (tmp_path / "vocab.spm").write_bytes(b"")
    assert marian_folder(tmp_path) is None
    with pytest.raises(ValueError, match="nor one of Marian"):
        open_subject(tmp_path)


def test_a_hugging_face_folder_is_none_of_marians(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    assert marian_folder(tmp_path) is None


def test_two_vocabularies_are_told_apart_by_their_names(tmp_path: Path) -> None:
    for name in ("model.bin", "srcvocab.spm", "trgvocab.spm"):
        (tmp_path / name).write_bytes(b"")
    files = marian_folder(tmp_path)
    assert files is not None
    assert (files.source.name, files.target.name) == ("srcvocab.spm", "trgvocab.spm")
    (tmp_path / "trgvocab.spm").rename(tmp_path / "other.spm")
    with pytest.raises(ValueError, match=r"src\*.spm and trg\*.spm, got other.spm, srcvocab.spm"):
        marian_folder(tmp_path)
    (tmp_path / "second.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"one model of Marian, got model\.bin, second\.bin"):
        marian_folder(tmp_path)


def test_a_vocabulary_of_another_size_is_refused(made, tmp_path: Path) -> None:
    items = {name: as_item(name, weight) for name, weight in weights(20).items()}
    items["special:model.yml"] = settings_item(SETTINGS)
    (tmp_path / MODEL).write_bytes(written(items))
    (tmp_path / "vocab.spm").write_bytes((made[0] / "vocab.xxyy.spm").read_bytes())
    with pytest.raises(ValueError, match=r"has 22 and 22 tokens, but the vocabularies have"):
        open_translator(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("transformer-decoder-autoreg", "self-attention", "transformer-decoder-autoreg: 'rnn'"),
        ("transformer-postprocess", "da", "transformer-postprocess: 'dan' was wanted, got 'da'"),
        ("enc-depth", "3", "speak of 3 layers of the encoder, but the file has 2"),
        ("dec-depth", "9" * 12, "layers of the decoder, but the file has 2"),
        ("transformer-heads", "many", "transformer-heads must be a whole number, got 'many'"),
        ("transformer-heads", "3", "multiple of heads, got 16 and 3"),
    ],
)
def test_settings_it_cannot_follow_are_refused(tmp_path: Path, name, value, said) -> None:
    small_marian(tmp_path, settings={**SETTINGS, name: value})
    with pytest.raises(ValueError, match=said):
        load_marian(tmp_path / MODEL)


def spoilt(name: str, *, kind: int | None = None, shape=None, data: bytes | None = None) -> bytes:
    """A file of which one item is changed."""
    items = {key: as_item(key, weight) for key, weight in weights(20).items()}
    items["special:model.yml"] = settings_item(SETTINGS)
    known = items[name]
    items[name] = (
        known[0] if kind is None else kind,
        known[1] if shape is None else shape,
        known[2] if data is None else data,
    )
    return written(items)


MATRIX = "encoder_l1_ffn_W1"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "ends after 0 bytes, but 16 were wanted"),
        (struct.pack("<2Q", 1, 2**62), "were wanted; it is damaged, or no model of Marian"),
        (written({}, version=7), "of version 1, got version 7"),
        (written({}), "holds no special:model.yml"),
        (spoilt(MATRIX)[:-900], "were wanted; it is damaged"),
        (spoilt(MATRIX, kind=0x5101), "has type 0x5101, whose layout is unknown"),
        (spoilt(MATRIX, shape=(16, -24)), r"has the shape \(16, -24\)"),
        (spoilt(MATRIX, shape=(16, 24, 1)), r"has the shape \(16, 24, 1\)"),
        (spoilt(MATRIX, shape=(16, 2**20)), r"needs 16777216 bytes for the shape"),
        (spoilt(MATRIX, shape=(16, 23)), "do not fit its settings"),
        (spoilt(MATRIX, data=bytes(16 * 24 + 4)), "has the multiplier 0.0, which must be a pos"),
        (spoilt("special:model.yml", data=b"\xff\xff"), "are not UTF-8"),
        (spoilt("decoder_ff_logit_out_b", kind=FLOAT32, shape=(1, 7)), "do not fit its settings"),
    ],
)  # fmt: skip
def test_a_bad_file_gets_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        load_marian(path)
    assert "\n" not in str(caught.value)


def test_no_damage_to_the_front_does_worse_than_a_sentence(tmp_path: Path) -> None:
    whole = spoilt(MATRIX)
    chance, path = random.Random(0), tmp_path / "model.bin"
    front = whole.index(b"Wemb") + 3000
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(front)] = chance.randrange(256)
        path.write_bytes(bytes(content[: chance.choice([len(content), chance.randrange(front)])]))
        try:
            load_marian(path)
        except ValueError as problem:
            assert "\n" not in str(problem)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There is no model file"):
        read_marian(tmp_path / "nothing.bin")
