"""Attention of sample sentences, checked and packed for the page."""

from typing import Any


def attention_data(trace: Any) -> list[dict[str, Any]]:
    """The sentences of `trace/attention.json`, with weights in thousandths to save space.

    A query's [[key, weight], ...] becomes [key, thousandths, key, thousandths, ...].

    >>> attention_data({"sentences": [{"tokens": {"encoder": ["a", "b"]},
    ...     "sites": {"encoder.0.self": [[[[0, 1.0]], [[0, 0.25], [1, 0.75]]]]}}]})[0]["sites"]
    {'encoder.0.self': [[[0, 1000], [0, 250, 1, 750]]]}
    """
    try:
        sentences = [_sentence(sentence) for sentence in trace["sentences"]]
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise ValueError(
            "trace/attention.json must hold sentences with tokens by stack, and sites with "
            f"[key, weight] pairs by head and query, but it does not ({problem}); make it again."
        ) from None
    return [sentence for sentence in sentences if sentence["sites"]]


def _sentence(sentence: Any) -> dict[str, Any]:
    return {
        "tokens": {
            str(stack): [str(token) for token in tokens]
            for stack, tokens in sentence["tokens"].items()
        },
        "sites": {
            str(site): [[_packed(query) for query in head] for head in heads]
            for site, heads in sentence["sites"].items()
            if heads
        },
        # heads that the sentence is a good example of, if it says so
        **({"examples": list(map(str, sentence["examples"]))} if "examples" in sentence else {}),
    }


def _packed(pairs: Any) -> list[int]:
    packed: list[int] = []
    for key, weight in pairs:
        packed += [int(key), round(1000 * float(weight))]
    return packed
