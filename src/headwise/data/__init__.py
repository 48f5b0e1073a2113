"""Data: the generated toy language, text files, vocabularies and batches.

- `headwise.data.toy`: a pair of generated languages whose structure is known word by word.
- `headwise.data.vocabulary`: words to numbers and back.
- `headwise.data.batching`: padding, and batches of sequences of similar length.
- `headwise.data.corpus`: text files, line by line.
- `headwise.data.labelled`: IMDB, AG News, 20 Newsgroups, SST, Amazon and Yelp, to classify.
- `headwise.data.translation`, `headwise.data.subword`: parallel corpora in pieces of words;
  which there are says `headwise.data.corpora`.
- `headwise.data.pretraining`, `headwise.data.byte_pieces`: texts to pre-train on, and pieces over
  bytes; `headwise.data.packing`, `headwise.data.masking`: blocks, and what is to be guessed.
- `headwise.data.characters`: enwik8 and other texts as bytes.
- `headwise.data.captions`: Flickr8k.
- `headwise.data.glove`: word vectors.
- `headwise.data.treebank`, `headwise.data.parsing`: dependency trees, annotated or predicted.
- `headwise.data.coreference`, `headwise.data.mentions`: GAP, WinoBias, Winogender and LitBank.
- `headwise.data.words`, `headwise.data.frequencies`: words of plain text, and how common they are.
- `headwise.data.source`, `headwise.data.fetching`: files of public sets, checked, or downloaded.

Each part is imported from its own module, so that torch is loaded only where it is needed.
"""

__all__: list[str] = []
