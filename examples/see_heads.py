"""See what every head of a Hugging Face model does on some text.

    python examples/see_heads.py [MODEL_FOLDER]

Without a folder, a small random BERT reads sentences of the toy language. Nothing is downloaded.
"""

import sys
from pathlib import Path

from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
)

import headwise as hw
from headwise_papers.data.toy import ToyLanguage


def random_model(words: tuple[str, ...]) -> tuple[BertForMaskedLM, BertTokenizer]:
    """A BERT that has learned nothing, and a tokenizer that knows some words."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
    )
    tokenizer = BertTokenizer(vocab={word: place for place, word in enumerate(vocabulary)})
    return BertForMaskedLM(config).eval(), tokenizer


language = ToyLanguage()
if len(sys.argv) > 1:
    folder = Path(sys.argv[1])
    model = AutoModelForMaskedLM.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
else:
    model, tokenizer = random_model(language.source_words)

lines = [" ".join(pair.source) for pair in language.pairs(64, seed=0)]
table = hw.inspect(model, tokenizer, lines, ablation_lines=8)
print(table.top(8, by="output_change"))
