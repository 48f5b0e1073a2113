"""Which family keeps its outputs when gated, pruned, saved and exported: `pytest -k matrix`."""

from functools import partial
from importlib.util import find_spec

import pytest
import torch

from headwise.hf import adopt
from headwise.pruning.cutting import prune
from headwise.pruning.exporting import export
from headwise.pruning.gates import Gates
from headwise.pruning.saving import load, save
from headwise.sites import find_sites, masked
from tests.hf.families import BACKENDS, FAMILIES, batch_of, build, outputs
from tests.pruning.shrinking import bare_keep, randomised_biases, removed, uneven_keep
from tests.support.small_transformer import SmallConfig, SmallTransformer

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
COLUMNS = ("gates", "removal", "save/load", "ONNX")
NO_ONNX = next((name for name in ("onnx", "onnxscript", "onnxruntime") if not find_spec(name)), "")
EXPORTABLE = [name for name in FAMILIES if FAMILIES[name].kind != "crossed"]
TITLE = "Same outputs as the masked model (sdpa/eager; ONNX: largest difference)"


@pytest.fixture
def tell(record_property):
    """Fill a cell of the table that stands at the end of the tests' output."""
    return lambda family, column, text: record_property("cell", [TITLE, family, column, text])


def tried(model, keep, run, folder) -> dict[str, bool]:
    """Some heads removed in every way there is, and the outputs with that compared."""
    gone = removed(model, keep)
    with masked(model, gone):
        wanted = run(model)
    with Gates(model) as gates, torch.no_grad():
        for site in find_sites(model):
            for head in gone.get(site.name, ()):
                gates.of(site).log_alpha[head] = -3.0
        by_gates = run(model.eval())
        assert {site: gates.keep()[site] for site in keep} == keep
    by_removal = run(prune(model, keep))
    save(model, folder)
    again = load(folder)
    return {
        "gates": torch.equal(by_gates, wanted),
        "removal": torch.allclose(by_removal, wanted, **CLOSE),
        "save/load": torch.allclose(run(again), by_removal, **CLOSE),
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_matrix_of_gates_removal_and_saving(name, tell, tmp_path):
    by_backend = []
    for backend in BACKENDS:
        model = adopt(randomised_biases(build(name, backend)))
        keep = {**uneven_keep(model), **bare_keep(model)}  # and one layer without heads
        run = partial(outputs, batch=batch_of(name))
        by_backend.append(tried(model, keep, run, tmp_path / backend))
    for column in COLUMNS[:3]:
        tell(name, column, "/".join("yes" if each[column] else "NO" for each in by_backend))
    assert all(all(each.values()) for each in by_backend), by_backend


@torch.no_grad()
def test_matrix_of_a_model_of_one_s_own(tell, tmp_path):
    model = randomised_biases(SmallTransformer(SmallConfig()).eval())
    inputs = model.example_inputs(2, 5, 4, padding=2)
    keep = {**uneven_keep(model), **bare_keep(model)}
    found = tried(model, keep, lambda model: model(**inputs), tmp_path / "small")
    for column, same in found.items():
        tell("of one's own", column, "yes" if same else "NO")
    assert all(found.values()), found


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_ONNX), reason=f"{NO_ONNX} is not installed; see headwise[export]")
@pytest.mark.parametrize("name", EXPORTABLE)
def test_matrix_of_exports(name, tell, tmp_path):
    gaps = []
    tell(name, COLUMNS[3], "NO")
    for choose in (uneven_keep, bare_keep):
        model = adopt(randomised_biases(build(name)))
        save(prune(model, choose(model)), tmp_path / choose.__name__)
        gaps.append(export(tmp_path / choose.__name__).largest_difference)
    tell(name, COLUMNS[3], f"{max(gaps):.0e}")
    assert max(gaps) < 1e-4
