"""Masks of adopted hosts: what is left out of graphs never changes what they compute."""

import pytest
import torch
import transformers as hf
from torch import nn

from headwise.hf import adopt
from headwise.ops.scores import Scores
from headwise.sites import Site, tapped
from tests.hf.families import BACKENDS, batch_of, build


@pytest.fixture
def windowed() -> nn.Module:
    """A host one of whose layers sees eight tokens around each."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 16}
    config = hf.ModernBertConfig(
        vocab_size=50, num_hidden_layers=2, local_attention=8, pad_token_id=0,
        layer_types=["full_attention", "sliding_attention"], **sizes,
    )  # fmt: skip
    return adopt(hf.ModernBertModel(config)).eval().requires_grad_(False)


SHORT, LONG = torch.arange(1, 4)[None], torch.arange(1, 21)[None]


@pytest.mark.filterwarnings("ignore")
def test_a_traced_host_serves_longer_texts_than_it_was_traced_with(windowed, unchecked):
    class Told(nn.Module):
        def forward(self, ids):
            return windowed(input_ids=ids).last_hidden_state

    traced = torch.jit.trace(Told(), (SHORT,), check_trace=False)
    torch.testing.assert_close(traced(LONG), windowed(input_ids=LONG).last_hidden_state)


@pytest.mark.filterwarnings("ignore")
def test_an_exported_host_does_too(windowed, unchecked):
    length = torch.export.Dim("length", min=2, max=40)
    given = {"input_ids": SHORT}
    program = torch.export.export(
        windowed, (), given, dynamic_shapes={"input_ids": {1: length}}, strict=False
    )
    got = program.module()(input_ids=LONG).last_hidden_state
    torch.testing.assert_close(got, windowed(input_ids=LONG).last_hidden_state)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["BERT", "BART", "Llama", "ModernBERT"])
def test_padding_is_stored_once_for_all_queries_that_see_the_same(name, backend):
    """Kernels read such a mask faster; hosts themselves get theirs whole."""
    model, rows = adopt(build(name, backend)), dict[str, int]()

    def note(site: Site, scores: Scores) -> None:
        if scores.mask is None:  # nothing is padded, and a flag says what is later
            return
        seen = scores.mask.expand(scores.shape)
        assert (scores.mask.shape[2] == 1) == bool((seen == seen[:, :, :1]).all())
        rows[site.name] = scores.mask.shape[2]

    with tapped(model, note):
        model(**batch_of(name, padding="right"))
    assert rows
    if name in ("BERT", "BART"):
        once = [site for site, n in rows.items() if site.endswith("cross") or "encoder" in site]
        assert all(rows[site] == 1 for site in once)
