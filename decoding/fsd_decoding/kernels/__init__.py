"""Fused GPU kernels in Triton, for divergences, entropies and sampling.

Each computes what PyTorch operations define elsewhere and also compute where there is no Triton: `divergence.py` for
divergences, `noise.py` and `sampling.py` for choices. They have not been measured on a GPU yet. On a CPU, tests check
their numerics in Triton's interpreter (`TRITON_INTERPRET=1`), and that they compile for GPUs.
"""
