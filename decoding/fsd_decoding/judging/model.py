"""A judge as plain data: a small model of P(a mismatch changes the outcome). Without torch, as profiles hold it."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fsd_common.argument_checks import named
from fsd_common.digests import facts_digest
from fsd_common.errors import UsageError
from fsd_common.files import atomic_write, read_regular
from fsd_common.packed_ids import PATTERN, unpack_ids
from fsd_common.strict_json import parse_versioned
from fsd_decoding.meanings import LEARNED

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
    """Of the texts that it was learned from, like what follows."""
    top_k: int | None = None
    """null: off."""
    top_p: float | None = None
    """null: off."""
    min_p: float | None = None
    """null: off."""
    repetition_penalty: float = 1.0
    """1: off."""
    phase: tuple[str | int, str | int] | None = None
    """The markers, texts or tokens, between which the phase is that a feature tells of. null: none does."""
    task: str
    """The task that it was learned on."""
    labels: Annotated[int, Field(ge=1)]
    """How many labelled mismatches it was learned from."""
    trained: Annotated[str, Field(pattern=PATTERN)]
    """Ids of the problems that were read for them, also of those that have no mismatch to label, as whole numbers of 8
    bytes in base64."""

    @model_validator(mode="after")
    def _columns_are_features(self) -> Self:
        columns = {*self.line.column, *(each for tree in self.trees.column for each in tree)}
        if max(columns, default=0) >= max(len(self.features), 1):
            raise ValueError(f"a column is {max(columns)}, and there are {len(self.features)} features")
        return self

    @cached_property
    def name(self) -> str:
        """The score's name: "judge@" and a number that follows from the whole model."""
        return f"{LEARNED}@{int(facts_digest(self.model_dump(mode='json'))[:13], 16):016d}"

    @property
    def trained_ids(self) -> frozenset[int]:
        """Ids of the problems that were read for its labels."""
        return unpack_ids(self.trained)

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
