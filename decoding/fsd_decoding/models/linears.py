"""Linear layers with one input (queries, keys and values; gate and up) as one product.

Their weights are laid side by side in one tensor, and the layers' own parameters become parts of it: nothing is kept
twice, and what is written to a parameter is in the product. Small models in fp32 on a CPU are copied instead, since MKL
multiplies few rows by a transposed weight in half the time.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fsd_decoding.graphs.callers import in_graph
from fsd_decoding.models.pages import Pages

_LARGE = 1 << 20
"""Multiplications from which oneDNN gains more than its call costs, which is about 10 µs above MKL's."""

_FEW = 64
"""Rows up to which a product in bf16 on a CPU takes a fifth to a third less with the states as columns."""

_CPUINFO = Path("/proc/cpuinfo")


class Linears:
    """Linear layers with one input, whose outputs are joined.

    Args:
        modules: the layers, which are called, whatever they are: quantised ones too.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        self._modules = modules

    def __call__(self, states: Tensor) -> Tensor:
        """(N, inputs) -> (N, outputs)."""
        outputs = [module(states) for module in self._modules]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def plus(self, residual: Tensor, states: Tensor) -> Tensor:
        """Returns `residual` (N, outputs) plus the outputs."""
        return residual + self(states)


class _One(Linears):
    """Plain linear layers as one product."""

    _product: Product
    _bias: Tensor | None  # (outputs,)

    def __call__(self, states: Tensor) -> Tensor:
        return self._product(states, self._bias)

    def plus(self, residual: Tensor, states: Tensor) -> Tensor:
        if self._bias is not None:
            residual = residual + self._bias
        return self._product(states, residual)


class Joined(_One):
    """Plain linear layers as one product, with their own weights.

    Args:
        modules: what `can_join` accepts.
        pages: where weights that are not side by side yet are copied to; None: wherever there is memory.
    """

    def __init__(self, modules: Sequence[Any], pages: Pages | None = None) -> None:
        super().__init__(modules)
        self._product = Product(_side_by_side([module.weight for module in modules], pages).t())
        has_bias = modules[0].bias is not None
        self._bias = _side_by_side([module.bias for module in modules], pages) if has_bias else None


class Copied(_One):
    """Plain linear layers as one product with copies of their weights, transposed.

    Args:
        modules: what `can_join` accepts.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        super().__init__(modules)
        weight, self._bias = self._joined()
        self._product = Product(weight)

    def refresh(self) -> None:
        """Copies the weights anew, in place."""
        weight, bias = self._joined()
        self._product.weight.copy_(weight)
        if self._bias is not None and bias is not None:
            self._bias.copy_(bias)

    def sums(self) -> Iterator[Tensor]:
        """Yields each output's weighted sum of its weights, and the biases: what a change of the modules' own shows in.

        A change that is lost in the rounding of such a sum is lost in that of a forward pass too.
        """
        for module in self._modules:
            yield torch.mv(module.weight, _factors(module.weight.shape[1], module.weight.dtype))
            if module.bias is not None:
                yield module.bias

    @torch.inference_mode(False)  # else they could not be written again outside of it
    @torch.no_grad()
    def _joined(self) -> tuple[Tensor, Tensor | None]:
        """The joined weight (inputs, outputs) and bias (outputs,), as new tensors."""
        weight = torch.cat([module.weight for module in self._modules]).t().contiguous()
        has_bias = self._modules[0].bias is not None
        return weight, torch.cat([module.bias for module in self._modules]) if has_bias else None


@cache
def _factors(number: int, dtype: torch.dtype) -> Tensor:
    """Random numbers in [1, 2), all different in practice, so that weights cannot change places unseen."""
    with torch.inference_mode(False):
        return 1 + torch.rand(number, generator=torch.Generator().manual_seed(0), dtype=dtype, device="cpu")


def can_join(modules: Sequence[Any]) -> bool:
    """Whether layers are PyTorch's own, of one dtype and device, with biases all or none.

    Their weights must be PyTorch's own kind of tensor, too: torchao puts quantised ones into unchanged layers.
    """
    first = modules[0]
    return all(
        type(module) is nn.Linear
        and type(module.weight) is nn.Parameter
        and type(module.weight.data) is Tensor
        and not module.weight.is_inference()  # which only inference mode may write to
        and (module.weight.dtype, module.weight.device) == (first.weight.dtype, first.weight.device)
        and (module.bias is None) == (first.bias is None)
        for module in modules
    )


@torch.inference_mode(False)
@torch.no_grad()
def _side_by_side(parameters: Sequence[nn.Parameter], pages: Pages | None) -> Tensor:
    """Returns parameters joined along their first axis, and makes each a part of that tensor, if they are not yet."""
    parts = [parameter.data for parameter in parameters]
    joined = _joined_already(parts)
    if joined is None:
        joined = torch.cat(parts) if pages is None else pages.cat(parts)
        for parameter, part in zip(parameters, joined.split([len(part) for part in parts]), strict=True):
            parameter.data = part
    return joined


def _joined_already(parts: Sequence[Tensor]) -> Tensor | None:
    """The tensor of which these are the parts along the first axis, one after the other; None: there is none."""
    first, at = parts[0], parts[0].data_ptr()
    for part in parts:
        together = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (together and part.is_contiguous() and part.data_ptr() == at):
            return None
        at += part.nbytes
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


class Product:
    """Multiplies states by one weight.

    Args:
        weight: (inputs, outputs), of any strides; it may be written to later, but not replaced.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self._many = _rows_for_onednn(weight)
        self._few = _FEW if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 else 0

    def __call__(self, states: Tensor, added: Tensor | None = None) -> Tensor:
        """Returns the states times the weight, plus what is added.

        Args:
            states: (N, inputs).
            added: (N, outputs) or (outputs,).
        """
        if in_graph():  # Inductor chooses for itself
            outputs = None
        elif states.shape[0] >= self._many:
            outputs = self._by_onednn(states)
        elif states.shape[0] <= self._few:
            outputs = self._by_columns(states)
        else:
            outputs = None
        if outputs is not None:
            return outputs if added is None else outputs.add_(added)
        return torch.mm(states, self.weight) if added is None else torch.addmm(added, states, self.weight)

    def _by_columns(self, states: Tensor) -> Tensor:
        if len(states) == 1:
            return torch.mv(self.weight.t(), states[0])[None]
        return torch.mm(self.weight.t(), states.t()).t().contiguous()

    def _by_onednn(self, states: Tensor) -> Tensor:
        outputs: Tensor = torch.ops.mkldnn._linear_pointwise(states, self.weight.t(), None, "none", [], "")
        return outputs


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
