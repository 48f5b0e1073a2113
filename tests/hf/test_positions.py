"""Where queries stand among the keys of a host, in cached decoding above all."""

import pytest
import torch
import transformers as hf
from transformers.models.llama.modeling_llama import LlamaAttention

from headwise.hf import adopt, check_parity, release
from headwise.ops import gaussian_attention, topk_attention, uniform_attention
from headwise.recording import Profile, Reading
from headwise.sites import find_sites, masked, observe, replace
from tests.hf.families import BACKENDS, batch_of, build, outputs

both_backends = pytest.mark.parametrize("backend", BACKENDS)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "OPT"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@both_backends
def test_the_query_of_a_cached_step_stands_at_its_own_key(name, backend, cache):
    model = adopt(build(name, backend)).eval()
    ids = batch_of(name)["input_ids"]
    seen: list[tuple[int, int]] = []

    def note(site, attended):
        own = attended.mass(offset=0)
        position = attended.scores.query_position()[:, 0]
        weights = attended.weights[..., torch.arange(len(position)), position]
        torch.testing.assert_close(own, weights)
        seen.append((attended.scores.shape[2], int(position[-1])))

    with observe(model, note, where="decoder.0.self"), torch.no_grad():
        options = {"cache_implementation": "static"} if cache == "static" else {}
        model.generate(ids, max_new_tokens=4, do_sample=False, **options)
    length = ids.shape[1]
    assert seen == [(length, length - 1), (1, length), (1, length + 1), (1, length + 2)]


def test_no_head_of_a_generating_decoder_looks_ahead():
    model, ids = adopt(build("GPT-2")).eval(), batch_of("GPT-2")["input_ids"]
    profile = Profile(reading=Reading(range(len(ids))))
    with observe(model, profile), torch.no_grad():
        model.generate(ids, max_new_tokens=4, do_sample=False)
    offsets = [offset for site in profile.drain()["offset"].values() for offset in site]
    assert max(offsets) <= 0


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "BART"])
@pytest.mark.parametrize("op", [uniform_attention, gaussian_attention])
@both_backends
def test_ops_without_scores_can_replace_padded_hosts(name, backend, op):
    model = adopt(build(name, backend)).eval()
    where = "*" if op is uniform_attention else "*.self"
    with replace(model, op, where=where), torch.no_grad():
        assert model(**batch_of(name, padding="right"))[0].isfinite().all()


@both_backends
def test_a_gaussian_generates(backend):
    model = adopt(build("Llama", backend)).eval()
    with replace(model, gaussian_attention), torch.no_grad():
        made = model.generate(batch_of("Llama")["input_ids"], max_new_tokens=3, do_sample=False)
    assert made.shape[1] == batch_of("Llama")["input_ids"].shape[1] + 3


def test_a_replaced_eager_host_builds_weights_only_when_asked():
    model, batch = adopt(build("GPT-2", "eager")).eval(), batch_of("GPT-2")
    built: list[bool] = []

    def attend(*arguments, **options):
        attended = topk_attention(*arguments, **options)
        built.append("weights" in vars(attended))
        kept.append(attended)
        return attended

    kept: list = []
    with replace(model, attend), torch.no_grad():
        model(**batch)
        assert not any("weights" in vars(attended) for attended in kept)
        asked = model(**batch, output_attentions=True)
    assert len(asked.attentions) == 2
    assert asked.attentions[0].shape[-1] == batch["input_ids"].shape[1]


class Derived(LlamaAttention):
    """An attention class of a user's own, with the forward of its parent."""


class Calling(LlamaAttention):
    """One that calls its parent's forward."""

    def forward(self, *arguments, **options):
        return super().forward(*arguments, **options)


@pytest.mark.parametrize("kind", [Derived, Calling])
def test_a_derived_attention_class_gets_a_site(kind):
    model, batch = build("Llama"), batch_of("Llama")
    model.model.layers[1].self_attn.__class__ = kind
    parity = check_parity(model, batch)
    assert parity and parity.calls_seen == 2


def test_a_mixture_of_experts_can_be_observed():
    config = hf.MixtralConfig(
        vocab_size=60, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=2,
    )  # fmt: skip
    assert check_parity(
        hf.MixtralForCausalLM(config).eval(), {"input_ids": torch.ones(1, 5).long()}
    )


def test_a_model_that_obeys_only_in_part_is_refused():
    config = hf.LongT5Config(vocab_size=60, d_model=32, d_kv=8, num_layers=1, num_heads=4, d_ff=32)
    with pytest.raises(ValueError, match=r"LongT5LocalAttention of .* outside transformers'"):
        adopt(hf.LongT5ForConditionalGeneration(config))


def test_wrappers_in_wrappers_are_seen_through():
    model = build("BERT")
    compiled = torch.compile(torch.nn.DataParallel(model), backend="eager")
    adopt(compiled)
    assert len(find_sites(model)) == 2


def test_release_refuses_while_a_head_is_masked():
    model = adopt(build("BERT"))
    change = masked(model, {"encoder.0.self": [0]})
    with pytest.raises(ValueError, match=r"encoder\.0\.self of .* undo that before release"):
        release(model)
    outputs(model, batch_of("BERT"))
    change.undo()
    release(model)


def test_parity_takes_equal_infinities_for_equal():
    model = build("Llama").eval()
    torch.nn.init.constant_(model.lm_head.weight, float("inf"))
    parity = check_parity(model, batch_of("Llama"))
    assert parity.equal and parity.largest_difference == 0
