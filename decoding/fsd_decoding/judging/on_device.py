"""A judge's numbers on a device, and the logit that they give."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.judging.features import TABLE
from fsd_decoding.judging.model import JudgeModel, Line, Trees
from fsd_decoding.judging.token_classes import CLASSES


def packed_classes(classes: Tensor) -> str:
    """Returns classes (V,) uint8 as `JudgeModel.classes` holds them."""
    return base64.b64encode(zlib.compress(classes.numpy().tobytes(), 9)).decode()


class OnDevice(NamedTuple):
    """A judge's numbers on a device; None where it has no such part."""

    classes: Tensor
    offset: float
    line: tuple[Tensor, ...] | None
    trees: tuple[Tensor, ...] | None
    depth: int

    @classmethod
    def of(
        cls, offset: float, line: Line, trees: Trees, device: torch.device, classes: Tensor | None = None
    ) -> OnDevice:
        """Moves the parts of a model to a device."""

        def moved(values: Sequence[Any], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(device)

        pieces = moved(line.column, torch.long), moved(line.low), moved(line.high), moved(line.weight)
        nodes = moved(trees.column, torch.long), moved(trees.threshold), moved(trees.leaf)
        known = torch.zeros(0, dtype=torch.uint8) if classes is None else classes
        return cls(
            known.to(device), offset, pieces if line.column else None, nodes if trees.leaf else None, trees.depth
        )

    def logit(self, features: Tensor) -> Tensor:
        """Returns the logits (…) of features (…, F) in fp32, without waiting for the device."""
        logit = torch.full_like(features[..., 0], self.offset)
        if self.line is not None:
            column, low, high, weight = self.line
            logit = logit + torch.minimum(torch.maximum(features[..., column], low), high) @ weight
        return logit if self.trees is None else logit + self._of_trees(features)

    def _of_trees(self, features: Tensor) -> Tensor:
        assert self.trees is not None
        column, threshold, leaf = self.trees
        trees, inner = threshold.shape
        node = torch.zeros((*features.shape[:-1], trees), dtype=torch.long, device=features.device)
        root = torch.arange(0, trees * inner, max(inner, 1), device=features.device)  # of each tree among all nodes
        for _ in range(self.depth):
            at = root + node
            node = 2 * node + 1 + (features.gather(-1, column.take(at)) > threshold.take(at))
        first = torch.arange(trees, device=features.device) * (inner + 1) - inner
        return leaf.take(first + node).sum(-1)


def unpacked_classes(model: JudgeModel, vocabulary: int) -> Tensor:
    """Returns the class of every token, (V,) uint8, empty where no feature needs them.

    UsageError: they are damaged, or of fewer tokens than the vocabulary has.
    """
    if not any(TABLE[name].classed for name in model.features):
        return torch.zeros(0, dtype=torch.uint8)
    try:
        content = np.frombuffer(zlib.decompress(base64.b64decode(model.classes, validate=True)), np.uint8)
    except (ValueError, zlib.error) as error:
        raise UsageError(f"the tokens' classes of {model.name} are damaged ({error}); train it again") from error
    if content.max(initial=0) >= len(CLASSES):
        raise UsageError(f"a token of {model.name} has class {content.max()}; there are {len(CLASSES)}: train it again")
    if len(content) < vocabulary:
        raise UsageError(
            f"{model.name} has classes of {len(content)} tokens, and there are {vocabulary}: train it again"
        )
    return torch.from_numpy(content.copy())
