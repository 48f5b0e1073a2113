"""The value path: logits that each position's value brings, exact where the rest is linear."""

import pytest
import torch
import transformers as hf
from torch import nn

from headwise import adopt, masked, observe, release, topk_attention
from headwise.ops.softmax import softmax_attention
from headwise.sites import find_sites, replace
from headwise_papers.measures.relevance import highly_ranked, mode_match, output_relevance
from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule
from headwise_papers.measures.value_path import _Seen, value_path
from headwise_papers.models.attention import MultiHeadAttention
from headwise_papers.models.classifier import ClassifierConfig, TransformerClassifier
from headwise_papers.models.transformer import Transformer, TransformerConfig
from tests.hf.families import SIZES, padding_mask, randomised

IDS, LENGTHS = torch.randint(5, 90, (3, 9)), torch.tensor([9, 6, 1])
TARGET = torch.tensor([2, 0, 1])


class LinearAfter(nn.Module):
    """Embedding, attention, pooling and an output layer: linear after attention."""

    def __init__(self, *, pooling, heads=2, width=8, classes=3):
        super().__init__()
        self.pooling = pooling
        self.embed = nn.Embedding(90, width)
        self.attention = MultiHeadAttention(width, heads=heads, name="encoder.0.self")
        self.output = nn.Linear(width, classes)

    def forward(self, ids, lengths):
        x = self.embed(ids)
        y = self.attention(x, self.attention.keys_values(x), lengths=lengths)
        if self.pooling == "first":
            return self.output(y[:, 0])
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        return self.output((y * real[..., None]).sum(1) / lengths[:, None])


def _adopted(kind, *, backend="sdpa"):
    small = {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    config = {
        "BERT": lambda **x: hf.BertConfig(**SIZES, **x),
        "RoBERTa": lambda **x: hf.RobertaConfig(**SIZES, **x),
        "DistilBERT": lambda **x: hf.DistilBertConfig(**small, **x),
    }[kind](num_labels=3, pad_token_id=0, attn_implementation=backend)
    model = hf.AutoModelForSequenceClassification.from_config(config)
    return adopt(randomised(model).double())


def _batch(padding="right"):
    return {"input_ids": IDS, "attention_mask": padding_mask(9, padding)}


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_the_weighted_theta_of_all_heads_is_the_logits_up_to_a_constant(pooling):
    model = LinearAfter(pooling=pooling).double()
    path = value_path(model, (IDS, LENGTHS), TARGET)
    assert path.theta.shape == (3, 2, 9, 3) and path.lengths.tolist() == LENGTHS.tolist()
    with masked(model, {"encoder.0.self": [0, 1]}):
        rest = model(IDS, LENGTHS)
    through_heads = torch.einsum("bhk,bhko->bo", path.alpha, path.theta)
    torch.testing.assert_close(rest + through_heads, model(IDS, LENGTHS))


def test_a_replaced_site_keeps_its_cap_and_sink():
    """A site that is called with cap= and sink= hands them on; they take weight from the keys."""
    q, sink = torch.randn(1, 2, 5, 4), torch.tensor([0.5, -0.5])
    seen = _Seen(softmax_attention)
    attended = seen(q, q, q, cap=2.0, sink=sink)
    wanted = softmax_attention(q, q, q, cap=2.0, sink=sink)
    torch.testing.assert_close(attended.out, wanted.out)
    torch.testing.assert_close(seen.calls[0].weights, wanted.weights)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_planted_head_has_its_mode_at_the_token_that_decides(pooling):
    model = LinearAfter(pooling=pooling, classes=2)
    marked, planted = 7, torch.tensor([[20, 21, 7, 22, 23], [7, 24, 25, 26, 0]])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.05)
        model.embed.weight[:, 0] = 0
        model.embed.weight[marked, 0] = 5.0
        model.attention.value.weight[4:] *= 0  # the second head carries nothing but the mark
        model.attention.value.weight[4, 0] = 1.0
        model.attention.key.weight[4, 0] = 4.0
        model.attention.query.bias[4] = 4.0
        model.attention.out.weight[1, 4] = 1.0
        model.output.weight[1, 1] = 3.0
    batch, lengths = (planted, torch.tensor([5, 4])), torch.tensor([5, 4])
    path = value_path(model, batch, torch.tensor([1, 1]))
    looked = path.looked()
    assert path.right.all() and looked.right.shape == (2, 2)
    assert looked.beta[1].argmax(-1).tolist() == [2, 0]
    assert mode_match(looked.alpha, looked.beta, looked.lengths)[1].all()
    assert highly_ranked(looked.alpha, looked.beta, looked.lengths)[1].all()
    against = value_path(model, batch, torch.tensor([0, 0]))
    torch.testing.assert_close(against.beta[:, 1], -path.beta[:, 1])  # two classes: the reverse
    assert torch.equal(path.lengths, lengths)


def _moved(model, call, site_name, *, head, key, step):
    """Logits when every query's output of one head gets `step` times the value at one key more."""

    def attend(q, k, v, **options):
        attended = softmax_attention(q, k, v, **options)
        added = torch.zeros_like(attended.out)
        added[:, head] = step * v[:, head, key, None]
        attended.out = attended.out + added
        return attended

    with torch.no_grad(), replace(model, attend, where=site_name):
        return call()


@pytest.mark.parametrize("kind", ["BERT", "RoBERTa", "DistilBERT"])
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_theta_is_how_logits_move_with_a_value_in_adopted_classifiers(kind, backend):
    model = _adopted(kind, backend=backend).eval()
    before = model(**_batch()).logits
    path = value_path(model, _batch(), TARGET)
    assert path.alpha.shape == path.beta.shape == (3, 4, 9)
    assert path.lengths.tolist() == [9, 6, 1]
    for head, key in ((0, 0), (3, 5)):
        up, down = (
            _moved(model, lambda: model(**_batch()).logits, "encoder.1.self",
                   head=head, key=key, step=step)
            for step in (1e-5, -1e-5)
        )  # fmt: skip
        torch.testing.assert_close(
            path.theta[:, head, key], (up - down) / 2e-5, rtol=1e-4, atol=1e-6
        )
    assert path.theta[:, :, 0].abs().max() > 1e-3
    assert torch.equal(model(**_batch()).logits, before)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_theta_is_how_logits_move_with_a_value_in_our_classifier(pooling):
    shape = ClassifierConfig(vocabulary=90, classes=3, width=16, pooling=pooling)
    model = TransformerClassifier(shape).double().eval()
    path = value_path(model, (IDS, LENGTHS), TARGET)
    up, down = (
        _moved(model, lambda: model(IDS, LENGTHS), "encoder.1.self", head=2, key=0, step=step)
        for step in (1e-5, -1e-5)
    )
    torch.testing.assert_close(path.theta[:, 2, 0], (up - down) / 2e-5, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["BERT", "DistilBERT"])
def test_classifiers_of_the_first_token_read_the_first_query_alone(kind):
    model = _adopted(kind)
    rows = []
    with observe(model.eval(), lambda site, attended: rows.append(attended.weights[:, :, 0])):
        model(**_batch())
    path = value_path(model, _batch(), TARGET)
    torch.testing.assert_close(path.alpha, rows[-1])
    at_first = value_path(model, _batch(), TARGET, query=0)
    for one, other in zip(path, at_first, strict=True):
        torch.testing.assert_close(one, other)


def test_a_mean_over_positions_reads_all_real_queries():
    model, rows = LinearAfter(pooling="mean"), []
    with observe(model, lambda site, attended: rows.append(attended.weights.detach())):
        path = value_path(model, (IDS, LENGTHS), TARGET)
    for item, length in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(path.alpha[item], rows[0][item, :, :length].mean(1))
    alone = value_path(model, (IDS, LENGTHS), TARGET, query=torch.tensor([3, 5, 0]))
    torch.testing.assert_close(alone.alpha[1], rows[0][1, :, 5])
    torch.testing.assert_close(alone.theta[1], path.theta[1] / 6)  # one of six queries


def test_relevance_is_of_the_model_as_it_attends_now():
    model = _adopted("BERT")
    with replace(model, topk_attention):
        path = value_path(model, _batch(), TARGET)
        rows = []
        with observe(model.eval(), lambda site, attended: rows.append(attended.weights[:, :, 0])):
            model(**_batch())
    torch.testing.assert_close(path.alpha, rows[-1])


def test_another_site_may_be_chosen():
    model = _adopted("BERT")
    first = value_path(model, _batch(), TARGET, where="encoder.0.self")
    assert not torch.allclose(first.alpha, value_path(model, _batch(), TARGET).alpha)
    with pytest.raises(ValueError, match=r"One site was wanted.*encoder.0.self, encoder.1.self"):
        value_path(model, _batch(), TARGET, where="encoder.*")


def test_the_model_is_left_as_it_was():
    model = _adopted("BERT").train()
    with torch.no_grad():
        value_path(model, _batch(), TARGET)
    assert model.training and all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(site.changes for site in find_sites(model))
    with pytest.raises(ValueError, match="must have shape"):
        value_path(model, _batch(), TARGET[:, None])
    assert model.training and not any(site.changes for site in find_sites(model))
    release(model)


def test_an_unembedding_replaces_differentiation_where_it_is_exact():
    model = LinearAfter(pooling="first")
    weight_MHE = model.attention.out.weight.unflatten(1, (2, 4))

    def unembed(values):
        return torch.einsum("bhke,mhe,om->bhko", values, weight_MHE, model.output.weight)

    path = value_path(model, (IDS, LENGTHS), TARGET)
    given = value_path(model, (IDS, LENGTHS), TARGET, query=0, unembed=unembed)
    for one, other in zip(path, given, strict=True):
        torch.testing.assert_close(one, other)


def test_a_translator_has_a_target_at_each_query():
    shape = TransformerConfig(source_vocab=90, target_vocab=40, width=16, heads=2)
    model = Transformer(shape).eval()
    words = torch.randint(40, (3, 5))
    cross = model.decoder[-1].cross
    weight_MHE = cross.out.weight.unflatten(1, (2, 8))

    def unembed(values):
        return model.read_out(torch.einsum("bhke,mhe->bhkm", values, weight_MHE))

    path = value_path(model, (IDS, LENGTHS, words), words, unembed=unembed)
    assert path.alpha.shape == path.beta.shape == (3, 2, 5, 9)
    assert path.lengths.tolist() == [[length] * 5 for length in LENGTHS.tolist()]
    for t in range(5):
        target = words[:, t, None].expand(3, 2)
        torch.testing.assert_close(path.beta[:, :, t], output_relevance(path.theta, target))
    looked = path.looked()
    assert looked.alpha.shape == (2, 15, 9) and looked.lengths.shape == (15,)
    torch.testing.assert_close(looked.beta[1, 6], path.beta[1, 1, 1])


def test_heads_can_be_recorded_through_training():
    model = LinearAfter(pooling="mean")
    recorder = RelevanceCurves(
        lambda model: [value_path(model, (IDS, LENGTHS), TARGET).looked()], schedule(1)
    )
    recorder(0, model)
    assert recorder.tensors()["beta_peak"].shape == (1, 2, 3)


@pytest.mark.parametrize("axis", [True, False])
def test_one_logit_is_a_yes_beside_a_no_of_zero(axis):
    model, target = LinearAfter(pooling="mean", classes=1), torch.tensor([1, 0, 1])
    logit_B1 = model(IDS, LENGTHS)
    if not axis:
        model.forward = lambda ids, lengths: LinearAfter.forward(model, ids, lengths)[:, 0]
    path = value_path(model, (IDS, LENGTHS), target)
    assert path.theta.shape == (3, 2, 9, 2) and not path.theta[..., 0].any()
    sign_B11 = (2 * target - 1)[:, None, None]
    torch.testing.assert_close(path.beta, sign_B11 * path.theta[..., 1])
    assert torch.equal(path.right, (logit_B1[:, 0] > 0) == (target == 1))
    with pytest.raises(ValueError, match="Targets must lie between 0 and 1, got 0 to 2"):
        value_path(model, (IDS, LENGTHS), TARGET)


def test_an_adopted_classifier_may_have_one_logit():
    model = hf.BertForSequenceClassification(hf.BertConfig(**SIZES, num_labels=1, pad_token_id=0))
    adopt(randomised(model))
    path = value_path(model, _batch(), torch.tensor([1, 0, 1]))
    assert path.theta[..., 1].abs().max() > 1e-3
    torch.testing.assert_close(path.beta[0], path.theta[0, ..., 1])


def test_what_cannot_be_done_is_said():
    model = _adopted("BERT")
    with pytest.raises(ValueError, match="pad at the end"):
        value_path(model, _batch("left"), TARGET)
    with pytest.raises(ValueError, match="between 0 and 8, got 9"):
        value_path(model, _batch(), TARGET, query=9)
    with pytest.raises(ValueError, match="say which query"):
        value_path(model, _batch(), TARGET, unembed=lambda values: values)
    with pytest.raises(ValueError, match="unembed must turn values"):
        value_path(model, _batch(), TARGET, query=0, unembed=lambda values: values[0])
    unread = LinearAfter(pooling="mean")
    with (
        masked(unread, {"encoder.0.self": [0, 1]}),
        pytest.raises(ValueError, match="do not depend on this site"),
    ):
        value_path(unread, (IDS, LENGTHS), TARGET)
