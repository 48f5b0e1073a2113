"""Adopting hosts, letting them go, and refusing those that cannot be reached."""

import copy
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import AttentionInterface

from headwise.hf import adopt, check_parity, release
from headwise.sites import find_sites, masked, observe
from tests.hf.families import BACKENDS, SIZES, Watch, batch_of, build, outputs

both_backends = pytest.mark.parametrize("backend", BACKENDS)


def test_adopting_returns_the_model_and_twice_is_once():
    model = build("BERT")
    assert adopt(model) is model
    sites = find_sites(model)
    assert adopt(model) is model
    assert all(a is b for a, b in zip(sites, find_sites(model), strict=True))


@pytest.mark.parametrize("name", ["BERT", "T5", "BART"])
@both_backends
def test_release_gives_back_the_backend_and_takes_the_sites(name, backend):
    model, batch = build(name, backend), batch_of(name)
    wanted = outputs(model, batch)
    release(adopt(model))
    assert backends(model) == {backend}
    assert not any("site" in module.__dict__ for module in model.modules())
    assert torch.equal(outputs(model, batch), wanted)
    with pytest.raises(ValueError, match=r"no attention sites.*adopt"):
        find_sites(model)
    with pytest.raises(ValueError, match="was not adopted"):
        release(model)


@pytest.mark.parametrize("name", ["Deberta", "XLNet"])
def test_a_host_outside_the_attention_interface_is_told_so(name):
    sizes = {"d_model": 32, "n_layer": 2, "n_head": 4} if name == "XLNet" else SIZES
    host = getattr(hf, f"{name}Model")(getattr(hf, f"{name}Config")(**sizes))
    before = backends(host)
    with pytest.raises(ValueError, match=f"{name}Model does not route its attention"):
        adopt(host)
    assert backends(host) == before


def test_what_is_no_hugging_face_model_is_refused():
    for act in (adopt, release, lambda model: check_parity(model, {})):
        with pytest.raises(ValueError, match=r"Hugging Face model .* wanted, got Linear"):
            act(nn.Linear(2, 2))


def test_eager_attention_under_another_name_is_adopted():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    model = hf.TimesFmModel(hf.TimesFmConfig(**sizes, num_attention_heads=2))
    model.config._attn_implementation_internal = "eager"
    assert [site.name for site in find_sites(adopt(model))] == ["decoder.0.self"]


def test_attention_computed_beside_the_interface_is_refused():
    for backend in BACKENDS:  # which may be changed later
        with pytest.raises(ValueError, match="reorder_and_upcast_attn"):
            adopt(build("GPT-2", backend, reorder_and_upcast_attn=True))


def test_another_tool_in_our_place_is_noticed(monkeypatch):
    own = AttentionInterface.get_interface.headwise_wraps
    monkeypatch.setattr(AttentionInterface, "get_interface", lambda *given: own(*given))
    with pytest.raises(ValueError, match="Another tool has replaced"):
        adopt(build("BERT"))
    monkeypatch.setattr(AttentionInterface, "get_interface", own)
    watch = Watch()
    with observe(adopt(build("BERT")), watch) as _, pytest.MonkeyPatch.context():
        pass
    assert hasattr(AttentionInterface.get_interface, "headwise_wraps")


@both_backends
def test_a_saved_adopted_model_is_a_plain_model(tmp_path, backend):
    model, batch = adopt(build("BERT", backend)), batch_of("BERT")
    model.save_pretrained(tmp_path)
    assert "headwise" not in (tmp_path / "config.json").read_text()
    again = hf.BertForMaskedLM.from_pretrained(tmp_path, attn_implementation=backend)
    assert backends(again) == {backend}
    assert torch.equal(outputs(again, batch), outputs(model, batch))
    assert check_parity(again, batch)


def test_a_copy_of_an_adopted_model_has_sites_of_its_own():
    model, batch = adopt(build("T5")), batch_of("T5")
    wanted, watch = outputs(model, batch), Watch()
    twin = copy.deepcopy(model)
    assert not set(map(id, find_sites(model))) & set(map(id, find_sites(twin)))
    with masked(twin, {"encoder.0.self": [0]}), observe(twin, watch):
        assert torch.equal(outputs(model, batch), wanted)
        assert not watch.seen
        assert not torch.equal(outputs(twin, batch), wanted)
    release(twin)
    assert find_sites(model) and torch.equal(outputs(twin, batch), wanted)


def test_models_that_share_a_configuration_are_adopted_apart():
    config = hf.BertConfig(**SIZES)
    first, second = (hf.BertForMaskedLM(config).eval() for _ in range(2))
    batch, watch = batch_of("BERT"), Watch()
    wanted = outputs(second, batch)
    with masked(adopt(first), {"encoder.0.self": [0]}), observe(first, watch):
        assert torch.equal(outputs(second, batch), wanted)
        assert not watch.seen
        outputs(first, batch)
    assert watch.seen and "site" not in str(config)
    assert find_sites(adopt(second))


def test_a_model_switched_to_another_backend_keeps_its_sites_and_what_is_masked():
    model, batch, watch = adopt(build("BERT")), batch_of("BERT"), Watch()
    plain = outputs(model, batch)
    with masked(model, {"encoder.0.self": [0]}), observe(model, watch):
        without = outputs(model, batch)
        model.set_attn_implementation("eager")
        torch.testing.assert_close(outputs(model, batch), without)
    assert not torch.allclose(plain, without)
    assert len(watch.seen) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_compiled_and_parallel_wrappers_are_looked_through():
    for wrapped in (torch.compile(build("BERT")), nn.DataParallel(build("BERT"))):
        assert adopt(wrapped) is wrapped
        assert len(find_sites(wrapped)) == 2
        release(wrapped)


class SentenceTransformerModule(nn.Module):
    """The first module of a Sentence Transformers model, in small."""

    def __init__(self, auto_model: nn.Module):
        super().__init__()
        self.auto_model = auto_model

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Put the embedding of each token into the features."""
        states = self.auto_model(**features).last_hidden_state
        return {**features, "token_embeddings": states}


class MeanPooling(nn.Module):
    """The second one."""

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        """Average the embeddings of tokens."""
        return features["token_embeddings"].mean(dim=1)


class PeftModel(nn.Module):
    """PEFT's wrapper, in small: the model is two levels down."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.model = model

    def get_base_model(self) -> nn.Module:
        """Return the model inside."""
        return self.base_model.model

    def forward(self, **batch: Any) -> Any:
        """Call the model inside."""
        return self.base_model.model(**batch)


def sentence_transformer(host: nn.Module) -> nn.Module:
    return nn.Sequential(SentenceTransformerModule(host), MeanPooling())


WRAPPERS = {
    "Sentence Transformers": sentence_transformer,
    "PEFT": PeftModel,
    "both": lambda host: sentence_transformer(PeftModel(host)),
}


@pytest.mark.parametrize("host", ["BERT", "MPNet", "DeBERTa-v3"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_of_other_libraries_are_looked_through(host, wrapper):
    model, batch = WRAPPERS[wrapper](build(host, "eager").base_model), batch_of(host)
    wanted, watch = embeddings(model, batch), Watch()
    assert adopt(model) is model
    assert [site.name for site in find_sites(model)] == ["encoder.0.self", "encoder.1.self"]
    assert torch.equal(embeddings(model, batch), wanted)
    with masked(model, {"encoder.0.self": [1]}), observe(model, watch):
        assert not torch.allclose(embeddings(model, batch), wanted, atol=1e-4)
    assert len(watch.seen) == 2
    release(model)
    assert torch.equal(embeddings(model, batch), wanted)
    assert not any("site" in module.__dict__ for module in model.modules())


@torch.no_grad()
def embeddings(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """What a wrapped model makes of a batch; only Sentence Transformers takes it as one dict."""
    if isinstance(model, nn.Sequential):
        return model(batch)
    return model(**batch).last_hidden_state


def backends(model: nn.Module) -> set[str | None]:
    """The attention implementations that the parts of a model name."""
    held = [getattr(module, "config", None) for module in model.modules()]
    return {config._attn_implementation for config in held if config is not None}


def test_hosts_that_take_functions_past_the_interface_are_refused():
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import DiTAttention
    from transformers.models.sam2.configuration_sam2 import Sam2MaskDecoderConfig
    from transformers.models.sam2.modeling_sam2 import Sam2Attention, Sam2PreTrainedModel

    class Host(Sam2PreTrainedModel):
        def __init__(self, attention: nn.Module):
            super().__init__(Sam2MaskDecoderConfig())
            self.attention = attention

    model = Host(Sam2Attention(Sam2MaskDecoderConfig()))
    assert find_sites(adopt(model))
    release(model)
    model.attention.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match="past the attention interface when it attends"):
        adopt(model)
    omni = DiTAttention(hf.Qwen2_5OmniDiTConfig(num_attention_heads=2, head_dim=8, hidden_size=16))
    model.attention.config._attn_implementation_internal = "sdpa"
    model.other = omni
    with pytest.raises(ValueError, match=r"DiTAttention of Host compute attention outside"):
        adopt(model)
