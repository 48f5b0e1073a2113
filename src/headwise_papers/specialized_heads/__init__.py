"""Specialized heads: which heads of a model matter, and what they do."""
