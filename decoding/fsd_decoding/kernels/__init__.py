"""Fused kernels for GPUs, in Triton. What each computes is defined elsewhere, by PyTorch operations, which also run
where there is no Triton: `divergence.py` for divergences, `noise.py` and `sampling.py` for choices.

Not measured on a GPU yet. On a CPU, numerics are tested in Triton's interpreter (`TRITON_INTERPRET=1`), and that they
compile for GPUs.
"""
