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


class _Trees(NamedTuple):
    """T complete trees of as many levels, with n inner nodes each.

    All nodes are compared at once. A leaf is reached where as many comparisons on its path hold as are to the right
    there, and none of the others: counted by +1 and by -1.
    """

    column: Tensor  # (T, n)
    threshold: Tensor  # (T, n)
    leaf: Tensor  # (T, n + 1)
    paths: Tensor  # (n, n + 1) of each inner node and leaf: 1 where its path goes right, -1 left, 0 if not through it
    rights: Tensor  # (n + 1,) how often the path of each leaf goes right

    def logit(self, features: Tensor) -> Tensor:
        """Returns what the trees add: (…) of features (…, F)."""
        right = (features[..., self.column] > self.threshold).float()
        reached = right @ self.paths == self.rights
        return (reached * self.leaf).sum((-2, -1))


def _paths(depth: int) -> Tensor:
    """See `_Trees.paths`; nodes and leaves are in the order of their levels."""
    inner = (1 << depth) - 1
    paths = torch.zeros(inner, inner + 1)
    for leaf in range(inner + 1):
        node = inner + leaf
        while node:
            node, is_right = (node - 1) // 2, node % 2 == 0
            paths[node, leaf] = 1.0 if is_right else -1.0
    return paths


class OnDevice(NamedTuple):
    """A model's numbers on a device; None where it has no such part."""

    offset: float
    line: tuple[Tensor, ...] | None
    trees: _Trees | None

    @classmethod
    def of(cls, offset: float, line: Line, trees: Trees, device: torch.device) -> OnDevice:
        """Moves the parts of a model to a device."""

        def moved(values: Sequence[Any], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(device)

        pieces = moved(line.column, torch.long), moved(line.low), moved(line.high), moved(line.weight)
        paths = _paths(trees.depth).to(device)
        nodes = moved(trees.column, torch.long), moved(trees.threshold), moved(trees.leaf)
        compared = _Trees(*nodes, paths, paths.clamp_min(0.0).sum(0)) if trees.leaf else None
        return cls(offset, pieces if line.column else None, compared)

    def logit(self, features: Tensor) -> Tensor:
        """Returns the logits (…) of features (…, F) in fp32, without waiting for the device."""
        logit: Tensor | float = self.offset
        if self.line is not None:
            column, low, high, weight = self.line
            logit = torch.minimum(torch.maximum(features[..., column], low), high) @ weight + logit
        if self.trees is not None:
            logit = self.trees.logit(features) + logit
        return logit if isinstance(logit, Tensor) else features.new_full(features.shape[:-1], logit)


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
