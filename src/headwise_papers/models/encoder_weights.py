"""Weights of `Encoder` models from and for Hugging Face's BERT, RoBERTa and ELECTRA.

    model = from_hugging_face(RobertaForMaskedLM.from_pretrained("a-folder"))
    to_hugging_face(model).save_pretrained("another-folder")

Outputs are the same at every position that is no padding. RoBERTa numbers positions from
padding_id + 1 on, so its table has that many more rows than ours; they are never read, and are 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
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
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)

from headwise_papers.models.attention import MultiHeadAttention
from headwise_papers.models.encoder import Encoder, EncoderConfig, Family
from headwise_papers.models.encoder_heads import (
    MaskedLM,
    MaskedLMWithNextSentence,
    NextSentence,
    ReplacedToken,
    SequenceClassifier,
    TokenClassifier,
)

__all__ = ["FORMS", "EncoderModel", "Form", "from_hugging_face", "to_hugging_face", "translated"]

# Our names and theirs: of modules, and of parameters that are in none.
EMBEDDINGS = {
    "embed.words": "embeddings.word_embeddings",
    "embed.positions": "embeddings.position_embeddings",
    "embed.types": "embeddings.token_type_embeddings",
    "embed.norm": "embeddings.LayerNorm",
    "embed.project": "embeddings_project",
}
LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "add_attention.norm": "attention.output.LayerNorm",
    "feed_forward.0": "intermediate.dense",
    "feed_forward.2": "output.dense",
    "add_feed_forward.norm": "output.LayerNorm",
}
BERT_WORDS = {
    "words.dense": "cls.predictions.transform.dense",
    "words.norm": "cls.predictions.transform.LayerNorm",
    "words.bias": "cls.predictions.bias",
}
BERT_NEXT = {"pool.dense": "bert.pooler.dense", "follows": "cls.seq_relationship"}
ROBERTA_WORDS = {
    "words.dense": "lm_head.dense",
    "words.norm": "lm_head.layer_norm",
    "words.bias": "lm_head.bias",
}
ELECTRA_WORDS = {
    "words.dense": "generator_predictions.dense",
    "words.norm": "generator_predictions.LayerNorm",
    "words.bias": "generator_lm_head.bias",
}
ELECTRA_REPLACED = {
    "dense": "discriminator_predictions.dense",
    "replaced": "discriminator_predictions.dense_prediction",
}
CLASSES = {"pool.dense": "classifier.dense", "classes": "classifier.out_proj"}
BERT_CLASSES = {"pool.dense": "bert.pooler.dense", "classes": "classifier"}
TOKEN_CLASSES = {"classes": "classifier"}


@dataclass(frozen=True)
class Form:
    """A model of ours, what it is there, and how the parts of its head are called."""

    family: Family
    ours: type[nn.Module]
    theirs: type[PreTrainedModel]
    names: Mapping[str, str]


FORMS = (
    Form("roberta", Encoder, RobertaModel, {}),
    Form("roberta", MaskedLM, RobertaForMaskedLM, ROBERTA_WORDS),
    Form("roberta", SequenceClassifier, RobertaForSequenceClassification, CLASSES),
    Form("roberta", TokenClassifier, RobertaForTokenClassification, TOKEN_CLASSES),
    Form("bert", Encoder, BertModel, {}),
    Form("bert", MaskedLM, BertForMaskedLM, BERT_WORDS),
    Form("bert", NextSentence, BertForNextSentencePrediction, BERT_NEXT),
    Form("bert", MaskedLMWithNextSentence, BertForPreTraining, BERT_WORDS | BERT_NEXT),
    Form("bert", SequenceClassifier, BertForSequenceClassification, BERT_CLASSES),
    Form("bert", TokenClassifier, BertForTokenClassification, TOKEN_CLASSES),
    Form("electra", Encoder, ElectraModel, {}),
    Form("electra", MaskedLM, ElectraForMaskedLM, ELECTRA_WORDS),
    Form("electra", ReplacedToken, ElectraForPreTraining, ELECTRA_REPLACED),
    Form("electra", SequenceClassifier, ElectraForSequenceClassification, CLASSES),
    Form("electra", TokenClassifier, ElectraForTokenClassification, TOKEN_CLASSES),
)


def translated(name: str, form: Form) -> str:
    """Return the name of one of our parameters in the other model.

    >>> translated("encoder.layers.3.attention.out.weight", FORMS[1])
    'roberta.encoder.layer.3.attention.output.dense.weight'
    """
    inner = name if form.ours is Encoder else name.removeprefix("encoder.")
    if form.ours is not Encoder and inner == name:
        return _renamed(name, form.names)
    within = "" if form.ours is Encoder else f"{form.family}."
    if inner.startswith("layers."):
        _, index, rest = inner.split(".", 2)
        return f"{within}encoder.layer.{index}.{_renamed(rest, LAYER)}"
    return within + _renamed(inner, EMBEDDINGS)


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """Replace the beginning of a name that is in the table."""
    for ours, theirs in names.items():
        if name == ours or name.startswith(f"{ours}."):
            return theirs + name[len(ours) :]
    raise AssertionError(f"{name} has no name there")


EncoderModel = (
    Encoder
    | MaskedLM
    | MaskedLMWithNextSentence
    | NextSentence
    | ReplacedToken
    | SequenceClassifier
    | TokenClassifier
)

SETTINGS = {  # ours and theirs
    "vocab": "vocab_size",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "layers": "num_hidden_layers",
    "feed_forward": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "max_length": "max_position_embeddings",
    "token_types": "type_vocab_size",
    "padding_id": "pad_token_id",
    "norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
}
CONFIGS: dict[Family, Any] = {
    "roberta": RobertaConfig,
    "bert": BertConfig,
    "electra": ElectraConfig,
}


@torch.no_grad()
def to_hugging_face(model: EncoderModel) -> PreTrainedModel:
    """Return a model of transformers with copies of these weights, and with these outputs.

    Which one follows from the family in the encoder's config: a `MaskedLM` of the family "bert"
    becomes a BertForMaskedLM. A bare `Encoder` becomes one without a pooler.
    """
    encoder = model if isinstance(model, Encoder) else model.encoder
    form = _form_of_ours(model, encoder.config)
    _check_exportable(encoder)
    config = _their_config(encoder.config)
    if isinstance(model, SequenceClassifier | TokenClassifier):
        config.num_labels = model.classes.out_features
        config.classifier_dropout = model.dropout.p
    bare = isinstance(model, Encoder) and form.family != "electra"
    other = form.theirs(config, **({"add_pooling_layer": False} if bare else {}))
    _like(encoder.embed.words.weight, other).train(model.training)
    theirs = dict(other.named_parameters(remove_duplicate=False))
    for name, tensor in model.named_parameters():
        whole = theirs[translated(name, form)].zero_()  # rows that are never read would be random
        rows = _their_rows(name, whole, encoder.config)
        rows.copy_(_our_rows(name, tensor, encoder.config))
    return other


@torch.no_grad()
def from_hugging_face(model: PreTrainedModel) -> EncoderModel:
    """Return a model of ours with copies of the weights of a BERT, RoBERTa or ELECTRA.

    Which one follows from the class: RobertaForMaskedLM gives a `MaskedLM`, ElectraForPreTraining a
    `ReplacedToken`, BertModel an `Encoder` (its pooler is left out).
    """
    form = _form_of_theirs(model)
    _check_importable(model.config)
    config = _our_config(model.config, form.family)
    ours = _built(form, Encoder(config), model.config)
    theirs = dict(model.named_parameters(remove_duplicate=False))
    _like(next(iter(theirs.values())), ours).train(model.training)
    for name, tensor in ours.named_parameters():
        given = _their_rows(name, theirs[translated(name, form)], config)
        wanted = _our_rows(name, tensor.zero_(), config)  # rows that are never read, as above
        if wanted.shape != given.shape:
            raise ValueError(
                f"{translated(name, form)} must have the shape {tuple(wanted.shape)} that its "
                f"config tells of, got {tuple(given.shape)}; load the model before it is pruned."
            )
        wanted.copy_(given)
    return ours


def _form_of_ours(model: nn.Module, config: EncoderConfig) -> Form:
    for form in FORMS:
        if form.ours is type(model) and form.family == config.family:
            return form
    raise ValueError(
        f"Hugging Face has no {config.family} for a {type(model).__name__}; export it with another "
        "family in its config, or its encoder alone."
    )


def _form_of_theirs(model: PreTrainedModel) -> Form:
    for form in FORMS:
        if form.theirs is type(model):
            return form
    known = ", ".join(form.theirs.__name__ for form in FORMS)
    raise ValueError(f"{type(model).__name__} cannot be loaded; known are {known}.")


def _built(form: Form, encoder: Encoder, told: Any) -> EncoderModel:
    """Return the model of a form, with fresh weights."""
    if form.ours is Encoder:
        return encoder
    ours: Any = form.ours
    if form.ours in (SequenceClassifier, TokenClassifier):
        return ours(encoder, told.num_labels, dropout=told.classifier_dropout)
    return ours(encoder)


def _like(tensor: Tensor, model: nn.Module) -> nn.Module:
    """Move a model to the device and dtype of a tensor."""
    return model.to(tensor.device, tensor.dtype)


def _our_rows(name: str, ours: Tensor, config: EncoderConfig) -> Tensor:
    """Return the rows of one of our parameters that theirs has too: ours has spare rows."""
    by_word = name.endswith(("embed.words.weight", "words.bias"))
    return ours[: config.vocab] if by_word else ours


def _their_rows(name: str, theirs: Tensor, config: EncoderConfig) -> Tensor:
    """Return the rows of one of their parameters that ours has too."""
    offset = config.family == "roberta" and name.endswith("embed.positions.weight")
    return theirs[config.padding_id + 1 :] if offset else theirs


def _their_config(config: EncoderConfig) -> Any:
    told = {theirs: getattr(config, ours) for ours, theirs in SETTINGS.items()}
    if config.family == "roberta":
        told["max_position_embeddings"] += config.padding_id + 1
    if config.family == "electra":
        told["embedding_size"] = config.embedded
    return CONFIGS[config.family](**told)


def _our_config(told: Any, family: Family) -> EncoderConfig:
    given = {ours: getattr(told, theirs) for ours, theirs in SETTINGS.items()}
    given["padding_id"] = given["padding_id"] or 0
    if family == "roberta":
        given["max_length"] -= given["padding_id"] + 1
    if family == "electra" and told.embedding_size != told.hidden_size:
        given["embedding_width"] = told.embedding_size
    return EncoderConfig(**given, family=family)


def _check_exportable(encoder: Encoder) -> None:
    if encoder.config.attention != "softmax":
        raise ValueError(
            f"Hugging Face attends with softmax, this encoder with {encoder.config.attention}; "
            "export one whose config says softmax."
        )
    attentions = [each for each in encoder.modules() if isinstance(each, MultiHeadAttention)]
    left = sum(each.site.num_heads for each in attentions)
    if left != encoder.config.heads * encoder.config.layers:
        raise ValueError(f"Only whole encoders can be exported, this one has {left} heads left.")


def _check_importable(told: Any) -> None:
    wanted = {"hidden_act": "gelu", "is_decoder": False, "tie_word_embeddings": True}
    for name, value in wanted.items():
        if getattr(told, name) != value:
            raise ValueError(
                f"Only models with {name}={value} can be loaded, got {getattr(told, name)!r}."
            )
