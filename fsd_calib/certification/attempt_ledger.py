"""The ledger of attempts to certify: how often problems were asked, and which must not be asked (DESIGN section 10).

It is no cache: whoever deletes it voids the certificates that came after those it counted. Several processes may use
one file at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fsd_calib.certification import earlier_ledger
from fsd_calib.certification.ledger_file import Entry, LedgerFile, Numbered, Numbers, Run, as_set, known, numbers
from fsd_calib.storage.sqlite_file import DamageError
from fsd_decoding.errors import UsageError

# MERGED: """The level of each attempt, so that all attempts that ask one problem keep the promise together."""


def attempt_level(confidence: float, number: int) -> float:
    """The level of attempt `number`: over all attempts these sum to 1 - confidence (DESIGN section 10).

    What passes hands its level on to no other attempt, as it might by Tian and Ramdas's online fallback (2021): that
    holds for attempts fixed beforehand that claim no more than what was wanted, and not where the next wish is chosen
    by what the last one showed (docs/calibration.md has the figures).
    """
    return (1 - confidence) * 6 / (math.pi**2 * number**2)


def next_number(entries: Sequence[Entry], asked: Numbers) -> int:
    """Of another attempt on these problems, after all attempts that there are."""
    return 1 + sum(bool(known(asked, entry.problems).any()) for entry in entries)


__all__ = ["Attempt", "Ledger", "Run"]


class AttemptLedger:
    """A ledger in a file, or in memory for who keeps none.

    A family is a target, by its fingerprint: drafts, divergences, T and the name of the task are choices. Problems are
    told by ids and content keys: one is known where a row before has either number.

    Raises:
        UsageError: the file is damaged or of another version, or it cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = LedgerFile(path)

    def take_over(self, path: Path) -> bool:
        """See `earlier_ledger.take_over`."""
        return earlier_ledger.take_over(path, self._file)

    def tuned_on(self, family: str, problems: Iterable[Numbered]) -> None:
        """Remembers problems that had a say in a choice: no attempt of the family may ask them afterwards."""
        asked = as_set(numbers(problems))
        with self._file.alone():
            new = asked[~known(asked, self._file.tuned(family))]
            if len(new):
                self._file.add_tuned(family, new)

    def tuned_on_repeats(self, family: str, groups: Iterable[Sequence[Numbered]]) -> None:
        """Remembers all problems of a group where one of them had a say: they ask the same."""
        with self._file.named():
            tuned = self._file.tuned(family)
        self.tuned_on(family, [one for group in groups if known(numbers(group), tuned).any() for one in group])

    def open(self, family: str, problems: Iterable[Numbered], frozen: str, run: Run | None = None) -> Attempt:
        """The attempt to certify `frozen`, which holds the whole sequence, the claim and its confidence.

        The same family, problems and `frozen` are the same attempt again, with its number. Problems are the
        same where ids and keys both are: of an attempt that was taken over keys are not known, and where any differs
        from its id, this is another attempt. `run` is remembered with it.

        Raises:
            UsageError: there are no problems, or some were tuned on and no verdict was there before that.
        """
        asked = as_set(numbers(problems))
        if not len(asked):
            raise UsageError("an attempt has 0 problems; it needs at least 1 to certify on")
        with self._file.alone():
            entries = self._file.attempts(family)
            entry = _decided_first([e for e in entries if e.frozen == frozen and np.array_equal(e.problems, asked)])
            if entry is None or entry.verdict is None:
                self._require_untuned(family, asked)
            if entry is None:
                entry = self._file.add_attempt(Entry(family, asked, frozen, next_number(entries, asked)))
            if run is not None and entry.place not in self._file.runs(run.name):
                self._file.add_run(run, entry.place)
        return Attempt(self, entry)

    def next_number(self, family: str, problems: Iterable[Numbered]) -> int:
        """The number that another attempt on these problems would have now."""
        with self._file.named():
            return next_number(self._file.attempts(family), numbers(problems))

    def facts_of(self, family: str, run: str) -> str | None:
        """What was remembered of the run of that name; None: it made no attempt."""
        with self._file.named():
            entry = self._made_by(family, run)
            return None if entry is None else self._file.runs(run)[entry.place].facts

    def usable(self, family: str, problems: Iterable[Numbered], run: str) -> NDArray[np.bool_]:
        """(n,): which of the problems the run of that name may ask: those of its attempt, where that is decided, else
        those that were never tuned on."""
        asked = numbers(problems)
        with self._file.named():
            entry = self._made_by(family, run)
            if entry is not None and entry.verdict is not None:
                return known(asked, entry.problems)
            return ~known(asked, self._file.tuned(family))

    def at_best(self, family: str, problems: Iterable[Numbered], confidence: float) -> tuple[int, float]:
        """How many of these problems an attempt can have at most, and at most which level: another one, or one that
        is decided and may be asked for again."""
        asked = numbers(problems)
        with self._file.named():
            entries, untuned = self._file.attempts(family), asked[~known(asked, self._file.tuned(family))]
        again = [e for e in entries if e.verdict is not None and known(e.problems, asked).all()]
        number = min([next_number(entries, untuned), *(e.number for e in again)])
        return max([len(untuned), *(len(e.problems) for e in again)]), attempt_level(confidence, number)

    def _made_by(self, family: str, run: str) -> Entry | None:
        """The attempt that the run of that name made; of several a decided one."""
        places = self._file.runs(run)  # read first: another process may be adding an attempt and its run
        entries = {e.place: e for e in self._file.attempts(family)}
        if not entries.keys() >= places.keys():
            raise DamageError(f"an attempt of run {run} is gone")
        return _decided_first([entries[place] for place in places])

    def _decide(self, attempt: Entry, verdict: str) -> None:
        with self._file.alone():
            entry = next((e for e in self._file.attempts(attempt.family) if e.place == attempt.place), None)
            if entry is None:
                raise DamageError(f"attempt {attempt.place} is gone")
            if entry.verdict is not None:
                _require_same(entry, verdict)
                return
            self._require_untuned(entry.family, entry.problems)
            self._file.change_attempt(replace(entry, verdict=verdict))

    def _require_untuned(self, family: str, asked: Numbers) -> None:
        tuned = int(known(asked, self._file.tuned(family)).sum())
        if tuned:
            raise UsageError(
                f"{tuned} of {len(asked)} certification problems were tuned on before, so they can certify nothing; "
                "leave them out, or certify on others"
            )

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Attempt:
    """One attempt on a certification part, decided once. `number`: 1 is the first on its problems."""

    def __init__(self, ledger: AttemptLedger, entry: Entry) -> None:
        self.number, self.verdict = entry.number, entry.verdict
        self._ledger, self._entry = ledger, entry
        self._decided = False

    def level(self, confidence: float) -> float:
        """To test at."""
        return attempt_level(confidence, self.number)

    def decide(self, verdict: str) -> None:
        """Records the verdict.

        Raises:
            UsageError: this was called before; the attempt was decided in another run, otherwise; or its problems
                were tuned on meanwhile.
        """
        if self._decided:
            raise UsageError(f"attempt {self.number} is decided already; another decision needs a new attempt")
        self._ledger._decide(self._entry, verdict)
        self._decided, self.verdict = True, verdict


def _decided_first(entries: Sequence[Entry]) -> Entry | None:
    return min(entries, key=lambda entry: entry.verdict is None, default=None)


def _require_same(entry: Entry, verdict: str) -> None:
    if entry.verdict != verdict:
        raise UsageError(
            f"attempt {entry.number} was decided before as {entry.verdict!r:.200}, now it comes to {verdict!r:.200}; "
            "the first verdict stands: change the sequence or the claim for a new attempt"
        )
