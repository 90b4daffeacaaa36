"""A judge: a small model of P(a mismatch changes the outcome), as plain data for files, and on a device."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from fsd_common.argument_checks import named
from fsd_common.digests import facts_digest
from fsd_common.errors import UsageError
from fsd_common.files import atomic_write, read_regular
from fsd_common.packed_ids import PATTERN, unpack_ids
from fsd_common.strict_json import parse_versioned
from fsd_decoding.judging.features import TABLE
from fsd_decoding.judging.token_classes import CLASSES
from fsd_decoding.scores import LEARNED

SCHEMA_VERSION: Final = 1
FEATURES_VERSION: Final = 1  # raised when a feature's formula changes
_LARGEST = 1 << 26  # bytes of a file
_DEEPEST = 8  # levels of a tree
_Numbers = tuple[float, ...]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Line(_Part):
    """The sum of piecewise linear functions of features: weight * min(max(x, low), high) for each piece."""

    column: tuple[Annotated[int, Field(ge=0)], ...]
    """Of each piece the feature, by its place."""
    low: _Numbers
    """Where each piece begins."""
    high: _Numbers
    """Where it ends."""
    weight: _Numbers
    """Its slope."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        if len({len(self.column), len(self.low), len(self.high), len(self.weight)}) > 1:
            raise ValueError("column, low, high and weight of a line have different lengths")
        return self


class Trees(_Part):
    """Complete binary trees, each in the order of its levels: right where x > threshold."""

    column: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...]
    """Of each tree and inner node the feature, by its place."""
    threshold: tuple[_Numbers, ...]
    """Of each tree and inner node."""
    leaf: tuple[_Numbers, ...]
    """Of each tree and leaf what it adds to the logit."""

    @property
    def depth(self) -> int:
        """The number of levels of inner nodes."""
        return len(self.leaf[0]).bit_length() - 1 if self.leaf else 0

    @model_validator(mode="after")
    def _trees_are_complete(self) -> Self:
        leaves = 1 << self.depth
        whole = all(len(each) == leaves - 1 for each in (*self.column, *self.threshold))
        whole &= all(len(each) == leaves for each in self.leaf) and self.depth <= _DEEPEST
        if not whole or len({len(self.column), len(self.threshold), len(self.leaf)}) > 1:
            raise ValueError(f"trees are not complete, or deeper than {_DEEPEST} levels")
        return self


class JudgeModel(_Part):
    """P(a mismatch changes the outcome), of a target, a draft and a task; see docs/judge.md."""

    schema_version: Literal[1] = SCHEMA_VERSION
    """Version of this schema."""
    features_version: Literal[1] = FEATURES_VERSION
    """Version of the features' definitions."""
    features: tuple[str, ...]
    """The features that it reads, by name."""
    offset: float
    """What the logit begins with."""
    line: Line = Line(column=(), low=(), high=(), weight=())
    """What is added to it: piecewise linear functions,"""
    trees: Trees = Trees(column=(), threshold=(), leaf=())
    """and boosted trees."""
    classes: str = ""
    """Of every token of the vocabulary its class, as bytes that zlib compressed, in base64. Empty: no feature needs
    it."""
    kind: str
    """How it was learned: logistic or boosted."""
    target: str
    """Fingerprint of the target."""
    draft: str
    """Fingerprint of the draft."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    temperature: float
    """Of the texts that it was learned from."""
    task: str
    """The task that it was learned on."""
    labels: Annotated[int, Field(ge=1)]
    """How many labelled mismatches it was learned from."""
    trained: Annotated[str, Field(pattern=PATTERN)]
    """Ids of the problems that they are of, as whole numbers of 8 bytes in base64."""

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if unknown := [name for name in self.features if name not in TABLE]:
            raise ValueError(f"unknown feature {unknown[0]!r}")
        columns = {*self.line.column, *(each for tree in self.trees.column for each in tree)}
        if max(columns, default=0) >= max(len(self.features), 1):
            raise ValueError(f"a column is {max(columns)}, and there are {len(self.features)} features")
        if self.classes and int(self.token_classes.max()) >= len(CLASSES):
            raise ValueError("a token has an unknown class")
        if not self.classes and any(TABLE[name].classed for name in self.features):
            raise ValueError("features of tokens' classes need `classes`")
        return self

    @cached_property
    def name(self) -> str:
        """The score's name: "judge@" and a number that follows from the whole model."""
        return f"{LEARNED}@{int(facts_digest(self.model_dump(mode='json'))[:13], 16):016d}"

    @property
    def token_classes(self) -> Tensor:
        """(V,) uint8, empty where no feature needs them. ValueError: they are damaged."""
        if not self.classes:
            return torch.zeros(0, dtype=torch.uint8)
        try:
            content = zlib.decompress(base64.b64decode(self.classes, validate=True))
        except zlib.error as error:
            raise ValueError(f"classes are damaged: {error}") from error
        return torch.from_numpy(np.frombuffer(content, np.uint8).copy())

    @property
    def trained_ids(self) -> frozenset[int]:
        """Ids of the problems that it was trained on."""
        return unpack_ids(self.trained)

    @property
    def reads_context(self) -> bool:
        """Whether it reads the text before the drafted token."""
        return any(TABLE[name].context for name in self.features)

    def on(self, device: torch.device) -> OnDevice:
        """Returns its numbers on a device."""
        return OnDevice.of(self.offset, self.line, self.trees, device, self.token_classes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it into a file."""
        with atomic_write(Path(path)) as file:
            file.write(self.model_dump_json(indent=1).encode() + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file that `save` wrote, or that of a folder. UsageError: it is missing or damaged."""
        file = Path(path) / f"{LEARNED}.json" if Path(path).is_dir() else Path(path)
        name = f"{named('judge')} {str(file)!r}"
        try:
            content = read_regular(file, _LARGEST)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"{name} cannot be read: {reason}; give the file that a training wrote") from error
        return cls.parsed(json.dumps(parse_versioned(content, name, SCHEMA_VERSION, "a judge")), name)

    @classmethod
    def parsed(cls, text: str, name: str) -> Self:
        """Returns the judge that JSON describes. UsageError: it is none; `name` is what the message calls it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{name} is not a judge: {where}: {first['msg']}; train it again") from error


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
        node = torch.zeros((*features.shape[:-1], len(leaf)), dtype=torch.long, device=features.device)
        tree = torch.arange(len(leaf), device=features.device)
        for _ in range(self.depth):
            value = features.gather(-1, column[tree, node])
            node = 2 * node + 1 + (value > threshold[tree, node])
        return leaf[tree, node - (leaf.shape[1] - 1)].sum(-1)
