"""Text that inspections read: words, treebanks, coreference, and files of public sets."""

__all__: list[str] = []
