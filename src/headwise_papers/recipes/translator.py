"""A trained translator in a Run folder: written once, evaluated, and read back by others."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headwise.config import to_json
from headwise.pruning.cutting import rebuild
from headwise.pruning.record import PruningRecord, check_whole, record_of
from headwise.recording import Run
from headwise_papers.data.batches import ParallelBatch, pad, parallel_batch
from headwise_papers.data.marian import MarianCodec, MarianFolder
from headwise_papers.data.vocabulary import BOS, EOS, PAD
from headwise_papers.models import Hypothesis, Transformer, TransformerConfig, beam, greedy
from headwise_papers.models.marian import load_marian
from headwise_papers.recipes.codec import Codec, InPieces, load_codecs, save_codecs

Ids = list[int]
RECORD = "pruning_record.json"  # of a run whose model was pruned: which heads it has left


@dataclass(frozen=True, eq=False)
class Translator:
    """A Transformer and how text becomes its ids: text in, text out."""

    model: Transformer
    source: Codec
    target: Codec

    @property
    def room(self) -> int:
        """The most ids of a source sentence; longer ones are cut."""
        return self.model.config.max_length - 1  # the end mark

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are."""
        return self.model.read_out.weight.device

    def batch(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> ParallelBatch:
        """Pairs of ids as the model takes them, on its device."""
        device = self.device
        return ParallelBatch(*(tensor.to(device) for tensor in parallel_batch(sources, targets)))

    def text_batch(self, sources: Sequence[str], targets: Sequence[str]) -> ParallelBatch:
        """Sentence pairs as the model takes them, on its device."""
        return self.batch(
            [self.source.encode(text) for text in sources],
            [self.target.encode(text) for text in targets],
        )

    def translate(
        self,
        texts: Sequence[str],
        *,
        beams: int = 1,
        length_penalty: float = 0.6,
        batch: int = 512,
    ) -> list[str]:
        """Translations of some sentences, in their order; one without words stays empty.

        Args:
            texts: a sentence each; what is longer than `room` is cut.
            beams: hypotheses followed at the same time; 1 takes the likeliest word each time.
            length_penalty: more favours longer translations; see `headwise_papers.models.beam`.
            batch: sentences translated together, those of similar length.
        """
        if batch < 1:
            raise ValueError(f"A batch holds at least one sentence, got {batch}.")
        sources = {number: self.source.encode(text) for number, text in enumerate(texts)}
        order = [number for number, ids in sources.items() if ids]
        if len(order) > batch:  # one batch alone is left in its order
            order.sort(key=lambda number: len(sources[number]))
        found = [""] * len(texts)
        for start in range(0, len(order), batch):
            numbers = order[start : start + batch]
            chosen = [sources[number][: self.room] for number in numbers]
            targets = self.translate_ids(chosen, beams=beams, length_penalty=length_penalty)
            for number, ids in zip(numbers, targets, strict=True):
                found[number] = self.target.decode(ids)
        return found

    def translate_ids(
        self, sources: Sequence[Ids], *, beams: int = 1, length_penalty: float = 0.6
    ) -> list[Ids]:
        """The same from ids to ids, in one batch; none of them empty, none longer than `room`."""
        padded = pad([[*ids, EOS] for ids in sources])
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
                self.model,
                ids,
                lengths,
                bos=BOS,
                eos=EOS,
                max_length=max(limits),
                beams=beams,
                length_penalty=length_penalty,
            )
        return [hypothesis.ids[:limit] for hypothesis, limit in zip(found, limits, strict=True)]

    def save(self, run: Run) -> None:
        """Write everything that `load` needs."""
        run.write_json("model.json", to_json(self.model.config))
        if record := record_of(self.model):
            run.write_json(RECORD, record.to_json())
        save_codecs(run, self.source, self.target)
        run.save_tensors("model.safetensors", self.model.state_dict())

    @staticmethod
    def load(run: Run) -> "Translator":
        """The translator of a finished run; a pruned one whose files were changed is refused."""
        check_whole(run.folder)
        if not run.has("model.safetensors"):
            raise ValueError(
                f"{run.folder} holds no trained model yet; let the run that makes it finish first."
            )
        source, target = load_codecs(run)
        model = Transformer(run.read_settings("model.json", TransformerConfig))
        if run.has(RECORD):
            rebuild(model, PruningRecord.from_json(run.read_json(RECORD)))
        load_weights(model, run)
        return Translator(model.eval(), source, target)

    @staticmethod
    def of_marian(files: MarianFolder) -> "Translator":
        """Load a translator of Marian, such as Bergamot's.

        Args:
            files: from `headwise_papers.data.marian.marian_folder`.
        """
        model = load_marian(files.model)
        source, target = (InPieces(MarianCodec.load(path)) for path in files[1:])
        sizes = model.config.source_vocab, model.config.target_vocab
        if (len(source), len(target)) != sizes:
            raise ValueError(
                f"{files.model.name} has {sizes[0]} and {sizes[1]} tokens, but the vocabularies "
                f"have {len(source)} and {len(target)}; give those that came with it."
            )
        return Translator(model, source, target)


def load_weights(model: torch.nn.Module, run: Run) -> None:
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
