"""Measures of single papers: output relevance, score and norm, alignment, classification."""
