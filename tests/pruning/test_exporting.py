"""export: graphs with free batch and length that give what the model gives."""

import importlib.util
import subprocess
import sys

import pytest
import torch

from headwise.hf import adopt
from headwise.pruning import exporting
from headwise.pruning.cutting import prune
from headwise.pruning.exporting import export
from headwise.pruning.saving import load, save
from tests.hf.families import batch_of, build, outputs
from tests.pruning.test_cutting_own import built, uneven
from tests.pruning.test_matrix import NO_ONNX
from tests.pruning.test_saving import small

needs_onnx = pytest.mark.skipif(
    bool(NO_ONNX), reason=f"{NO_ONNX} is not installed; see headwise[export]"
)


def test_an_exported_graph_takes_other_batches_and_lengths(tmp_path):
    save(small(), tmp_path / "small")
    made = export(tmp_path / "small", "torch")
    assert made.path == tmp_path / "small" / "model.pt2" and made.largest_difference == 0
    assert made.inputs == ("input_ids", "attention_mask")
    batch = batch_of("BERT", padding="right")
    graph = torch.export.load(made.path).module()
    got = graph(batch["input_ids"], batch["attention_mask"])
    torch.testing.assert_close(got, outputs(load(tmp_path / "small"), batch))
    save(small(), tmp_path / "small")  # what was exported of the old weights goes with them
    assert not made.path.exists()


@needs_onnx
def test_onnxruntime_computes_what_the_model_computes(tmp_path):
    import onnxruntime

    save(small("ViT"), tmp_path / "small")
    made = export(tmp_path / "small", "onnx")
    session = onnxruntime.InferenceSession(made.path)
    images = batch_of("ViT")["pixel_values"]
    (got,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    wanted = outputs(load(tmp_path / "small"), batch_of("ViT"))
    torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_our_own_transformer_is_exported_or_refused_with_a_reason(tmp_path):
    script = [sys.executable, "tests/pruning/exporting_own.py", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PyTorch cannot trace this Transformer: Could not guard" in done.stdout


def test_what_cannot_be_exported_is_refused(tmp_path):
    model = built("RNN")
    save(prune(model, uneven(model)), tmp_path / "small")
    with pytest.raises(ValueError, match="Seq2Seq cannot be exported; Headwise's Transformer"):
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
