"""What the report says of a measure holds for what is measured."""

import torch

from headwise.analysis.gold import punctuation_gold
from headwise.analysis.propagation import head_relevance, top_class
from headwise.recording.columns import column_of
from headwise_papers.models.transformer import Transformer, TransformerConfig


def test_relevance_is_explained_as_it_is_computed():
    said = column_of("relevance").meaning
    assert "For each prediction, the absolute values of a layer's heads sum to 1" in said
    assert "mean of the signed ones" in said and "only head of a layer" in said
    model = Transformer(TransformerConfig(20, 20, width=8, heads=4, feed_forward=16)).eval()
    source, target, lengths = (
        torch.randint(20, (1, 6)),
        torch.randint(20, (1, 5)),
        torch.tensor([6]),
    )
    places = torch.tensor([[0, step] for step in range(5)])
    found = head_relevance(model, lambda: model(source, lengths, target), top_class(places))
    for values_NH in found.values():
        torch.testing.assert_close(values_NH.abs().sum(1), torch.ones(5))
    assert any(values_NH.mean(0).abs().sum() < 0.999 for values_NH in found.values())


def test_punctuation_is_explained_as_it_is_asked_for_in_decoders():
    assert "a decoder sees only punctuation before the query" in column_of("punctuation").meaning
    (gold,) = punctuation_gold([["yes", ",", "it", "is", "."]], "decoder.self")
    assert gold.right.tolist() == [[0, 2, 1], [0, 3, 1], [0, 4, 1]]
