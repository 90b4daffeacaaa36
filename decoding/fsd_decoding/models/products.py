"""Products of activations and weights, on a CPU by the library that computes them faster."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from fsd_decoding.graphs.tracing import in_graph

_LARGE = 1 << 20
"""Multiplications from which oneDNN gains more than its call costs, which is about 10 µs above MKL's."""

_CPUINFO = Path("/proc/cpuinfo")


def product(states: Tensor, weight: Tensor, added: Tensor | None = None) -> Tensor:
    """Returns `states @ weight`, plus what is added.

    Args:
        states: (N, inputs).
        weight: (inputs, outputs).
        added: (N, outputs) or (outputs,).
    """
    if _is_for_onednn(states, weight):
        outputs: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight.t(), None, "none", [], "")
        return outputs if added is None else outputs.add_(added)
    return states @ weight if added is None else torch.addmm(added, states, weight)


def _is_for_onednn(states: Tensor, weight: Tensor) -> bool:
    large = len(states) > 1 and len(states) * weight.numel() >= _LARGE
    plain = states.device.type == "cpu" and states.dtype == torch.float32
    return large and plain and not in_graph() and mkl_is_slow()  # Inductor chooses for itself, and fails on this call


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
