"""BLEU of one trained translator of a stack."""

from typing import cast

from headwise.recording.run import Run
from headwise_papers.data.batches import parallel_batch
from headwise_papers.data.translation import TranslationData, read_parallel_texts
from headwise_papers.data.vocabulary import BOS, EOS
from headwise_papers.models.decode import greedy
from headwise_papers.models.rnn import Seq2Seq
from headwise_papers.output_relevance._stacks import device_of
from headwise_papers.output_relevance._translation import Config, read_pairs, shape_of

BLEU = "bleu.json"
SIZE = 128  # sentences translated together
LONGEST = 150  # pieces of a translation


def bleu(config: Config, name: str, run: Run) -> float:
    """BLEU of seed 0 after its last update, on the test part; kept with its signature in the run.

    Args:
        config: the settings of the training.
        name: the corpus.
        run: the finished training.
    """
    if not run.has(BLEU):
        # lazy: only BLEU needs it
        from sacrebleu import BLEU as Bleu

        data = read_pairs(config, name, run)
        model = _first_model(config, len(data.pieces), run).to(device_of(config.device)).eval()
        references = read_parallel_texts(name).test.target[: len(data.test)]
        # IWSLT'14 is tokenised and lower-cased already, on both sides
        metric = Bleu(tokenize="none" if name == "iwslt14" else "13a", force=True)
        score = metric.corpus_score(_translations(model, data), [references]).score
        run.write_json(BLEU, {"score": score, "signature": str(metric.get_signature()), "seed": 0})
    return cast(float, run.read_json(BLEU)["score"])


def _first_model(config: Config, vocabulary: int, run: Run) -> Seq2Seq:
    model = Seq2Seq(shape_of(config, vocabulary))
    kept = run.load_tensors("stacked.safetensors")
    weights = {name: kept[f"model.{name}"][0] for name, _ in model.named_parameters()}
    model.load_state_dict(weights)
    return model


def _translations(model: Seq2Seq, data: TranslationData) -> list[str]:
    """Greedy ones, sentences of similar length together."""
    device = next(model.parameters()).device
    order = sorted(range(len(data.test)), key=lambda number: len(data.test[number][0]))
    found: dict[int, str] = {}
    for start in range(0, len(order), SIZE):
        chosen = order[start : start + SIZE]
        sources, targets = zip(*(data.test[number] for number in chosen), strict=True)
        batch = parallel_batch(sources, targets)
        hypotheses = greedy(
            model,
            batch.source.to(device),
            batch.source_lengths.to(device),
            bos=BOS,
            eos=EOS,
            max_length=LONGEST,
        )
        texts = [data.pieces.decode(hypothesis.ids) for hypothesis in hypotheses]
        found |= dict(zip(chosen, texts, strict=True))
    return [found[number] for number in range(len(order))]
