"""Assembly of a portion's tables from its completions, rounds and measured positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fsd_collectors.collection.on_policy import DraftedTokens, Drafts, Rounds
from fsd_collectors.collection.protocols import Finished
from fsd_collectors.manifest import Manifest
from fsd_collectors.schema import ROUNDS_BACK, Column, tables_of

Array = NDArray[Any]


@dataclass(frozen=True)
class Completions:
    """A portion's problems and their completions; all sequences have one entry for each."""

    manifest: Manifest
    problems: Sequence[int]  # ids
    splits: Sequence[str]
    prompts: Sequence[Sequence[int]]
    results: Sequence[Finished]
    correct: Sequence[bool | None]

    def table(self) -> pa.Table:
        """Returns the table of completions."""
        results = self.results
        each = {name: [getattr(r, name) for r in results] for name in ("tokens", "text", "finish_reason", "emitted")}
        counts = {
            "rounds": [r.rounds for r in results],
            "proposed": [r.drafted for r in results],
            "accepted": [r.accepted for r in results],
            "prompt_tokens": [len(prompt) for prompt in self.prompts],
        }
        return _table(self._columns["completions"], self._repeat(np.arange(len(results))) | each | counts)

    def along_target(self, owner: Array, position: Array, measured: dict[str, Array], states: Array | None) -> pa.Table:
        """Returns the table of tokens of traces along the target.

        Args:
            owner: (N,) index of the completion.
            position: (N,) position in the completion, from 0.
            measured: (N,) each, by column.
            states: (N, width) hidden states.
        """
        always = np.ones(len(owner), dtype=np.bool_)
        facts = {"position": position, "decided": always, "in_text": always, "draft_hidden": states}
        return _table(self._columns["tokens"], self._repeat(owner) | facts | measured)

    def rounds(self, rounds: Rounds) -> pa.Table:
        """Returns the table of rounds."""
        place = {"round": rounds.number, "position": self._in_completion(rounds)}
        copied = ("proposed", "accepted", "batch", "draft_seconds", "verify_seconds")
        return _table(
            self._columns["rounds"],
            self._repeat(rounds.owner) | place | {name: getattr(rounds, name) for name in copied},
        )

    def on_policy(self, rounds: Drafts, drafted: DraftedTokens, measured: dict[str, Array]) -> pa.Table:
        """Returns the table of tokens drafted in decoding; `measured` is `drafted.measured` by column."""
        at = drafted.round_
        position = self._in_completion(rounds)[at] + drafted.place
        accepted = rounds.accepted[at]
        history = {f"accepted_{back}_back": rounds.accepted_back(back)[at] for back in range(1, ROUNDS_BACK + 1)}
        place = {
            "position": position,
            "round": rounds.number[at],
            "draft_position": drafted.place,
            "accepted": drafted.place < accepted,
            "decided": drafted.place <= accepted,
            "in_text": position < np.array([r.emitted for r in self.results])[rounds.owner[at]],
            "draft_hidden": drafted.states,
        }
        return _table(self._columns["tokens"], self._repeat(rounds.owner[at]) | place | history | measured)

    @cached_property
    def _columns(self) -> dict[str, tuple[Column, ...]]:
        return tables_of(self.manifest.way, self.manifest.divergences, self.manifest.hidden)

    def _in_completion(self, rounds: Drafts) -> Array:
        """Returns the positions in their completions where rounds begin."""
        lengths = np.array([len(prompt) for prompt in self.prompts])
        places: Array = rounds.position - lengths[rounds.owner]
        return places

    def _repeat(self, owner: Array) -> dict[str, Any]:
        """Returns the columns that all rows of a completion share, for rows of the completions `owner`."""
        indices = pa.array(owner)
        run = pa.repeat(self.manifest.run, len(owner))
        return {"run": run} | {name: values.take(indices) for name, values in self._shared.items()}

    @cached_property
    def _shared(self) -> dict[str, pa.Array]:
        return {
            "problem": pa.array(self.problems, pa.int64()),
            "split": pa.array(self.splits, pa.string()),
            "correct": pa.array(self.correct, pa.bool_()),
        }


def _table(columns: Sequence[Column], values: Mapping[str, Any]) -> pa.Table:
    """Builds a table; columns that `values` lacks are null."""
    count = len(values["problem"])
    arrays = [_array(c, values[c.name]) if c.name in values else pa.nulls(count, c.type) for c in columns]
    return pa.Table.from_arrays(arrays, names=[c.name for c in columns])


def _array(column: Column, values: Any) -> pa.Array:
    if not isinstance(values, np.ndarray):
        return values if isinstance(values, pa.Array) else pa.array(values, column.type)
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    whole = np.ma.getdata(values).astype(column.type.to_pandas_dtype())
    return pa.array(whole, column.type, mask=np.ma.getmaskarray(values) if np.ma.is_masked(values) else None)
