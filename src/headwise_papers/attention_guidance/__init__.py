"""Attention guidance: heads that are told where to look while they learn."""
