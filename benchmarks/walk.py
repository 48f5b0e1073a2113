"""One sentence through `inspect` on a tiny BERT: what is called, loaded and read, and how long."""

import runpy
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from timeit import repeat
from types import FrameType

import transformers

import headwise as hw

SENTENCE = "the small dog saw some cats ."
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SENTENCE.split()]
counts, seen, files = Counter[str](), Counter[tuple[str, str]](), set[str]()


def _profile(frame: FrameType, event: str, argument: object) -> None:
    name = frame.f_code.co_filename
    if event == "call" and "/headwise/" in name:
        counts["calls of headwise's functions"] += 1
        files.add(name)
    if event == "call" and "/tokenization" in name and frame.f_code.co_name == "__call__":
        counts["calls of the tokenizer"] += 1


def main() -> None:
    """Count one walk and time thirty, all of them warm, and print the numbers."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, vocab_size=len(WORDS)))
    tokenizer = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)})
    inspect = partial(hw.inspect, model.eval(), tokenizer, [SENTENCE])
    inspect()  # loads modules
    hook = model.register_forward_hook(lambda *_: counts.update(["forward passes"]))
    sys.setprofile(_profile)
    inspect()
    sys.setprofile(None)
    hook.remove()
    counts["milliseconds, best of 30"] = round(1000 * min(repeat(inspect, number=1, repeat=30)))
    counts["files of headwise executed"] = len(files)
    counts["modules of headwise loaded"] = sum(x.split(".")[0] == "headwise" for x in sys.modules)
    with tempfile.TemporaryDirectory() as folder, suppress(SystemExit):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        text = Path(folder, "corpus.txt")
        text.write_text(SENTENCE)
        sys.addaudithook(lambda event, given: seen.update([(event, str(*given[:1]))]))
        sys.argv = ["headwise", "inspect", folder, "--data", str(text), "--out", f"{folder}/run"]
        runpy.run_module("headwise", run_name="__main__")
    counts["times that `headwise inspect` opened the corpus"] = seen["open", str(text)]
    print(*(f"{name}: {count:,}" for name, count in counts.items()), sep="\n")


if __name__ == "__main__":
    main()
