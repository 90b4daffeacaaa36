"""The strictest and the loosest of several policies. Knows their answers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from fsd_decoding.adaptive.composing import Composed, Scaled, check_no_budget
from fsd_decoding.threshold_policy import Array, RoundState, ThresholdPolicy


class _Extreme(Composed):
    def combined(self, answers: Sequence[Tensor], state: RoundState) -> Tensor:
        return self._extreme(answers)

    def _extreme(self, answers: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError


class _ScaledExtreme(Scaled, _Extreme):
    def traced(self, columns: Mapping[str, Array]) -> Array:
        scales = [torch.from_numpy(part.traced(columns)) for part in self.parts]
        found: Array = self._extreme(self._shared(scales)).numpy()
        return found


class Min(_Extreme):
    """The smallest T of its policies, row by row and token by token: what all of them accept."""

    def _extreme(self, answers: Sequence[Tensor]) -> Tensor:
        return reduce(torch.minimum, answers)


class Max(_Extreme):
    """The largest T of its policies: what any of them accepts. None of them may be a budget."""

    def __init__(self, *policies: ThresholdPolicy) -> None:
        super().__init__(*policies)
        check_no_budget(self)

    def _extreme(self, answers: Sequence[Tensor]) -> Tensor:
        return reduce(torch.maximum, answers)


class ScaledMin(_ScaledExtreme, Min):
    """`Min` of scale policies."""

    name: ClassVar = "min"


class ScaledMax(_ScaledExtreme, Max):
    """`Max` of scale policies."""

    name: ClassVar = "max"


Min.scaled, Max.scaled = ScaledMin, ScaledMax
ScaledMin.__name__, ScaledMax.__name__ = "Min", "Max"  # errors name what users wrote
