"""export: graphs with free batch and length that give what the model gives."""

import importlib.util
import logging

import pytest
import torch
import transformers as hf

from headwise.hf import adopt
from headwise.pruning import exporting
from headwise.pruning.cutting import prune
from headwise.pruning.exporting import export
from headwise.pruning.saving import load, save
from tests.hf.families import SIZES, batch_of, build, outputs, randomised
from tests.pruning.test_matrix import NO_ONNX
from tests.pruning.test_saving import small

needs_onnx = pytest.mark.skipif(
    bool(NO_ONNX), reason=f"{NO_ONNX} is not installed; see headwise[export]"
)


def paired(batch):
    """The same batch, of which the latter tokens are those of a second text."""
    return {**batch, "token_type_ids": (torch.arange(9) >= 4).long().expand(3, 9).contiguous()}


def pair_classifier(folder):
    """A pruned BERT with two classes, saved."""
    torch.manual_seed(0)
    model = randomised(hf.BertForSequenceClassification(hf.BertConfig(**SIZES)))
    save(prune(adopt(model.eval()), {"encoder.0.self": [0, 2]}), folder)
    return load(folder)


def test_an_exported_graph_takes_other_batches_and_lengths(tmp_path):
    save(small(), tmp_path / "small")
    made = export(tmp_path / "small", "torch")
    assert made.path == tmp_path / "small" / "model.pt2" and made.largest_difference == 0
    assert made.inputs == ("input_ids", "attention_mask", "token_type_ids")
    batch = paired(batch_of("BERT", padding="right"))
    graph = torch.export.load(made.path).module()
    got = graph(*(batch[name] for name in made.inputs))
    torch.testing.assert_close(got, outputs(load(tmp_path / "small"), batch))
    save(small(), tmp_path / "small")  # what was exported of the old weights goes with them
    assert not made.path.exists()


@pytest.fixture
def heard():
    """What torch logs when it looks for operators."""
    logger, handler, texts = logging.getLogger(exporting.REGISTRATION), logging.Handler(), []
    handler.emit = lambda record: texts.append(record.getMessage())
    logger.addHandler(handler)
    yield texts
    logger.removeHandler(handler)


def test_only_the_lack_of_torchvision_is_not_heard_of(heard):
    logger = logging.getLogger(exporting.REGISTRATION)
    with exporting._quietly():
        logger.warning("torchvision is not installed. Skipping %s", "torchvision::nms")
        logger.warning("another trouble")
    logger.warning("torchvision is not installed, and export is over")
    assert heard == ["another trouble", "torchvision is not installed, and export is over"]


@needs_onnx
def test_onnxruntime_computes_what_the_model_computes(tmp_path, heard):
    import onnxruntime

    save(small("ViT"), tmp_path / "small")
    made = export(tmp_path / "small", "onnx")
    assert heard == []
    session = onnxruntime.InferenceSession(made.path)
    images = batch_of("ViT")["pixel_values"]
    (got,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    wanted = outputs(load(tmp_path / "small"), batch_of("ViT"))
    torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=1e-4, atol=1e-4)


@needs_onnx
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_are_exported_in_full(dtype, tmp_path):
    save(small("ViT").to(dtype), tmp_path / "small")
    assert export(tmp_path / "small", "onnx").largest_difference < 1e-4
    assert next(load(tmp_path / "small").parameters()).dtype == dtype


@needs_onnx
def test_onnxruntime_tells_the_two_texts_of_a_pair_apart(tmp_path):
    import onnxruntime

    model = pair_classifier(tmp_path / "small")
    made = export(tmp_path / "small", "onnx")
    session = onnxruntime.InferenceSession(made.path)
    one = {**batch_of("BERT", padding="right"), "token_type_ids": torch.zeros(3, 9).long()}
    for batch in (one, paired(one)):
        (got,) = session.run(None, {name: value.numpy() for name, value in batch.items()})
        torch.testing.assert_close(torch.from_numpy(got), outputs(model, batch))
    assert not torch.allclose(outputs(model, one), outputs(model, paired(one)), atol=0.01)


@pytest.mark.parametrize("name", ["BERT", "ELECTRA", "ALBERT"])
def test_a_graph_without_segments_is_found_out(name, tmp_path, monkeypatch):
    save(small(name), tmp_path / "small")
    write = exporting._write_torch

    def deaf(program, path):
        run = write(program, path)
        return lambda ids, mask, segments: run(ids, mask, torch.zeros_like(segments))

    monkeypatch.setattr(exporting, "_write_torch", deaf)
    with pytest.raises(ValueError, match="differs from the model"):
        export(tmp_path / "small", "torch")


def test_a_model_with_one_segment_is_not_asked_for_it(tmp_path):
    model = adopt(build("RoBERTa", type_vocab_size=1))
    save(prune(model, {"encoder.0.self": [0]}), tmp_path / "small")
    assert export(tmp_path / "small", "torch").inputs == ("input_ids", "attention_mask")


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    save(small("ViT"), tmp_path / "small")
    monkeypatch.setattr(hf.ViTForImageClassification, "main_input_name", "sound")
    with pytest.raises(ValueError, match="ViTForImageClassification cannot be exported; Hugging"):
        export(tmp_path / "small", "torch")
    with pytest.raises(ValueError, match="form must be 'onnx' or 'torch', got 'tflite'"):
        export(tmp_path / "small", "tflite")


def test_a_graph_that_differs_is_not_written(tmp_path, monkeypatch):
    save(small("ViT"), tmp_path / "small")
    monkeypatch.setattr(exporting, "_write_torch", lambda program, path: lambda x: x.sum() + 9)
    with pytest.raises(ValueError, match=r"differs from the model by .*; nothing was written"):
        export(tmp_path / "small", "torch")
    assert not (tmp_path / "small" / "model.pt2").exists()


def test_without_onnx_it_says_what_to_install(tmp_path, monkeypatch):
    model = adopt(build("BERT"))
    save(prune(model, {"encoder.0.self": [0]}), tmp_path / "small")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs onnx, onnxscript, onnxruntime; run pip install"):
        export(tmp_path / "small", "onnx")
