"""The ledger of certification attempts: how often problems were certified on, and which were tuned on.

It is not a cache: deleting it voids the certificates issued afterwards on the same problems. Several processes may use
one file at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fsd_calib.certification.ledger_file import (
    Entry,
    LedgerFile,
    Numbered,
    Numbers,
    Run,
    as_set,
    known,
    numbers,
)
from fsd_calib.storage.sqlite_file import DamageError
from fsd_common.errors import UsageError


def attempt_level(confidence: float, number: int) -> float:
    """Returns the significance level of attempt `number`; the levels of all attempts sum to 1 - confidence.

    So all attempts on one problem together keep the promised confidence. Unlike in Tian and Ramdas's online fallback
    procedure (2021), an attempt that passes does not hand its level on to a later one: that procedure is valid for
    hypotheses fixed beforehand, not where a user chooses the next goal by the last result (docs/benchmarks.md has the
    figures).
    """
    return (1 - confidence) * 6 / (math.pi**2 * number**2)


def next_number(entries: Sequence[Entry], requested: Numbers) -> int:
    """Returns the number of a further attempt on these problems: one more than the attempts that share a problem."""
    own = (entry for entry in entries if not entry.continues)
    return 1 + sum(bool(known(requested, entry.problems).any()) for entry in own)


class AttemptLedger:
    """The ledger in a file, or in memory.

    Attempts are grouped by family, see `fsd_decoding.models.fingerprint.family_id` of a target. Drafts, divergences, T
    and the name of the task are choices within a family. A problem is known where an earlier row has its content key.

    Raises:
        UsageError: The file is damaged or of another version, or cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = LedgerFile(path)

    def tuned_on(self, family: str, problems: Iterable[Numbered]) -> None:
        """Records problems that influenced a choice: no later attempt of the family may certify on them."""
        requested = as_set(numbers(problems))
        with self._file.transaction():
            new = requested[~known(requested, self._file.tuned(family))]
            if len(new):
                self._file.add_tuned(family, new)

    def open(
        self, family: str, problems: Iterable[Numbered], frozen: str, run: Run | None = None,
        continued: int | None = None,
    ) -> Attempt:  # fmt: skip
        """Returns the attempt to certify `frozen`, a text of the whole sequence, the claim and its confidence.

        The same family, problems and `frozen` are the same attempt, with the same number. Problems are the same where
        both ids and keys are.

        Args:
            run: Recorded with the attempt.
            continued: Number of the attempt that this is a part of, whose own text says what it goes on with. It goes
                on once: with another text, of another version of a library for instance, this is an attempt of its own,
                as it is where this is None.

        Raises:
            UsageError: There are no problems, or some were tuned on before a verdict was recorded.
        """
        requested = as_set(numbers(problems))
        if not len(requested):
            raise UsageError("an attempt has 0 problems; it needs at least 1 to certify on")
        with self._file.transaction():
            entries = self._file.attempts(family)
            begun = None if continued is None else _begun(entries, requested, continued)
            frozen, number = _as_part(entries, begun, frozen) or (frozen, next_number(entries, requested))
            entry = _decided_first([e for e in entries if e.frozen == frozen and np.array_equal(e.problems, requested)])
            if entry is None or entry.verdict is None:
                self._require_untuned(family, requested)
            if entry is None:
                entry = self._file.add_attempt(Entry(family, requested, frozen, number))
            if run is not None and entry.place not in self._file.runs(run.name):
                self._file.add_run(run, entry.place)
        return Attempt(self, entry)

    def next_number(self, family: str, problems: Iterable[Numbered], continued: int | None = None) -> int:
        """Returns the number that a further attempt on these problems would have; for `continued` see `open`."""
        requested = numbers(problems)
        with self._file.naming_errors():
            entries = self._file.attempts(family)
        begun = None if continued is None else _begun(entries, requested, continued)
        went_on = begun is not None and any(entry.frozen.startswith(begun.beginning) for entry in entries)
        return next_number(entries, requested) if begun is None or went_on else begun.number

    def facts_of(self, family: str, run: str) -> str | None:
        """Returns the facts recorded of the run of that name; None: it made no attempt."""
        with self._file.naming_errors():
            entry = self._entry_of_run(family, run)
            return None if entry is None else self._file.runs(run)[entry.place].facts

    def usable(self, family: str, problems: Iterable[Numbered], run: str) -> NDArray[np.bool_]:
        """Returns, (n,), which of the problems the run may certify on.

        These are the problems of its attempt where that is decided, else those that were never tuned on.
        """
        requested = numbers(problems)
        with self._file.naming_errors():
            entry = self._entry_of_run(family, run)
            if entry is not None and entry.verdict is not None:
                return known(requested, entry.problems)
            return ~known(requested, self._file.tuned(family))

    def best_case(self, family: str, problems: Iterable[Numbered], confidence: float) -> tuple[int, float]:
        """Returns the most problems and the highest level that an attempt on these problems can have.

        It may be a new attempt, or a decided one that is repeated.
        """
        requested = numbers(problems)
        with self._file.naming_errors():
            entries, untuned = self._file.attempts(family), requested[~known(requested, self._file.tuned(family))]
        repeatable = [e for e in entries if e.verdict is not None and known(e.problems, requested).all()]
        number = min([next_number(entries, untuned), *(e.number for e in repeatable)])
        return max([len(untuned), *(len(e.problems) for e in repeatable)]), attempt_level(confidence, number)

    def _entry_of_run(self, family: str, run: str) -> Entry | None:
        """Returns the attempt that the run of that name made; of several, a decided one."""
        places = self._file.runs(run)  # read first: another process may be adding an attempt and its run
        entries = {e.place: e for e in self._file.attempts(family)}
        if not entries.keys() >= places.keys():
            raise DamageError(f"an attempt of run {run} is gone")
        return _decided_first([entries[place] for place in places])

    def _decide(self, attempt: Entry, verdict: str) -> str:
        """Records the verdict, unless there is one; returns the one that stands."""
        with self._file.transaction():
            entry = next((e for e in self._file.attempts(attempt.family) if e.place == attempt.place), None)
            if entry is None:
                raise DamageError(f"attempt {attempt.place} is gone")
            if entry.verdict is not None:
                return entry.verdict
            self._require_untuned(entry.family, entry.problems)
            self._file.change_attempt(replace(entry, verdict=verdict))
            return verdict

    def _require_untuned(self, family: str, requested: Numbers) -> None:
        tuned = int(known(requested, self._file.tuned(family)).sum())
        if tuned:
            raise UsageError(
                f"{tuned} of {len(requested)} certification problems were tuned on before and cannot be certified "
                "on; leave them out, or use others"
            )

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Attempt:
    """One attempt on a certification part, decided once.

    Attributes:
        number: 1 for the first attempt on its problems.
        verdict: None until it is decided.
    """

    def __init__(self, ledger: AttemptLedger, entry: Entry) -> None:
        self.number, self.verdict = entry.number, entry.verdict
        self._ledger, self._entry = ledger, entry
        self._decided = False

    def level(self, confidence: float) -> float:
        """Returns the significance level of its test."""
        return attempt_level(confidence, self.number)

    def decide(self, verdict: str) -> str:
        """Records the verdict, unless another process or an earlier run has; returns the one that stands, the first.

        Raises:
            UsageError: The attempt was decided before by this object, or its problems were tuned on meanwhile.
        """
        if self._decided:
            raise UsageError(f"attempt {self.number} is decided already; another decision needs a new attempt")
        self.verdict = self._ledger._decide(self._entry, verdict)
        self._decided = True
        return self.verdict


def _begun(entries: Sequence[Entry], requested: Numbers, number: int) -> Entry:
    """Returns the attempt that goes on with these problems. UsageError: there is none that is decided."""
    for entry in entries:
        whole = not entry.continues and entry.number == number and bool(known(requested, entry.problems).all())
        if whole and entry.verdict is not None:
            return entry
    raise UsageError(
        f"attempt {number} is not decided on these problems, so nothing can go on from it; certify it first"
    )


def _as_part(entries: Sequence[Entry], begun: Entry | None, frozen: str) -> tuple[str, int] | None:
    """Returns text and number of a row that goes on from an attempt; None: it does not, or went on otherwise."""
    if begun is None:
        return None
    text = begun.beginning + frozen
    parts = {entry.frozen for entry in entries if entry.frozen.startswith(begun.beginning)}
    return (text, begun.number) if parts <= {text} else None


def _decided_first(entries: Sequence[Entry]) -> Entry | None:
    return min(entries, key=lambda entry: entry.verdict is None, default=None)
