"""Small random Hugging Face models with a tokenizer, as their users save them."""

from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.hf.families import ADAPTED, EVERY, SIZES, build

LINES = [
    "the small dog saw some cats .",
    "a cat slept .",
    "the horses often chased the birds and they ran quickly .",
    "some young black dogs met a bird but it never heard them .",
    "it ran .",
    "the cat found a big dog while they slept soon .",
    "horses ran and birds slept .",
]
WORDS = sorted({word for line in LINES for word in line.split()})
FIRST = {"BART": ("<s>", "<pad>", "</s>"), "T5": ("<pad>", "</s>", "<s>")}
FRAMES = {"text": "<s> $A </s>", "causal": "$A", "two stacks": "$A </s>"}


def tokenizer_for(name: str) -> PreTrainedTokenizerFast:
    """Words as they are; special tokens with the ids and places that the family expects."""
    first = FIRST.get(name, ("<pad>", "<s>", "</s>"))
    ids = {word: place for place, word in enumerate((*first, "<unk>", *WORDS))}
    fast = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.post_processor = processors.TemplateProcessing(
        single=FRAMES[EVERY[name].kind],
        special_tokens=[(mark, ids[mark]) for mark in ("<s>", "</s>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token=None if name == "GPT-2" else "<pad>",
        model_max_length=40,
    )


def host(name: str) -> hf.PreTrainedModel:
    """A model of a family; the translator ends its sentences at different lengths."""
    model = build(name, "eager" if name in ADAPTED else "sdpa")
    if name == "BART":
        model.final_logits_bias[0, 2] = ENDING
    return model


ENDING = 2.0  # added to the score of the end mark


def classifier() -> hf.PreTrainedModel:
    """A random BERT with three classes."""
    torch.manual_seed(0)
    return hf.BertForSequenceClassification(hf.BertConfig(**SIZES, num_labels=3)).eval()


def save(model: hf.PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    """A folder as `save_pretrained` leaves it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
