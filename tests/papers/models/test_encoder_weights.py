"""Weights of Hugging Face's encoders: there and back, with the same outputs."""

import doctest

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraModel,
    GPT2Config,
    GPT2LMHeadModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)

from headwise.pruning import prune
from headwise_papers.models import (
    Encoder,
    EncoderConfig,
    MaskedLM,
    MaskedLMWithNextSentence,
    NextSentence,
    ReplacedToken,
    SequenceClassifier,
    TokenClassifier,
    encoder_weights,
)
from headwise_papers.models.encoder_weights import from_hugging_face, to_hugging_face

SIZES = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
    "initializer_range": 0.3,  # so that a wrong weight is seen
}
CONFIGS = {
    "Roberta": lambda: RobertaConfig(**SIZES, layer_norm_eps=1e-3, num_labels=3),
    "Bert": lambda: BertConfig(**SIZES, layer_norm_eps=1e-3, num_labels=3),
    "Electra": lambda: ElectraConfig(
        **SIZES, layer_norm_eps=1e-3, embedding_size=8, num_labels=3, classifier_dropout=0.2
    ),
}
MODELS = {
    RobertaModel: Encoder,
    RobertaForMaskedLM: MaskedLM,
    RobertaForSequenceClassification: SequenceClassifier,
    RobertaForTokenClassification: TokenClassifier,
    BertModel: Encoder,
    BertForMaskedLM: MaskedLM,
    BertForNextSentencePrediction: NextSentence,
    BertForPreTraining: MaskedLMWithNextSentence,
    BertForSequenceClassification: SequenceClassifier,
    BertForTokenClassification: TokenClassifier,
    ElectraModel: Encoder,
    ElectraForMaskedLM: MaskedLM,
    ElectraForPreTraining: ReplacedToken,
    ElectraForSequenceClassification: SequenceClassifier,
    ElectraForTokenClassification: TokenClassifier,
}
LENGTHS = torch.tensor([8, 5, 2])
REAL = torch.arange(8) < LENGTHS[:, None]
TYPES = (torch.arange(8) > 3).long().expand(3, 8)


def make_theirs(kind, **changes):
    torch.manual_seed(0)
    config = CONFIGS[kind.__name__.split("For")[0].removesuffix("Model")]()
    for name, value in changes.items():
        setattr(config, name, value)
    model = kind(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def texts(padding: int) -> Tensor:
    ids = torch.randint(4, 30, (3, 8), generator=torch.Generator().manual_seed(1))
    return ids.masked_fill(~REAL, padding)


def real_rows(out: Tensor) -> Tensor:
    """Without padding, where there is a row a position."""
    return out[REAL] if out.shape[:2] == REAL.shape else out


def said_by_theirs(model) -> list[Tensor]:
    ids = texts(model.config.pad_token_id)
    out = model(input_ids=ids, attention_mask=REAL.long(), token_type_ids=TYPES)
    if isinstance(model, BertForPreTraining):
        return [out.prediction_logits[REAL], out.seq_relationship_logits]
    return [real_rows(out.last_hidden_state if "last_hidden_state" in out else out.logits)]


def said_by_ours(model) -> list[Tensor]:
    part = model if isinstance(model, Encoder) else model.encoder
    ids, options = texts(part.config.padding_id), {"lengths": LENGTHS, "token_types": TYPES}
    if isinstance(model, MaskedLM | MaskedLMWithNextSentence):
        places = REAL.flatten().nonzero().squeeze(1)
        out = model(ids, places, **options)
        return list(out) if isinstance(out, tuple) else [out]
    return [real_rows(model(ids, **options))]


@pytest.mark.parametrize("theirs, ours", MODELS.items(), ids=lambda kind: kind.__name__)
def test_outputs_are_theirs_there_and_back(theirs, ours):
    model = make_theirs(theirs)
    wanted = said_by_theirs(model)
    loaded = from_hugging_face(model)
    assert type(loaded) is ours
    torch.testing.assert_close(said_by_ours(loaded), wanted)
    exported = to_hugging_face(loaded)
    assert type(exported) is theirs and not exported.training
    torch.testing.assert_close(said_by_theirs(exported), wanted)


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_every_conversion_gives_the_same_weights(kind):
    given = make_theirs(kind)
    ours, again = (from_hugging_face(given).state_dict() for _ in range(2))
    torch.testing.assert_close(again, ours, rtol=0, atol=0)
    model = from_hugging_face(given)
    theirs, again = (to_hugging_face(model).state_dict() for _ in range(2))
    torch.testing.assert_close(again, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [RobertaForMaskedLM, BertForPreTraining, ElectraForMaskedLM])
def test_gradients_are_theirs(kind):
    model = make_theirs(kind)
    loaded = from_hugging_face(model)
    for said in (said_by_theirs(model), said_by_ours(loaded)):
        sum(out.square().sum() for out in said).backward()
    name = f"{model.base_model_prefix}.embeddings"
    words = model.get_parameter(f"{name}.word_embeddings.weight").grad
    own = loaded.encoder.embed.words.weight.grad
    kept = [word for word in range(30) if word != model.config.pad_token_id]
    torch.testing.assert_close(own[:30][kept], words[kept])
    offset = 2 if kind is RobertaForMaskedLM else 0
    places = model.get_parameter(f"{name}.position_embeddings.weight").grad
    torch.testing.assert_close(loaded.encoder.embed.positions.weight.grad, places[offset:])


def test_in_float32_ours_starts_with_their_loss():
    torch.manual_seed(0)
    model = MaskedLM(Encoder(EncoderConfig.tiny(30))).eval()
    other = to_hugging_face(model)
    assert other.dtype == torch.float32
    ids = texts(padding=5)
    labels = ids.masked_fill(~REAL, -100)
    places = REAL.flatten().nonzero().squeeze(1)
    ours = torch.nn.functional.cross_entropy(model(ids, places), ids.flatten()[places])
    assert other(input_ids=ids, labels=labels).loss.item() == pytest.approx(ours.item(), rel=1e-5)


def test_an_exported_model_is_saved_and_read_by_transformers(tmp_path):
    model = to_hugging_face(from_hugging_face(make_theirs(RobertaForMaskedLM)))
    model.save_pretrained(tmp_path)
    again = RobertaForMaskedLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(said_by_theirs(again), said_by_theirs(model))


def test_configs_come_back_as_they_were():
    for config in (
        EncoderConfig.tiny(30, token_types=2, norm_eps=1e-6, padding_id=3),
        EncoderConfig.bert(30, width=16, heads=2, layers=1, feed_forward=8, init_std=0.1),
        EncoderConfig.electra(30, width=16, heads=2, layers=1, feed_forward=8, embedding_width=4),
    ):
        assert from_hugging_face(to_hugging_face(Encoder(config))).config == config
    model = from_hugging_face(make_theirs(ElectraForSequenceClassification))
    assert (model.dropout.p, model.classes.out_features) == (0.2, 3)


def test_what_cannot_be_exported_is_refused():
    with pytest.raises(ValueError, match=r"attends with softmax, this encoder with topk:4"):
        to_hugging_face(Encoder(EncoderConfig.tiny(30, attention="topk:4")))
    with pytest.raises(ValueError, match="has no roberta for a NextSentence"):
        to_hugging_face(NextSentence(Encoder(EncoderConfig.tiny(30))))
    cut = prune(Encoder(EncoderConfig.tiny(30)), {"encoder.0.self": [1]})
    with pytest.raises(ValueError, match="this one has 5 heads left"):
        to_hugging_face(cut)


def test_what_cannot_be_loaded_is_refused():
    sizes = GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    with pytest.raises(ValueError, match="GPT2LMHeadModel cannot be loaded; known are Roberta"):
        from_hugging_face(GPT2LMHeadModel(sizes))
    with pytest.raises(ValueError, match="hidden_act=gelu can be loaded, got 'relu'"):
        from_hugging_face(make_theirs(BertModel, hidden_act="relu"))


def test_docstrings_are_true():
    done = doctest.testmod(encoder_weights)
    assert done.attempted and not done.failed
