"""How the parameters of `Encoder` models are called in Hugging Face's BERT, RoBERTa and ELECTRA."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn
from transformers import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraModel,
    PreTrainedModel,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)

from headwise_papers.models.encoder import Encoder, Family
from headwise_papers.models.encoder_heads import (
    MaskedLM,
    MaskedLMWithNextSentence,
    NextSentence,
    ReplacedToken,
    SequenceClassifier,
    TokenClassifier,
)

__all__ = ["FORMS", "Form", "translated"]

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
    """What one of our parameters is called in the other model.

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
    """With the beginning that is in the table replaced."""
    for ours, theirs in names.items():
        if name == ours or name.startswith(f"{ours}."):
            return theirs + name[len(ours) :]
    raise AssertionError(f"{name} has no name there")
