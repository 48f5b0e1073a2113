"""Ops of single papers: stacked LSTMs, output relevance, score and norm."""
