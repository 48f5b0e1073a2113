"""Output relevance of Transformers runs end to end, on our model and on an adopted one."""

from pathlib import Path

import pytest

from headwise_papers.core import find_or_train
from headwise_papers.ops.relevance import unpacked
from headwise_papers.output_relevance import transformer
from headwise_papers.output_relevance.transformer import KINDS, SMOKE, TRACE, Config, models
from tests.papers.output_relevance.conftest import missing


def test_uniform_attention_has_no_peak(data_folder: Path, smoke) -> None:
    found = smoke("transformer")
    assert not missing("transformer", found.results, "")
    for kind in KINDS:
        normal, uniform = (
            find_or_train(*job).load_tensors(TRACE)
            for fixed in (False, True)
            for job in transformer._models(SMOKE, kind, uniform=fixed)[1:]
        )
        assert normal["step"].tolist() == [0, 10, 20]
        positions = normal["lengths"].double().mean()
        highly_ranked = {
            name: unpacked(trace["alpha_top"][-1]).sum(-1).double().mean()
            for name, trace in (("normal", normal), ("uniform", uniform))
        }
        assert highly_ranked["uniform"] > 0.95 * positions > 4 * highly_ranked["normal"]
        assert not (normal["beta_peak"][0] == normal["beta_peak"][-1]).all()
        assert all(0 <= x <= 1 for x in found[f"{kind}: hr(alpha*, beta*)"].values)
    assert found.has_figures("curves")


def test_every_model_is_a_training_of_its_own() -> None:
    assert len({job.config for job in models(Config())}) == 20


def test_one_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seeds >= 2, got 1"):
        Config(seeds=1)
