"""A tiny translator of Marian, written to disk in Marian's own format."""

import io
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

FLOAT32, INT8, INTGEMM8 = 0x404, 0x101, 0x4101
WIDTH, INNER, HEADS, ENCODER, DECODER = 16, 24, 4, 2, 2
TEXT = [
    "the red dog saw a small cat .",
    "a cat ate the old bird .",
    "the bird saw the dog and the cat .",
    "an old dog ran to a red house .",
]
SETTINGS = {
    "dec-cell": "ssru",
    "dec-depth": str(DECODER),
    "enc-depth": str(ENCODER),
    "transformer-heads": str(HEADS),
    "transformer-decoder-autoreg": "rnn",
    "transformer-ffn-activation": "relu",
    "transformer-postprocess": "dan",
    "transformer-preprocess": '""',
    "transformer-tied-layers": "[]",
    "type": "transformer",
}
Item = tuple[int, tuple[int, ...], bytes]  # type, shape, data


def vocabulary(folder: Path) -> Path:
    """A SentencePiece model with Marian's special tokens."""
    from sentencepiece import SentencePieceTrainer

    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 4),
        model_writer=written,
        vocab_size=48,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        eos_id=0,
        unk_id=1,
        bos_id=-1,
        pad_id=-1,
    )
    path = folder / "vocab.xxyy.spm"
    path.write_bytes(written.getvalue())
    return path


def weights(vocab: int, *, seed: int = 0) -> dict[str, Tensor]:
    """Random weights by Marian's names, matrices as (inputs, outputs)."""
    chance = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance) * 0.3

    found = {"Wemb": drawn(vocab, WIDTH), "decoder_ff_logit_out_b": drawn(1, vocab)}
    for stack, layers in (("encoder", ENCODER), ("decoder", DECODER)):
        for number in range(1, layers + 1):
            layer = f"{stack}_l{number}"
            part = "self" if stack == "encoder" else "context"
            norms = [f"{part}_Wo_ln", "ffn_ffn_ln"]
            for letter in "qkvo":
                found[f"{layer}_{part}_W{letter}"] = drawn(WIDTH, WIDTH)
                found[f"{layer}_{part}_b{letter}"] = drawn(1, WIDTH)
            found[f"{layer}_ffn_W1"], found[f"{layer}_ffn_b1"] = (
                drawn(WIDTH, INNER),
                drawn(1, INNER),
            )
            found[f"{layer}_ffn_W2"], found[f"{layer}_ffn_b2"] = (
                drawn(INNER, WIDTH),
                drawn(1, WIDTH),
            )
            if stack == "decoder":
                found[f"{layer}_rnn_W"], found[f"{layer}_rnn_Wf"] = (
                    drawn(WIDTH, WIDTH),
                    drawn(WIDTH, WIDTH),
                )
                found[f"{layer}_rnn_bf"] = drawn(1, WIDTH)
                norms.append("rnn_ffn_ln")
            for norm in norms:
                found[f"{layer}_{norm}_scale"] = 1 + drawn(1, WIDTH)
                found[f"{layer}_{norm}_bias"] = drawn(1, WIDTH)
    return found


def quantised(weight: Tensor) -> Tensor:
    """A matrix as eight bits can hold it."""
    factor = 127 / float(weight.abs().max())
    return (weight * factor).round() / torch.tensor(factor, dtype=torch.float32)


def as_item(name: str, weight: Tensor) -> Item:
    """Vectors in float32; matrices in eight bits, transposed unless they are embeddings."""
    shape = tuple(weight.shape)
    if shape[0] == 1:
        return FLOAT32, shape, weight.contiguous().numpy().tobytes()
    factor = 127 / float(weight.abs().max())
    held = weight if name.endswith("Wemb") else weight.T
    integers = (held * factor).round().to(torch.int8).contiguous()
    data = integers.numpy().tobytes() + struct.pack("<f", factor)
    return INTGEMM8, shape, data + bytes(-len(data) % 256)


def written(items: Mapping[str, Item], *, version: int = 1) -> bytes:
    """A file of items."""
    names = [name.encode() + b"\0" for name in items]
    heads = [
        struct.pack("<4Q", len(name), kind, len(shape), len(data))
        for name, (kind, shape, data) in zip(names, items.values(), strict=True)
    ]
    shapes = [struct.pack(f"<{len(shape)}i", *shape) for _, shape, _ in items.values()]
    front = b"".join([struct.pack("<2Q", version, len(items)), *heads, *names, *shapes])
    padding = -(len(front) + 8) % 256
    data = b"".join(data for _, _, data in items.values())
    return front + struct.pack("<Q", padding) + bytes(padding) + data


def settings_item(settings: Mapping[str, str]) -> Item:
    """Settings as the YAML that Marian writes."""
    lines = [f"{name}: {value}" for name, value in settings.items()]
    text = "\n".join([*lines, "dim-vocabs:", "  - 48", "  - 48"]).encode() + b"\0"
    return INT8, (len(text),), text


def small_marian(
    folder: Path, *, seed: int = 0, settings: Mapping[str, str] = SETTINGS, name: str = "xxyy"
) -> dict[str, Tensor]:
    """Write a translator to a folder; its weights as eight bits hold them."""
    from sentencepiece import SentencePieceProcessor

    folder.mkdir(parents=True, exist_ok=True)
    size = len(SentencePieceProcessor(model_file=str(vocabulary(folder))))
    drawn = weights(size, seed=seed)
    items = {key: as_item(key, weight) for key, weight in drawn.items()}
    one = struct.pack("<f", 1.0) + bytes(252)
    items["encoder_l1_self_Wq_QuantMultA"] = FLOAT32, (1, 1), one
    items["special:model.yml"] = settings_item(settings)
    (folder / f"model.{name}.intgemm.alphas.bin").write_bytes(written(items))
    (folder / f"lex.50.50.{name}.s2t.bin").write_bytes(b"shortlist")
    return {key: w if w.shape[0] == 1 else quantised(w) for key, w in drawn.items()}
