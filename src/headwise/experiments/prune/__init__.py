"""Pruning heads: the second half of the paper on specialised heads, and beyond it."""
