from pathlib import Path

import torch

from headwise_papers.core.running import reproduce
from headwise_papers.output_relevance._copying import drawn_models
from headwise_papers.output_relevance.rescue import (
    EXPECTED,
    Config,
    _arms,
    _with_heads,
    experiment,
)


def test_guidance_to_the_right_place_rescues_runs_and_top_1_does_not(tmp_path: Path) -> None:
    figures = reproduce("output_relevance/rescue", experiment.smoke, tmp_path / "run")
    assert figures["guided, alpha 10: runs that succeed"].mean == 1
    assert figures["guided, alpha 10, to one before: runs that succeed"].mean == 0
    assert figures["softmax: runs that succeed"].mean < 1
    assert figures["top-1: failing runs rescued"].mean == 0
    assert figures["4 heads succeed more often than one"].mean == 0  # of three runs: not sure
    for name in ("4 heads", "sparsemax", "entmax-1.5", "softmax, other data"):
        assert f"{name}: failing runs rescued" in figures
    assert EXPECTED[1].metric in figures
    assert (tmp_path / "run" / "pictures" / "rescue.png").stat().st_size > 5000


def test_further_heads_leave_the_model_as_it_was() -> None:
    config = Config(types=4, hidden=6)
    models = drawn_models(config, range(2), torch.device("cpu"))
    for model, wider in zip(models, _with_heads(models, 3, config), strict=True):
        own = wider.state_dict()
        for name, value in model.state_dict().items():
            same = own[name][:1] if name.startswith("heads.") else own[name]
            assert torch.equal(same, value)
        weight_HMD = own["heads.score_weight"]
        assert len(weight_HMD) == 3
        assert not torch.equal(weight_HMD[1], weight_HMD[2])


def test_every_kind_of_attention_is_trained_once() -> None:
    names = [arm.name for arm in _arms(Config())]
    assert len(set(names)) == len(names) == 17
