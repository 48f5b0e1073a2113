"""Ops of single papers, and the names of all ops in settings."""
