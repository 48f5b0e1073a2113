"""A trained translator in a Run folder: written once, evaluated, and read back by others."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headwise.config import from_json, to_json
from headwise.data.batching import pad
from headwise.data.parallel import ParallelBatch, parallel_batch
from headwise.data.vocabulary import BOS, EOS, PAD, Vocabulary
from headwise.models import Hypothesis, Transformer, TransformerConfig, beam, greedy
from headwise.recording import Run

Words = Sequence[str]


@dataclass(frozen=True, eq=False)
class Translator:
    """A Transformer and the words it knows."""

    model: Transformer
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary

    def batch(self, sources: Sequence[Words], targets: Sequence[Words]) -> ParallelBatch:
        """Sentence pairs as the model takes them, on its device."""
        batch = parallel_batch(
            [self.source_vocabulary.encode(words) for words in sources],
            [self.target_vocabulary.encode(words) for words in targets],
        )
        device = self.device
        return ParallelBatch(*(tensor.to(device) for tensor in batch))

    def translate(self, sources: Sequence[Words], *, beams: int = 1) -> list[list[str]]:
        """Translations, by greedy search or with beams."""
        padded = pad([[*self.source_vocabulary.encode(words), EOS] for words in sources])
        ids, lengths = padded.ids.to(self.device), padded.lengths.to(self.device)
        # each sentence has a limit of its own, whatever stands beside it in the batch
        room = self.model.config.max_length - 1  # the beginning mark
        limits = [min(2 * length + 8, room) for length in padded.lengths.tolist()]
        self.model.eval()
        found: list[Hypothesis]
        if beams == 1:
            found = greedy(self.model, ids, lengths, bos=BOS, eos=EOS, max_length=max(limits))
        else:
            found = beam(
                self.model, ids, lengths, bos=BOS, eos=EOS, max_length=max(limits), beams=beams
            )
        return [
            self.target_vocabulary.decode(hypothesis.ids[:limit])
            for hypothesis, limit in zip(found, limits, strict=True)
        ]

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are."""
        return self.model.read_out.weight.device

    def save(self, run: Run) -> None:
        """Write everything that `load` needs."""
        run.write_json("model.json", to_json(self.model.config))
        run.write_text("source_vocabulary.json", self.source_vocabulary.to_json())
        run.write_text("target_vocabulary.json", self.target_vocabulary.to_json())
        run.save_tensors("model.safetensors", self.model.state_dict())

    @staticmethod
    def load(run: Run) -> "Translator":
        """The translator of a finished run."""
        if not run.has("model.safetensors"):
            raise ValueError(
                f"{run.folder} holds no trained model yet; let the run that makes it finish first."
            )
        model = Transformer(from_json(TransformerConfig, run.read_json("model.json")))
        load_weights(model, run)
        return Translator(
            model.eval(),
            Vocabulary.from_json(run.path("source_vocabulary.json").read_text()),
            Vocabulary.from_json(run.path("target_vocabulary.json").read_text()),
        )


def load_weights(model: Transformer, run: Run) -> None:
    """Fill a model from a run; weights that do not fit get one sentence."""
    try:
        model.load_state_dict(run.load_tensors("model.safetensors"))
    except RuntimeError as error:
        raise ValueError(
            f"The weights in {run.path('model.safetensors')} do not fit model.json: "
            f"{str(error).splitlines()[-1].strip()}"
        ) from error


@torch.no_grad()
def token_accuracy(translator: Translator, batch: ParallelBatch) -> float:
    """Share of target words, the end mark included, predicted right given the words before."""
    translator.model.eval()
    logits_BTV = translator.model(batch.source, batch.source_lengths, batch.target_in)
    real_BT = batch.target_out != PAD
    right_BT = (logits_BTV.argmax(-1) == batch.target_out) & real_BT
    return (right_BT.sum() / real_BT.sum()).item()


@dataclass(frozen=True)
class Bleu:
    """A score and how it was computed."""

    score: float
    signature: str


def bleu(hypotheses: Sequence[Words], references: Sequence[Words]) -> Bleu:
    """Corpus BLEU of words as they are, by sacreBLEU, 0 to 100."""
    from sacrebleu.metrics.bleu import BLEU  # lazy: reading a table does not need it

    metric = BLEU(tokenize="none", force=True)
    score = metric.corpus_score(
        [" ".join(words) for words in hypotheses], [[" ".join(words) for words in references]]
    )
    return Bleu(score.score, str(metric.get_signature()))
