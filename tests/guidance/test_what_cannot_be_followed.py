"""Patterns that no query could follow are refused: keys that are hidden, tokens that are none."""

import pytest
import torch
from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel

import headwise as hw
from headwise.guidance import Plan, pattern
from headwise_papers.models import Encoder, EncoderConfig, MaskedLM, Transformer, TransformerConfig
from tests.guidance.test_guiding import BACK, IDS, PLAN, REAL, host, inputs, translator
from tests.guidance.toy import Toy

CAUSAL = r"self should attend to 'next', 1 after each query, but attention there is causal"


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_no_head_of_a_causal_host_looks_ahead(name, padded, backend):
    """With padding the host's mask says so, and without, sometimes, a flag."""
    model = hw.adopt(host(name, backend))
    given = {key: value for key, value in inputs(name).items() if padded or "mask" not in key}
    with hw.guide(model, "next=1", where="decoder.*.self", schedule="constant") as guidance:
        for _ in range(3):  # who tries again is told again
            model(**given)
            with pytest.raises(ValueError, match=CAUSAL):
                guidance.loss()
    with hw.guide(model, BACK, where="decoder.*.self", schedule="constant") as guidance:
        model(**given)
        assert guidance.loss() > 0


@pytest.mark.parametrize("masked", [True, False])
def test_nor_does_one_of_a_causal_model_of_one_s_own(masked):
    model, ids = Toy(), torch.randint(1, 8, (2, 5))
    plan = Plan({2: pattern("offset", offset=3)})
    guidance = hw.guide(model, plan, schedule="constant")
    model(ids, torch.ones(5, 5, dtype=torch.bool).tril()) if masked else model(ids, causal=True)
    with pytest.raises(ValueError, match=r"Head 2 of encoder\.0\.self should attend to 'offset'"):
        guidance.loss()


def test_texts_too_short_to_look_ahead_in_are_not_taken_for_causal():
    model, ids = Toy(), torch.randint(1, 8, (2, 5))
    guidance = hw.guide(model, PLAN, schedule="constant")
    model(ids, torch.eye(5, dtype=torch.bool))  # texts of one token
    guidance.loss()
    model(ids, (torch.arange(5) < 1).expand(5, 5))  # the same, and padding
    guidance.loss()
    model(ids, torch.ones(5, 5, dtype=torch.bool).tril())  # they tell nothing of others
    with pytest.raises(ValueError, match="attention there is causal"):
        guidance.loss()


def test_attention_to_another_text_may_look_ahead():
    model = translator()
    guidance = hw.guide(model, "next=1", where="*.cross", schedule="constant")
    model(IDS, REAL.sum(dim=1), IDS)
    assert guidance.loss() > 0


@pytest.mark.parametrize(
    ("make", "where", "known"),
    [
        (lambda: hw.adopt(host("gpt2")), "decoder.*", 30),
        (lambda: hw.adopt(host("bart")), "*.cross", 30),
        (translator, "decoder.*.self", 30),
        (lambda: Encoder(EncoderConfig.tiny(30)), "encoder.*", 30),
        (lambda: MaskedLM(Encoder(EncoderConfig.tiny(30))), "encoder.*", 30),
    ],
)
def test_tokens_that_the_model_does_not_know_are_refused(make, where, known):
    model = make()
    hw.guide(model, Plan({1: pattern("tokens", tokens=[known - 1])}), where=where).undo()
    with pytest.raises(ValueError, match=rf"Head 1 of .* token {known}, .* 0 to {known - 1}; give"):
        hw.guide(model, Plan({1: pattern("tokens", tokens=[2, known])}), where=where)


def test_each_language_of_a_translator_has_words_of_its_own():
    shape = TransformerConfig(30, 9, width=16, heads=4, share_embeddings="target")
    model, plan = Transformer(shape), Plan({0: pattern("tokens", tokens=[20])})
    hw.guide(model, {"encoder.*": plan, "*.cross": plan}).undo()
    with pytest.raises(ValueError, match="the decoder knows tokens 0 to 8"):
        hw.guide(model, plan, where="decoder.*.self")


def test_each_stack_of_two_models_has_words_of_its_own():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 16}  # fmt: skip
    both = [BertConfig(vocab_size=words, **sizes) for words in (40, 90)]
    config = EncoderDecoderConfig.from_encoder_decoder_configs(*both)
    model = hw.adopt(EncoderDecoderModel(config))
    plan = Plan({0: pattern("tokens", tokens=[80])})
    hw.guide(model, plan, where="decoder.*.self").undo()
    with pytest.raises(ValueError, match="the encoder knows tokens 0 to 39"):
        hw.guide(model, plan, where="encoder.*")


def test_a_model_that_does_not_tell_its_vocabulary_is_believed():
    hw.guide(Toy(), Plan({0: pattern("tokens", tokens=[99_999])})).undo()
