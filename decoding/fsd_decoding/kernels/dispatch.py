"""Choice between fused kernels and PyTorch operations. Triton is only imported where a kernel may be used."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import torch
from torch import Tensor

from fsd_decoding.graphs.tracing import in_graph

INTERPRETED = False  # tests set it under TRITON_INTERPRET=1, to run whole engines with interpreted kernels on a CPU

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_works: dict[int, bool] = {}  # GPU index -> whether Triton works there


def kernels_support(*logits: Tensor) -> bool:
    """Whether kernels can read these logits.

    They must be on the current GPU, and Triton must work there (or interpret). The vocabulary must be contiguous in
    memory, and no gradient required.
    """
    if not all(_readable(tensor) for tensor in logits):
        return False
    if INTERPRETED:
        return True
    if not all(tensor.is_cuda and tensor.device.index == torch.cuda.current_device() for tensor in logits):
        return False  # kernels are launched on the current GPU
    if not in_graph():
        probe_triton(logits[0].device)
    return _works.get(logits[0].device.index, False)


def probe_triton(device: torch.device) -> None:
    """Tests once per GPU whether Triton works there; it needs a C compiler for its driver. Not possible in a graph."""
    if device.type != "cuda" or device.index in _works or find_spec("triton") is None:
        return
    from fsd_decoding.kernels.scan import scan

    try:
        with torch.cuda.device(device):
            scan(torch.zeros(1, 1, 2, device=device))
        _works[device.index] = True
    except Exception as error:  # whatever it is, PyTorch's operations take over
        _works[device.index] = False
        reason = " ".join(str(error).split())
        warnings.warn(f"Triton does not work on {device}, so decoding is slower: {reason:.200}", stacklevel=2)


def _readable(logits: Tensor) -> bool:
    needs_gradient = torch.is_grad_enabled() and logits.requires_grad
    return logits.dtype in _DTYPES and logits.stride(-1) == 1 and not needs_gradient
