"""Experiments of "On the Dynamics of Training Attention Models" (Lu et al., ICLR 2021)."""
