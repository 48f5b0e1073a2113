"""Data: the generated toy language, text files, vocabularies and batches.

- `headwise.data.toy`: a pair of generated languages whose structure is known word by word.
- `headwise.data.vocabulary`: words to numbers and back.
- `headwise.data.batching`: padding, and batches of sequences of similar length.
- `headwise.data.corpus`: text files, line by line.

Each part is imported from its own module, so that only `batching` needs torch.
"""

__all__: list[str] = []
