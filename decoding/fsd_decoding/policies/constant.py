"""The constant T as a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fsd_common.argument_checks import number
from fsd_decoding.policies.rounds import RoundState
from fsd_decoding.policies.scale import Shape
from fsd_decoding.policies.threshold import Array


class Constant(Shape):
    """One T for every token. Gives the same texts, rounds and intervals as the plain number."""

    name: ClassVar = "constant"
    columns = ("position",)

    def __init__(self, threshold: float) -> None:
        self.threshold = number("threshold", threshold)
        self.identity = self.describe()

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(0.0, **parameters)

    def scales(self, state: RoundState) -> Tensor:
        return torch.ones_like(state.proposal.thresholds)

    def traced(self, columns: Mapping[str, Array]) -> Array:
        return np.ones(len(columns["position"]))
