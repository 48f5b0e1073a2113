"""Text that workflows read: words, treebanks, coreference sets and files of public data."""

from headwise.text.batching import Epochs, batches_by_length, rounded_up
from headwise.text.coreference import coreference_file, coreference_parts
from headwise.text.corpus import all_lines, read_lines
from headwise.text.frequencies import WordRanks
from headwise.text.mentions import Mention, Passage, make_mention
from headwise.text.source import DataFile, data_folder, github, write_whole
from headwise.text.treebank import Tree, read_treebank, trees_in
from headwise.text.words import characters_for, first_words, words_in

__all__ = [
    "DataFile",
    "Epochs",
    "Mention",
    "Passage",
    "Tree",
    "WordRanks",
    "all_lines",
    "batches_by_length",
    "characters_for",
    "coreference_file",
    "coreference_parts",
    "data_folder",
    "first_words",
    "github",
    "make_mention",
    "read_lines",
    "read_treebank",
    "rounded_up",
    "trees_in",
    "words_in",
    "write_whole",
]
