"""Products of activations with a weight, on a CPU by the library that computes them faster."""

from __future__ import annotations

import math
import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from fsd_decoding.graphs.tracing import in_graph

_LARGE = 1 << 20
"""Multiplications from which oneDNN gains more than its call costs, which is about 10 µs above MKL's."""

_CPUINFO = Path("/proc/cpuinfo")


class Product:
    """Multiplies states by one weight.

    Args:
        weight: (inputs, outputs); it may be written to later, but not replaced.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self._many = _rows_for_onednn(weight)

    def __call__(self, states: Tensor, added: Tensor | None = None) -> Tensor:
        """Returns `states @ weight`, plus what is added.

        Args:
            states: (N, inputs).
            added: (N, outputs) or (outputs,).
        """
        if states.shape[0] >= self._many and not in_graph():  # Inductor chooses for itself, and fails on this call
            outputs: Tensor = torch.ops.mkldnn._linear_pointwise(states, self.weight.t(), None, "none", [], "")
            return outputs if added is None else outputs.add_(added)
        return torch.mm(states, self.weight) if added is None else torch.addmm(added, states, self.weight)


def _rows_for_onednn(weight: Tensor) -> float:
    """The number of rows from which oneDNN computes a product."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not mkl_is_slow():
        return math.inf
    return max(2, math.ceil(_LARGE / max(weight.numel(), 1)))


@cache
def mkl_is_slow() -> bool:
    """Whether this is a CPU of AMD's with AVX-512, where MKL, PyTorch's choice in fp32, reaches half of oneDNN's speed.

    It is asked of the processor, not of a clock: which products are taken decides the last bits of logits.
    """
    capable = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return capable and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available() and _is_amd()


def _is_amd() -> bool:
    about = _CPUINFO.read_text() if _CPUINFO.exists() else platform.processor()
    return "AuthenticAMD" in about
