"""output_projection: the layer behind each site, in every family and in Headwise's own models."""

import pytest
import torch

from headwise.hf import adopt
from headwise.hf.projections import output_projection
from headwise.sites import find_sites, observe
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig
from headwise_papers.models.transformer import Transformer, TransformerConfig
from tests.hf.families import BACKENDS, FAMILIES, batch_of, build


@torch.no_grad()
def check_every_site(model, forward):
    """What heads said, through their parts of the projection, is what the layer gave."""
    said, given = {}, {}
    handles = [
        output_projection(model, site).module.register_forward_hook(
            lambda _module, _inputs, output, name=site.name: given.setdefault(name, output)
        )
        for site in find_sites(model)
    ]
    with observe(model, lambda site, attended: said.setdefault(site.name, attended.out)):
        forward()
    for handle in handles:
        handle.remove()
    for site in find_sites(model):
        projection = output_projection(model, site.name)
        assert model.get_submodule(projection.path) is projection.module
        written = torch.einsum("bhqe,hme->bqm", said[site.name], projection.by_head)
        if projection.bias is not None:
            written = written + projection.bias
        torch.testing.assert_close(written, given[site.name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_s_projection_maps_what_heads_say_to_what_the_layer_gives(name, backend):
    model = adopt(build(name, backend))
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("bias"):
                parameter.normal_()
    check_every_site(model, lambda: model(**batch_of(name)))


def test_our_own_projection_does_too():
    model = Transformer(TransformerConfig(9, 9, width=8, heads=2, feed_forward=8)).eval()
    tokens, lengths = torch.randint(9, (2, 4)), torch.tensor([4, 3])
    check_every_site(model, lambda: model(tokens, lengths, tokens))


def test_writing_into_the_weight_changes_the_model():
    for name in ("BERT", "GPT-2"):
        model = adopt(build(name))
        projection = output_projection(model, find_sites(model)[0])
        with torch.no_grad():
            projection.by_head[1].zero_()
        assert projection.weight[:, 8:16].eq(0).all()
        assert projection.module.weight.eq(0).sum() == 8 * 32


def test_a_site_without_one_is_refused():
    model = RnnClassifier(RnnClassifierConfig(vocabulary=9))
    with pytest.raises(ValueError, match=r"No output projection of encoder\.0\.pool is known"):
        output_projection(model, "encoder.0.pool")


def test_an_unknown_site_is_refused():
    with pytest.raises(ValueError, match="chooses none of the model's sites"):
        output_projection(adopt(build("BERT")), "encoder.9.self")
