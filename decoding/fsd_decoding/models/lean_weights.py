"""Linear layers with one input, as one product of copied weights or by the modules' own calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fsd_decoding.models.products import Product


class Linears(ABC):
    """Linear layers with one input, whose outputs are joined."""

    @staticmethod
    def of(modules: Sequence[Any], packed: bool) -> Linears:
        return Packed(modules) if packed else Separate(modules)

    @abstractmethod
    def __call__(self, states: Tensor) -> Tensor:
        """(N, inputs) -> (N, outputs)."""

    @abstractmethod
    def plus(self, residual: Tensor, states: Tensor) -> Tensor:
        """Returns `residual` (N, outputs) plus the outputs."""


class Separate(Linears):
    """Calls the modules, whatever they are: quantised ones too."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self._modules = modules

    def __call__(self, states: Tensor) -> Tensor:
        outputs = [module(states) for module in self._modules]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def plus(self, residual: Tensor, states: Tensor) -> Tensor:
        return residual + self(states)


class Packed(Linears):
    """Copies the weights, transposed and joined, so that there is one product.

    Args:
        modules: instances of `torch.nn.Linear` of one dtype and device.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        self._modules = modules
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
            weight = module.weight if module.weight.dtype == torch.float64 else module.weight.float()
            yield torch.mv(weight, _factors(weight.shape[1], weight.dtype, weight.device))
            if module.bias is not None:
                yield module.bias.to(weight.dtype)

    def __call__(self, states: Tensor) -> Tensor:
        return self._product(states, self._bias)

    def plus(self, residual: Tensor, states: Tensor) -> Tensor:
        if self._bias is not None:
            residual = residual + self._bias
        return self._product(states, residual)

    @torch.inference_mode(False)  # else they could not be written again outside of it
    @torch.no_grad()
    def _joined(self) -> tuple[Tensor, Tensor | None]:
        """The joined weight (inputs, outputs) and bias (outputs,), as new tensors."""
        weight = torch.cat([module.weight for module in self._modules]).t().contiguous()
        biases = [_bias(module) for module in self._modules]
        given = [bias for bias in biases if bias is not None]
        if not given:
            return weight, None
        zeros = [module.weight.new_zeros(module.out_features) for module in self._modules]
        return weight, torch.cat([zero if b is None else b for zero, b in zip(zeros, biases, strict=True)])


def _bias(module: Any) -> Tensor | None:
    bias: Tensor | None = module.bias
    return bias


@cache
def _factors(number: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random numbers in [1, 2), all different in practice, so that weights cannot change places unseen."""
    with torch.inference_mode(False):
        return (1 + torch.rand(number, generator=torch.Generator().manual_seed(0), dtype=dtype)).to(device)
