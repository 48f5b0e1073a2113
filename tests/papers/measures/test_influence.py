"""token_influence: the derivative it says it is, for any model, which it leaves alone."""

import pytest
import torch
import transformers as hf
from torch import nn
from torch.nn.functional import cross_entropy

from headwise_papers.measures.influence import token_influence, total_loss
from headwise_papers.models.classifier import ClassifierConfig, TransformerClassifier
from tests.hf.families import SIZES, build

IDS, LABELS = torch.randint(5, 90, (3, 7)), torch.tensor([0, 1, 1])


class Recurrent(nn.Module):
    """Dropout, and a layer that cuDNN would run."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(90, 8)
        self.dropout = nn.Dropout(0.5)
        self.lstm = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.output = nn.Linear(12, 2)

    def forward(self, ids):
        return self.output(self.lstm(self.dropout(self.embed(ids)))[0].mean(1))


def _by_hand(model, table, ids, labels, logits):
    """-<gradient, embedding> of each token, from the gradient of the embedding table's rows.

    Tokens get rows of their own, so that the row's gradient is the token's.
    """
    ours = {name: module.training for name, module in model.named_modules()}
    model.eval()
    vectors = table.weight[ids].detach().clone()
    own = 1 + torch.arange(ids.numel()).view(ids.shape)  # 0 may be padding, without a gradient
    rows = torch.cat([vectors.new_zeros(1, vectors.shape[-1]), vectors.flatten(0, 1)])
    weight, table.weight = table.weight, nn.Parameter(rows)
    loss = cross_entropy(logits(own), labels, reduction="sum")
    (grad,) = torch.autograd.grad(loss, table.weight)
    table.weight = weight
    for name, module in model.named_modules():
        module.training = ours[name]
    return -(grad[1:].view_as(vectors) * vectors).sum(-1)


def test_influence_is_the_gradient_along_the_embedding():
    model = Recurrent()
    wanted = _by_hand(model, model.embed, IDS, LABELS, model)
    torch.testing.assert_close(token_influence(model, IDS, LABELS), wanted)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (hf.BertForSequenceClassification, hf.BertConfig),
        (hf.RobertaForSequenceClassification, hf.RobertaConfig),
    ],
)
def test_hugging_face_classifiers_work_by_name_of_their_inputs(kind, config):
    model = kind(config(**SIZES, num_labels=2, pad_token_id=0))
    inputs = {"attention_mask": torch.ones_like(IDS), "position_ids": torch.arange(7)[None] + 1}
    wanted = _by_hand(
        model,
        model.get_input_embeddings(),
        IDS,
        LABELS,
        lambda own: model(input_ids=own, **inputs).logits,
    )
    found = token_influence(model, {"input_ids": IDS, **inputs}, LABELS)
    torch.testing.assert_close(found, wanted)
    assert found.abs().max() > 1e-4


def test_a_longer_embedding_lowers_the_loss_by_the_influence():
    model = TransformerClassifier(ClassifierConfig(vocabulary=90, width=8)).double().eval()
    lengths = torch.tensor([7, 4, 7])
    influence = token_influence(model, (IDS, lengths), LABELS)
    assert not influence[1, 4:].any()  # padding is read by nobody
    for token in (0, 3):
        scale = torch.ones(1, 7, 1, dtype=torch.double)
        scale[:, token] += 1e-6
        handle = model.embed.register_forward_hook(lambda m, i, o, scale=scale: o * scale)
        longer = cross_entropy(model(IDS, lengths), LABELS, reduction="none")
        handle.remove()
        fall = cross_entropy(model(IDS, lengths), LABELS, reduction="none") - longer
        torch.testing.assert_close(influence[:, token], fall / 1e-6, rtol=1e-4, atol=1e-6)


def test_rows_do_not_disturb_one_another():
    model = Recurrent()
    together = token_influence(model, IDS, LABELS)
    for n in range(3):
        alone = token_influence(model, IDS[n : n + 1], LABELS[n : n + 1])
        torch.testing.assert_close(together[n : n + 1], alone)


def test_the_model_is_left_as_it_was():
    model = Recurrent()
    model.lstm.eval()
    model.output.weight.requires_grad_(False)
    model.embed.weight.grad = torch.ones_like(model.embed.weight)
    with torch.no_grad():
        token_influence(model, [IDS], LABELS)
    assert model.training and model.dropout.training and not model.lstm.training
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == [
        "output.weight"
    ]
    assert (model.embed.weight.grad == 1).all()
    assert model.output.bias.grad is None
    assert not model.embed._forward_hooks
    assert torch.backends.cudnn.enabled


def test_the_model_is_left_as_it_was_also_after_an_error():
    model = Recurrent()

    def fail(logits, labels):
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        token_influence(model, IDS, LABELS, loss=fail)
    assert model.training and not model.embed._forward_hooks
    assert torch.backends.cudnn.enabled


def test_frozen_models_have_influence_too():
    model = Recurrent().requires_grad_(False)
    assert token_influence(model, IDS, LABELS).abs().min() > 0


@pytest.mark.parametrize("axis", [True, False])
@pytest.mark.parametrize("kind", [torch.long, torch.float, torch.bool])
def test_one_logit_says_yes_or_no(axis, kind):
    model = Recurrent()
    two = token_influence(model, IDS, LABELS)
    assert two.abs().min() > 0

    def one(ids):
        logit = Recurrent.forward(model, ids).diff(dim=-1)
        return logit if axis else logit[:, 0]

    model.forward = one
    labels = LABELS.to(kind)
    torch.testing.assert_close(token_influence(model, IDS, labels), two)
    if axis:
        torch.testing.assert_close(token_influence(model, IDS, labels[:, None]), two)


def test_rows_without_a_label_have_no_influence():
    model, labels = Recurrent(), torch.tensor([0, -100, 1])
    whole, some = (token_influence(model, IDS, x) for x in (LABELS, labels))
    assert not some[1].any() and torch.equal(some[0], whole[0])
    model.forward = lambda ids: Recurrent.forward(model, ids).diff(dim=-1)
    torch.testing.assert_close(token_influence(model, IDS, labels), some)


@pytest.mark.parametrize(
    ("outputs", "labels", "message"),
    [
        (
            3,
            torch.tensor([0, 3, 1]),
            r"Labels must be 0 to 2, or -100 where there is none, got 3\.",
        ),
        (3, torch.tensor([0.0, 1.0, 1.0]), r"number of an output, got torch.float32\."),
        (3, torch.tensor([[0], [1], [1]]), r"must have shape \(3,\), got \(3, 1\)\."),
        (1, torch.tensor([0, 2, 1]), r"Labels must be 0 or 1, .* got 2\."),
        (1, torch.tensor([0, 0.5, 1]), r"Labels must be 0 or 1, .* got 0.5\."),
        (1, torch.tensor([0, 1]), r"must have shape \(3,\), got \(2,\)\."),
    ],
)
def test_labels_that_name_no_output_are_refused(outputs, labels, message):
    with pytest.raises(ValueError, match=message):
        total_loss(torch.zeros(3, outputs), labels)


def test_a_loss_of_ones_own_and_targets_at_each_position():
    model = build("BERT").eval()
    labels = IDS.clone()
    labels[:, 1:] = -100
    found = token_influence(model, {"input_ids": IDS}, labels)

    def first(logits, labels):
        return total_loss(logits[:, 0], labels[:, 0])

    torch.testing.assert_close(
        found, token_influence(model, {"input_ids": IDS}, labels, loss=first)
    )


@pytest.mark.parametrize("kind", ["T5", "BART"])
def test_of_two_stacks_the_sources_tokens_count(kind):
    model = build(kind)
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :3]}
    assert token_influence(model, inputs, IDS[:, :3]).shape == (3, 7)


def test_of_a_shared_embedding_the_first_use_counts():
    model = Recurrent()
    plain = token_influence(model, IDS, LABELS)
    model.forward = lambda ids: Recurrent.forward(model, ids) + 0 * model.embed(ids[:, :2]).sum()
    torch.testing.assert_close(token_influence(model, IDS, LABELS), plain)


def test_what_cannot_be_done_is_said():
    model = Recurrent()
    with pytest.raises(ValueError, match="Linear was not called by Recurrent"):
        token_influence(model, IDS, LABELS, embedding=nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"one number, got shape \(3,\); sum it"):
        token_influence(model, IDS, LABELS, loss=lambda logits, labels: logits[:, 0])
    with pytest.raises(ValueError, match="Linear has neither get_input_embeddings"):
        token_influence(nn.Linear(2, 2), IDS, LABELS)
    model.forward = lambda ids: "yes"
    with pytest.raises(ValueError, match="Recurrent gave str; logits were wanted"):
        token_influence(model, IDS, LABELS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cudnn_layers_have_influence():
    model = Recurrent()
    wanted = token_influence(model, IDS, LABELS)
    found = token_influence(model.cuda(), IDS.cuda(), LABELS.cuda())
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-5)
