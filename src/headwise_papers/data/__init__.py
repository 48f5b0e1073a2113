"""Data of the papers: public sets, generated ones, vocabularies and batches.

- `toy`: a pair of generated languages whose structure is known word by word.
- `synthetic`: generated tasks of the output relevance and training dynamics papers.
- `vocabulary`, `subword`: words and subword tokens to ids and back; `glove`: word vectors.
- `classification`: IMDB, AG News, 20 Newsgroups, SST, Amazon and Yelp, to classify.
- `bags`: SST and other labelled sentences as tensors.
- `tasks`: texts, pairs of texts and tagged words to fine-tune on.
- `translation`: parallel corpora; `batches`: padded batches.
- `pretraining`: texts to pre-train on; `masking`: blocks of them, masked or replaced.
- `characters`: enwik8 and other texts as bytes.
- `captions`: Flickr8k.
- `annotations`: treebanks, gold word alignments and reflexives by name; `coreference`: GAP,
  WinoBias, Winogender and LitBank.
- `marian`: model files of Marian.
- `provenance`: checksums, tables and downloads; `source`: files of public sets.

Each part is imported from its own module, so that torch is loaded only where it is needed.
"""

__all__: list[str] = []
