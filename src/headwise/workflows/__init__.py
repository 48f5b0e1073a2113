"""Workflows that join the parts of the library: `inspect` a model's heads, `prune` them."""
