"""Train a translator and translate a sentence that you type.

    python examples/train_translator.py                    # a toy language, seconds
    python examples/train_translator.py multi30k           # English to German
    python examples/train_translator.py multi30k softmax   # with another attention

Multi30k must be below the folder that HEADWISE_DATA names. Started again, the script resumes where
it was interrupted.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from headwise.training import FitConfig
from headwise_papers.data.toy import ToyLanguage
from headwise_papers.models import TransformerConfig
from headwise_papers.recipes.translation import SIZES, TranslationConfig, train_translation
from headwise_papers.recipes.translator import Translator

corpus = sys.argv[1] if len(sys.argv) > 1 else "toy"
attention = sys.argv[2] if len(sys.argv) > 2 else "topk:8"
attentions = {f"{place}_attention": attention for place in ("encoder", "decoder", "cross")}

if corpus == "toy":
    folder = Path(tempfile.mkdtemp())
    files = {}
    for seed, (part, count) in enumerate({"train": 500, "valid": 50, "test": 10}.items()):
        pairs = ToyLanguage(nouns=6, transitive_verbs=3, adjectives=3).pairs(count, seed=seed)
        files[part] = str(folder / f"{part}.en"), str(folder / f"{part}.xx")
        Path(files[part][0]).write_text("".join(" ".join(p.source) + "\n" for p in pairs))
        Path(files[part][1]).write_text("".join(" ".join(p.target) + "\n" for p in pairs))
    small = {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "max_length": 64}
    config = TranslationConfig(
        corpus="files",
        **files,
        vocab_size=120,
        batch_tokens=512,
        model=TransformerConfig(**small, **attentions, feed_forward=64, dropout=0.0),
        fit=FitConfig(steps=100, warmup=10, learning_rate=1e-2),
    )
else:
    folder = Path("runs")
    config = TranslationConfig(corpus=corpus, model=replace(SIZES["small"], **attentions))

run = train_translation(config, folder / f"{corpus}-{attention.replace(':', '-')}")
figures = run.figures()
print(f"validation loss {figures['validation_loss']:.2f}, BLEU {figures['bleu']:.1f}")
print(figures["bleu_signature"])

translator = Translator.load(run)
print(translator.translate(["the dog saw a cat ."], beams=4)[0])
while sys.stdin.isatty() and (sentence := input("> ")):
    print(translator.translate([sentence], beams=4)[0])
