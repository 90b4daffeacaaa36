"""Whether logits are a kernel's to read. Knows devices and types; imports Triton for nobody who has no use for it."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import torch
from torch import Tensor

from fsd_decoding.graphs.tracing import in_graph

INTERPRETED = False  # set where TRITON_INTERPRET=1 is meant for engines too: kernels then run on a CPU, slowly

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_works: dict[int, bool] = {}  # by the GPU's number


def serves(*logits: Tensor) -> bool:
    """On the current GPU where Triton works, or where it interprets; tokens must lie side by side in memory, and no
    gradient be asked for."""
    if not all(_readable(one) for one in logits):
        return False
    if INTERPRETED:
        return True
    if not all(one.is_cuda and one.device.index == torch.cuda.current_device() for one in logits):
        return False  # a kernel is launched on the current one
    if not in_graph():
        prepare(logits[0].device)
    return _works.get(logits[0].device.index, False)


def prepare(device: torch.device) -> None:
    """Tries Triton on a GPU, once: it compiles a driver of its own, which takes a C compiler. Graphs cannot try."""
    if device.type != "cuda" or device.index in _works or find_spec("triton") is None:
        return
    from fsd_decoding.kernels.scan import scan

    try:
        with torch.cuda.device(device):
            scan(torch.zeros(1, 1, 2, device=device))
        _works[device.index] = True
    except Exception as error:  # whatever it is, PyTorch's operations do the same
        _works[device.index] = False
        reason = " ".join(str(error).split())
        warnings.warn(f"Triton does not work here, so that decoding is slower: {reason:.200}", stacklevel=2)


def _readable(logits: Tensor) -> bool:
    learning = torch.is_grad_enabled() and logits.requires_grad
    return logits.dtype in _DTYPES and logits.stride(-1) == 1 and not learning
