"""Text that workflows read: words, treebanks, coreference sets and files of public data."""

__all__: list[str] = []
