"""One plain line for each measure of a head that Headwise knows."""

EXPLANATIONS = {
    "confidence": "Mean of the largest weight over queries, padding and end-of-sentence left out: "
    "near 1 when the head looks at one word at a time.",
    "entropy": "Mean entropy of the weights over queries, in nats: 0 when a head looks at one key, "
    "large when it looks everywhere.",
    "offset": "Where the head looks most often, as key position minus query position: "
    "\N{MINUS SIGN}1 is the word before, 0 the word itself, +1 the word after.",
    "offset_share": "Share of the queries whose largest weight lies at that offset: "
    "near 1 for a head that goes by position.",
    "first_share": "Share of the queries whose largest weight lies on the first position.",
    "special_mass": "Mean weight on special tokens such as begin- and end-of-sentence: "
    "large when a head rests there.",
    "alignment": "Share of the queries whose largest weight lies on a word that is their gold "
    "translation.",
    "coreference": "Share of the pronouns whose largest weight lies on the word they stand for.",
    "role": "What the head does, named after the measure in which it stands out.",
    "bleu": "BLEU of the translations while this head is switched off.",
    "bleu_drop": "How much BLEU falls when this head alone is switched off; "
    "negative when translations get better without it.",
    "accuracy": "Accuracy while this head is switched off.",
    "accuracy_drop": "How much accuracy falls when this head alone is switched off; "
    "negative when the model is better without it.",
    "loss_rise": "How much the loss rises when this head alone is switched off.",
}

RELATIONS = {
    "nsubj": ("subject", "verb"),
    "obj": ("object", "verb"),
    "amod": ("adjective", "noun"),
    "advmod": ("adverb", "modified word"),
}


def explain(column: str) -> str | None:
    """What a column of a head table means, or None when Headwise does not know it.

    >>> explain("nsubj_to_head")
    'Share of subjects whose largest weight lies on their verb (relation nsubj).'
    """
    relation, _, direction = column.partition("_")
    if relation in RELATIONS and direction in ("to_head", "to_dependent", "from_head"):
        dependent, governor = RELATIONS[relation]
        looks, at = (dependent, governor) if direction == "to_head" else (governor, dependent)
        return f"Share of {looks}s whose largest weight lies on their {at} (relation {relation})."
    return EXPLANATIONS.get(column)
