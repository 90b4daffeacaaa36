"""From what was measured to the rows of a portion's tables.

Knows the schema and how its columns come about from completions, rounds and measured positions. Knows neither models
nor files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fsd_collectors.collection.on_policy import Drafted, Rounds
from fsd_collectors.manifest import Manifest
from fsd_collectors.schema import COMPLETIONS, ROUNDS, ROUNDS_BACK, Column, token_columns
from fsd_collectors.split import Part
from fsd_decoding.engine.result import Result

Array = NDArray[Any]


@dataclass(frozen=True)
class Completions:
    """A portion's problems and what became of them: as many entries each."""

    manifest: Manifest
    problems: Sequence[int]  # their ids
    splits: Sequence[Part]
    prompts: Sequence[Sequence[int]]
    results: Sequence[Result]
    correct: Sequence[bool]

    def table(self) -> pa.Table:
        results = self.results
        each = {name: [getattr(r, name) for r in results] for name in ("tokens", "text", "finish_reason", "emitted")}
        counts = {
            "rounds": [r.rounds for r in results],
            "proposed": [r.drafted for r in results],
            "accepted": [r.accepted for r in results],
            "prompt_tokens": [len(prompt) for prompt in self.prompts],
        }
        everyone = np.arange(len(results))
        return _table(COMPLETIONS, self._of(everyone) | each | counts)

    def along_target(self, owner: Array, position: Array, measured: dict[str, Array], states: Array | None) -> pa.Table:
        """Rows of tokens, of completions `owner` (N,) at `position` (N,), from 0."""
        always = np.ones(len(owner), dtype=np.bool_)
        given = {"position": position, "decided": always, "in_text": always, "draft_hidden": states}
        return _table(self._token_columns, self._of(owner) | given | measured)

    def rounds(self, rounds: Rounds) -> pa.Table:
        place = {"round": rounds.number, "position": self._in_completion(rounds)}
        same = ("proposed", "accepted", "batch", "draft_seconds", "verify_seconds")
        return _table(ROUNDS, self._of(rounds.owner) | place | {name: getattr(rounds, name) for name in same})

    def on_policy(self, rounds: Rounds, drafted: Drafted, measured: dict[str, Array]) -> pa.Table:
        """Rows of tokens; `measured` is `drafted.measured` by name."""
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
        return _table(self._token_columns, self._of(rounds.owner[at]) | place | history | measured)

    @property
    def _token_columns(self) -> tuple[Column, ...]:
        return token_columns(self.manifest.divergences, self.manifest.hidden)

    def _in_completion(self, rounds: Rounds) -> Array:
        """Where rounds begin, counted from the prompt's end."""
        lengths = np.array([len(prompt) for prompt in self.prompts])
        places: Array = rounds.position - lengths[rounds.owner]
        return places

    def _of(self, owner: Array) -> dict[str, Any]:
        """What every row of a completion repeats; `owner` is whose a row is."""
        taken = pa.array(owner)
        run = pa.repeat(self.manifest.run, len(owner))
        return {"run": run} | {name: values.take(taken) for name, values in self._repeated.items()}

    @cached_property
    def _repeated(self) -> dict[str, pa.Array]:
        return {
            "problem": pa.array(self.problems, pa.int64()),
            "split": pa.array(self.splits, pa.string()),
            "correct": pa.array(self.correct, pa.bool_()),
        }


def _table(columns: Sequence[Column], values: Mapping[str, Any]) -> pa.Table:
    """`values` by column; one that may be null is, where there is none of it."""
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
