"""Text that workflows read: words, treebanks, mentions and batches."""

from headwise.text.batching import Epochs, batches_by_length, rounded_up
from headwise.text.corpus import all_lines, read_lines
from headwise.text.frequencies import WordRanks
from headwise.text.mentions import CoreferenceSet, Mention, Passage, make_mention
from headwise.text.treebank import Tree, read_treebank, trees_in
from headwise.text.words import characters_for, first_words, words_in

__all__ = [
    "CoreferenceSet",
    "Epochs",
    "Mention",
    "Passage",
    "Tree",
    "WordRanks",
    "all_lines",
    "batches_by_length",
    "characters_for",
    "first_words",
    "make_mention",
    "read_lines",
    "read_treebank",
    "rounded_up",
    "trees_in",
    "words_in",
]
