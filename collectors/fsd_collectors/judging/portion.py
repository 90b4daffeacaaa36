"""The labels of some problems: their texts first, then wave after wave of swaps, and the tables of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from fsd_collectors.collection.along_target import Completion
from fsd_collectors.collection.portions import Completions
from fsd_collectors.judging.chains import Chain, Label, Outcome, Swap, left_to_right, quotas, single
from fsd_collectors.judging.reading import Mismatches, ReadText
from fsd_collectors.judging.work import Done, Piece
from fsd_collectors.judging.writing import Begun, Written
from fsd_collectors.manifest import LabelManifest
from fsd_collectors.schema import Column
from fsd_collectors.split import Identified
from fsd_decoding.batch import Request
from fsd_decoding.judging.features import PAST
from fsd_decoding.judging.past import past_of
from fsd_decoding.policies.markers import Automaton


@dataclass(frozen=True)
class Own:
    """A problem with the target's own text."""

    problem: Identified
    request: Request
    text: Written
    read: ReadText
    correct: bool

    def swappable(self, mode: str) -> Mismatches:
        """Its mismatches that can have a label.

        A wrong answer cannot become worse; and where y is the last token, nothing follows whose likelihood may change.
        """
        found = self.read.mismatches
        if mode == "outcome":
            return found if self.correct else found[:0]
        return found[found.position < self.text.emitted - 1]


class LabelledPortion:
    """The problems of a portion on the way to their labels.

    Args:
        manifest: the run's.
        number: of the portion.
        requests: for their texts.
        grade: of a problem, the text and the target's own text.
        reading: reads the phase of texts, if they have one.
    """

    def __init__(
        self, manifest: LabelManifest, number: int, problems: Sequence[Identified], requests: Sequence[Request],
        grade: Callable[[Identified, str, str], bool], reading: Automaton | None,
    ) -> None:  # fmt: skip
        self._manifest, self.number, self._problems, self._grade = manifest, number, problems, grade
        self._reading = reading
        self.first = Piece(number, [Begun(request) for request in requests], read=True)
        self.own: list[Own] = []
        self.quotas: list[int] = []
        self._chains: dict[int, Chain] = {}  # that still ask, by the problem's place
        self._asked: dict[int, list[Swap]] = {}
        self.mode = manifest.mode
        self._labels: dict[int, list[Label]] = {}

    def begin(self, done: Done) -> None:
        """Takes the texts of `first`."""
        for problem, begun, text, read in zip(self._problems, self.first.begun, done.texts, done.read, strict=True):
            correct = self._grade(problem, text.text, text.text)
            self.own.append(Own(problem, begun.request, text, read, correct))

    def share(self, budget: int) -> int:
        """Takes as much of a budget of positions as it can use, and returns that."""
        most = self._manifest.per_problem
        places = [own.swappable(self.mode) for own in self.own]
        usable = [len(each) if most is None else min(len(each), most) for each in places]
        self.quotas, shares = quotas(usable, budget, self._random("portion", self.number))
        search = left_to_right if self._manifest.swaps == "left-to-right" else single
        for place, (own, mismatches, quota, share) in enumerate(
            zip(self.own, places, self.quotas, shares, strict=True)
        ):
            random = self._random("problem", own.problem.id)
            self._chains[place] = search(own.text.tokens, mismatches, quota, share, random)
            self._go_on(place, None)
        return sum(self.quotas)

    def wave(self) -> Piece | None:
        """The swaps that can be made now; None: all labels are there."""
        if not self._asked:
            return None
        swaps = [(self.own[place], swap) for place, asked in self._asked.items() for swap in asked]
        if self.mode == "self":
            return Piece(self.number, given=[_swapped(own, swap) for own, swap in swaps])
        begun = [Begun(own.request, swap.tokens) for own, swap in swaps]
        return Piece(self.number, begun, read=self._manifest.swaps == "left-to-right")

    def take(self, done: Done) -> int:
        """Takes the outcomes of a wave, and returns how many there are."""
        asked, self._asked = self._asked, {}
        outcome = self._changed if self.mode == "self" else self._continued
        count = 0
        for place, swaps in asked.items():
            outcomes = [outcome(self.own[place], swap, done, count + i) for i, swap in enumerate(swaps)]
            count += len(swaps)
            self._go_on(place, outcomes)
        return count

    def tables(self) -> dict[str, pa.Table]:
        """The tables of the portion."""
        completions = Completions(
            self._manifest, [own.problem.id for own in self.own], ["tuning"] * len(self.own),
            [own.request.prompt for own in self.own], [own.text for own in self.own],
            [own.correct for own in self.own],
        )  # fmt: skip
        rows = [(self.own[place], label) for place in sorted(self._labels) for label in self._labels[place]]
        return {
            "labels": _table(self._manifest, rows, self._reading),
            "completions": completions.table(quota=self.quotas),
        }

    def _go_on(self, place: int, outcomes: list[Outcome] | None) -> None:
        chain = self._chains[place]
        try:
            self._asked[place] = next(chain) if outcomes is None else chain.send(outcomes)
        except StopIteration as end:
            self._labels[place] = end.value

    def _continued(self, own: Own, swap: Swap, done: Done, index: int) -> Outcome:
        """What became of the answer."""
        text = done.texts[index]
        harmful = not self._grade(own.problem, text.text, own.text.text)
        behind = len(swap.tokens)
        mismatches = done.read[index].mismatches.moved(behind) if done.read else None
        return Outcome(float(harmful), max(text.emitted - behind, 0), text.tokens, mismatches)

    def _changed(self, own: Own, swap: Swap, done: Done, index: int) -> Outcome:
        """How much less likely the target's own text is behind the swap."""
        before, after = own.read.log_p[swap.position + 1 :], done.read[index].log_p
        return Outcome(float(after.mean(dtype=np.float64) - before.mean(dtype=np.float64)), len(after))

    def _random(self, what: str, number: int) -> Random:
        """Numbers that depend on nothing but the run's seed and what they are for."""
        return Random(f"{self._manifest.seed} {what} {number}")


def _swapped(own: Own, swap: Swap) -> Completion:
    """The target's own text behind a swap."""
    begun = Begun(own.request, swap.tokens)
    return own.text.behind(begun)


def _table(manifest: LabelManifest, rows: Sequence[tuple[Own, Label]], reading: Automaton | None) -> pa.Table:
    """The labels of problems as a table."""
    labels = [label for _, label in rows]
    at = _joined([label.swap.at for label in labels])
    past = [
        past_of(label.swap.position, label.swap.replaced, [*own.request.prompt, *label.swap.context], reading)
        for own, label in rows
    ]
    features = np.column_stack([at.features, np.reshape(past, (-1, len(PAST)))])
    values: dict[str, Any] = {
        "run": [manifest.run] * len(rows), "problem": [own.problem.id for own, _ in rows],
        "split": ["tuning"] * len(rows), "position": at.position, "drafted": at.drafted, "target_choice": at.choice,
        "before": at.before, "context": [label.swap.context for label in labels],
        "probability": [label.swap.probability for label in labels],
        "stayed": [label.stayed for label in labels], "spent": [label.outcome.spent for label in labels],
        "harmful": [label.outcome.label == 1.0 for label in labels],
        "change": [label.outcome.label for label in labels],
        **dict(zip(manifest.features, features.T, strict=True)),
    }  # fmt: skip
    columns = manifest.tables["labels"]
    return pa.Table.from_arrays([_array(each, values[each.name]) for each in columns], [each.name for each in columns])


def _joined(parts: Sequence[Mismatches]) -> Mismatches:
    if not parts:
        return Mismatches.none()
    return Mismatches(
        *(np.concatenate(values) for values in zip(*(vars(part).values() for part in parts), strict=True))
    )


def _array(column: Column, values: Any) -> pa.Array:
    whole = values.astype(column.type.to_pandas_dtype()) if isinstance(values, np.ndarray) else values
    return pa.array(whole, column.type)
