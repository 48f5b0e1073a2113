"""Explanations of the measures that Headwise knows, one for each."""

EXPLANATIONS = {
    "confidence": "Mean of the largest weight over queries, padding and end-of-sentence left out: "
    "near 1 when the head attends to one word at a time.",
    "entropy": "Mean entropy of the weights over queries, in nats: 0 when a head attends to one "
    "key, large when it attends everywhere.",
    "offset": "Where the head attends most often, as key position minus query position: "
    "\N{MINUS SIGN}1 is the word before, 0 the word itself, +1 the word after.",
    "offset_share": "Share of the queries whose largest weight lies at that offset, of those that "
    "have a word there: near 1 for a head that goes by position.",
    "first_share": "Share of the queries whose largest weight lies on the first position.",
    "special_mass": "Mean weight on special tokens such as begin- and end-of-sentence: "
    "large when a head attends mostly to them.",
    "relevance": "What the head adds to the logit of the predicted token, by layer-wise relevance "
    "propagation (LRP): positive when it supports the prediction, negative when it opposes it. For "
    "each prediction, the absolute values of a layer's heads sum to 1; this is the mean of the "
    "signed ones. The only head of a layer has its share of the logit instead.",
    "gradient_importance": "Mean size of the change in loss, to first order, if the head's output "
    "were removed (Michel et al., 2019).",
    "output_norm": "How much the head writes into the residual stream: norm of what it adds, "
    "relative to what the heads of the layer add together.",
    "rarest": "Share of the queries whose largest weight lies on the rarest word of the sentence, "
    "where that word is not among the 500 most common.",
    "two_rarest": "Share of the queries whose largest weight lies on one of the two rarest words "
    "of the sentence, where the rarest is not among the 500 most common.",
    "punctuation": "Share of the queries whose largest weight lies on punctuation other than "
    "the query itself, of those that can attend to some; a decoder sees only punctuation before "
    "the query.",
    "first_word": "Share of the queries whose largest weight lies on the first word.",
    "previous": "Share of the queries whose largest weight lies on the word before.",
    "next": "Share of the queries whose largest weight lies on the word after.",
    "duplicate": "Share of the repeated words whose largest weight lies on an earlier occurrence "
    "of the same word.",
    "induction": "Share of the repeated words whose largest weight lies on the word that followed "
    "an earlier occurrence: high for a head that continues a pattern.",
    "alignment": "Share of the queries whose largest weight lies on a word that is their gold "
    "translation.",
    "coreference": "Share of the mentions whose largest weight lies on a word of their antecedent.",
    "coreference_pronoun": "Share of the pronouns whose largest weight lies on a word of their "
    "antecedent.",
    "coreference_proper": "Share of the repeated names whose largest weight lies on an earlier "
    "mention of the same entity.",
    "coreference_nominal": "Share of the mentions by a common noun whose largest weight lies on an "
    "earlier mention of the same entity.",
    "original": "Name of the head before the model was pruned; its name now counts the heads "
    "that are left.",
    "role": "Strongest role of the head, named after the measure that stands out most.",
    "roles": "All roles of the head; a head has a role only if the whole interval is above the "
    "threshold.",
    "bleu": "BLEU of the translations while this head is switched off.",
    "bleu_drop": "How much BLEU falls when this head alone is switched off; "
    "negative when translations get better without it.",
    "accuracy": "Accuracy while this head is switched off.",
    "accuracy_drop": "How much accuracy falls when this head alone is switched off; "
    "negative when the model is better without it.",
    "loss_rise": "How much the loss rises when this head alone is switched off.",
    "ablation": "How much the loss rises when this head alone is switched off.",
    "ablation_importance": "How much the loss rises when this head alone is switched off.",
    "output_change": "How much the outputs change when this head alone is switched off, relative "
    "to their size.",
    "prediction_change": "Share of the predictions that change when this head alone is switched "
    "off.",
}

RELATIONS = {
    "nsubj": ("subject", "verb"),
    "obj": ("object", "verb"),
    "amod": ("adjective", "noun"),
    "advmod": ("adverb", "modified word"),
}


def explain(column: str) -> str | None:
    """Return the meaning of a column of a head table; None when Headwise does not know it.

    >>> explain("nsubj_to_head")
    'Share of subjects whose largest weight lies on their verb (relation nsubj).'
    >>> explain("case_to_dependent")
    'Share of heads whose largest weight lies on their dependent (relation case).'
    """
    relation, _, direction = column.partition("_")
    if relation and direction in ("to_head", "to_dependent", "from_head"):
        dependent, governor = RELATIONS.get(relation, ("dependent", "head"))
        looks, at = (dependent, governor) if direction == "to_head" else (governor, dependent)
        return f"Share of {looks}s whose largest weight lies on their {at} (relation {relation})."
    return EXPLANATIONS.get(column)
