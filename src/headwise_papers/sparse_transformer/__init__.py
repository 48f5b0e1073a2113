"""Explicit Sparse Transformer: attention to the k best keys alone, and what it is good for."""
