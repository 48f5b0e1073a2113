"""Encoders of our own, read as they are: whatever they attend with can be looked at."""

from dataclasses import replace

import pytest
import torch

from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise.workflows.inspect.hugging_face import HuggingFaceSubject
from headwise.workflows.inspect.opening import open_subject
from headwise.workflows.inspect.sentence import Sentence
from headwise.workflows.prune.pruning import PruneConfig, open_task
from headwise_papers.data.subword import train_byte_level
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.models.encoder_heads import MaskedLM, MaskedLMWithNextSentence, ReplacedToken
from headwise_papers.recipes.encoder_subject import EncoderSubject, encoder_subject
from headwise_papers.recipes.pretraining import PretrainingConfig, pretrain
from tests.papers.recipes.configured import configured
from tests.papers.recipes.small_translation import quietly

LINES = ["the dog saw the cat .", "a cat slept .", "the dogs said </s> and ran ."]
PIECES = train_byte_level(LINES * 4, size=300)
SENTENCES = [Sentence.of_text(line) for line in LINES]


def model(kind=MaskedLM, **changes):
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig.tiny(len(PIECES), **changes))
    return (encoder if kind is Encoder else kind(encoder)).eval()


@torch.no_grad()
def test_it_reads_and_says_what_its_copy_of_hugging_face_does():
    ours = EncoderSubject(model(), PIECES, frozenset({"Ġdog"}))
    theirs = encoder_subject(model(), PIECES, special=["Ġdog"])
    assert isinstance(theirs, HuggingFaceSubject)
    one, other = (subject.prepare(SENTENCES) for subject in (ours, theirs))
    assert torch.equal(one.inputs["input_ids"], other.inputs["input_ids"])
    assert torch.equal(one.words["encoder"].of, other.words["encoder"].of)
    assert one.tokens == other.tokens and one.texts == other.texts
    said, wanted = ours.forward(one.inputs), theirs.forward(other.inputs)
    assert said.predicts == wanted.predicts == "masked" and ours.mask_id == theirs.mask_id
    real = other.inputs["attention_mask"].bool()
    assert torch.allclose(said.values[real], wanted.values[real], atol=1e-5)


def test_what_does_not_fit_is_cut_and_counted():
    subject = EncoderSubject(model(max_length=9), PIECES)
    prepared = subject.prepare([Sentence.of_text("cat " * 20), *SENTENCES[1:2]])
    assert subject.max_tokens == 7 and prepared.truncated == 1
    assert prepared.inputs["input_ids"].shape == (2, 9)
    assert prepared.inputs["input_ids"][0, -1] == PIECES.end
    with pytest.raises(ValueError, match="Special tokens must be tokens of the model"):
        EncoderSubject(model(), PIECES, frozenset({"zebra"}))


@pytest.mark.parametrize(
    ("kind", "predicts"),
    [(Encoder, "nothing"), (ReplacedToken, "nothing"), (MaskedLMWithNextSentence, "masked")],
)
def test_other_attention_is_looked_at_as_it_is(kind, predicts):
    sparse = encoder_subject(model(kind, attention="topk:2"), PIECES)
    assert isinstance(sparse, EncoderSubject)
    inputs = sparse.prepare(SENTENCES).inputs
    with torch.no_grad():
        sparse.attend(inputs)
        found = sparse.forward(inputs)
    assert found.predicts == predicts and found.values.shape[:2] == inputs["input_ids"].shape
    assert (sparse.mask_id is None) == (predicts == "nothing")
    dense = replace(sparse, model=model(kind))
    assert dense.description != sparse.description


def test_a_pretraining_with_other_attention_is_inspected_and_not_pruned(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(LINES * 20))
    config = configured(
        PretrainingConfig,
        corpus="file",
        file=str(text),
        attention="topk:3",
        steps=1,
        warmup=0,
        heads=2,
        width=16,
        feed_forward=128,
        layers=1,
        max_length=16,
        vocab_size=280,
        batch_size=4,
    )
    run = quietly(config, tmp_path / "run", pretrain)
    assert isinstance(open_subject(run.folder), EncoderSubject)
    asked = InspectConfig(str(run.folder), str(text), sample=2, samples=0, ablation_lines=4)
    table = inspect_folder(replace(asked, device="cpu"), tmp_path / "out")
    assert len(table.heads) == 2
    lines = (str(text),)
    with pytest.raises(ValueError, match="attends with something else than softmax"):
        open_task(PruneConfig(model=str(run.folder), data=lines, dev=lines, keep=1), run.folder)
