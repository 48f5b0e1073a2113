"""Data: the generated toy language, text files, vocabularies and batches.

- `headwise_papers.data.toy`: a pair of generated languages whose structure is known word by word.
- `headwise_papers.data.vocabulary`: words to numbers and back.
- `headwise_papers.data.padding`, `headwise.text.batching`: padding, and batches of similar length.
- `headwise.text.corpus`: text files, line by line.
- `headwise_papers.data.labelled`: IMDB, AG News, 20 Newsgroups, SST, Amazon and Yelp, to classify.
- `headwise_papers.data.translation`, `headwise_papers.data.subword`: parallel corpora in pieces of words;
  which there are says `headwise_papers.data.corpora`.
- `headwise_papers.data.pretraining`, `headwise_papers.data.byte_pieces`: texts to pre-train on, and pieces over
  bytes; `headwise_papers.data.packing`, `headwise_papers.data.masking`: blocks, and what is to be guessed.
- `headwise_papers.data.characters`: enwik8 and other texts as bytes.
- `headwise_papers.data.captions`: Flickr8k.
- `headwise_papers.data.glove`: word vectors.
- `headwise.text.treebank`, `headwise_papers.data.treebanks`: dependency trees, and sets by name.
- `headwise.text.coreference`, `headwise.text.mentions`: GAP, WinoBias, Winogender and LitBank.
- `headwise.text.words`, `headwise.text.frequencies`: words of plain text, and how common they are.
- `headwise.text.source`, `headwise_papers.data.provenance`: files of public sets, and downloads.

Each part is imported from its own module, so that torch is loaded only where it is needed.
"""

__all__: list[str] = []
