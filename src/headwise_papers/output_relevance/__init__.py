"""Experiments of "Understanding Attention Training via Output Relevance"."""
