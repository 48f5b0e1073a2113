import torch

from headwise_papers.output_relevance._copying import Setup
from headwise_papers.output_relevance.rescue import (
    WINS,
    Config,
    against_control,
    arms,
    with_heads,
)


def test_guidance_to_the_right_place_rescues_runs_and_top_1_does_not(smoke) -> None:
    found = smoke("rescue")
    assert found["guided, alpha 10: runs that succeed"].mean == 1
    assert found["guided, alpha 10, to one before: runs that succeed"].mean == 0
    assert found[f"guided, alpha 10: {WINS}"].values == (1, 1, 1)
    assert found["softmax: runs that succeed"].mean < 1
    assert found["top-1: failing runs rescued"].mean == 0
    for name in ("4 heads", "sparsemax", "entmax-1.5", "softmax, other data"):
        assert f"{name}: failing runs rescued" in found.results
    assert len(found["4 heads - softmax: runs that succeed"].values) == 3
    assert found.has_figures("rescue")


def test_guided_runs_are_compared_with_their_control_where_only_one_succeeds() -> None:
    good_S, control_S = torch.arange(20) < 14, torch.arange(20) < 8
    (wins,) = against_control("guided", good_S, control_S).values()
    assert wins.values == (1,) * 6 and wins.kind == "share"
    assert against_control("guided", good_S, good_S) == {}


def test_further_heads_leave_the_model_as_it_was() -> None:
    models = Setup(types=4, hidden=6).drawn(range(2), torch.device("cpu"))
    for model, wider in zip(models, with_heads(models, 3), strict=True):
        own = wider.state_dict()
        for name, value in model.state_dict().items():
            same = own[name][:1] if name.startswith("heads.") else own[name]
            assert torch.equal(same, value)
        weight_HMD = own["heads.score_weight"]
        assert len(weight_HMD) == 3
        assert not torch.equal(weight_HMD[1], weight_HMD[2])


def test_every_kind_of_attention_is_trained_once() -> None:
    names = [arm.name for arm in arms(Config())]
    assert len(set(names)) == len(names) == 17
