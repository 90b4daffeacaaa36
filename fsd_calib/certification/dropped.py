"""Problems of earlier attempts that are gone or changed: what was lost among them may count.

Who leaves out problems because an earlier attempt lost them, as bad labels say, certifies what is false: with a fifth
of them gone, a second attempt at 98 % is wrong in up to a quarter of the cases. So those that are gone count as lost
again, as far as they are more than a random choice of the problems would leave out. Where data are replaced as time
goes on, that is next to none.

What cannot be seen is not counted: an attempt without a verdict has no grades in the ledger, and of an attempt whose
problems are all gone none is left to compare with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from math import ceil
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fsd_calib.certification.attempt_ledger import Entry, Numbers, key_and_row, known, unchanged
from fsd_calib.certification.certificate import graded_in
from fsd_calib.certification.claim import Acc
from fsd_calib.certification.outcomes import Floats, Paired

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Dropped:
    """What became of the problems of earlier attempts.

    Attributes:
        problems: How many of those they graded are gone or have another answer.
        lost: How many of them they had lost.
        counted: How many count as lost again.
    """

    problems: int
    lost: int
    counted: int

    @classmethod
    def of_text(cls, text: str) -> Self | None:
        """Returns what a ledger keeps as `text`; None: nothing that was lost is gone."""
        return cls(*json.loads(text)) if text else None

    @property
    def text(self) -> str:
        return json.dumps(astuple(self))

    def __str__(self) -> str:
        said = (
            f"{self.problems} problems of earlier attempts are gone or have another answer; {self.lost} of them were "
            "lost"
        )
        return said + (f", {self.counted} more than chance, which count as lost" if self.counted else "")


def dropped(earlier: Sequence[Entry], requested: Numbers, acc: Acc) -> Dropped | None:
    """Returns what is gone of all earlier attempts together; None: none that shares a problem has lost any that is.

    A problem that is gone has the share of it that counts: its loss, times the part of such losses that is more than
    chance. Of several attempts, and settings that one of them tested, the largest share counts.

    Args:
        earlier: The attempts of the family before this one.
        requested: The problems that are to be certified on.
        acc: Lost is what the target solved and the fuzzy rule did not, or for "absolute" what it did not solve.
    """
    problem_of = dict[tuple[str, int], int]()  # by its key and its row: a problem counts once
    shares, losses = dict[int, float](), dict[int, float]()
    for entry in earlier:
        for gone, lost, share in _of(entry, requested, acc):
            for row, loss, counted in zip(entry.problems[gone], lost[gone], share[gone], strict=True):
                names = key_and_row(row)
                problem = next((problem_of[name] for name in names if name in problem_of), len(problem_of))
                problem_of |= dict.fromkeys(names, problem)
                losses[problem] = max(losses.get(problem, 0.0), loss)
                shares[problem] = max(shares.get(problem, 0.0), counted)
    if not sum(losses.values()):
        return None
    return Dropped(len(losses), round(sum(losses.values())), ceil(sum(shares.values()) - _ROUNDING))


def _of(entry: Entry, requested: Numbers, acc: Acc) -> Iterator[tuple[NDArray[np.intp], Floats, Floats]]:
    """Yields, for every setting that the attempt tested, which problems are gone or changed, (k,), and of all problems
    what was lost and what of that counts, (n,) each."""
    here = known(entry.problems, requested)
    changed = here & ~unchanged(entry.problems, requested)
    for grades in () if entry.verdict is None else graded_in(entry.verdict):
        lost, present = _lost(grades, acc), here[: grades.problems]
        if not present.any():
            continue
        replaced = changed[: grades.problems]
        share = np.where(present, _excess(lost, replaced, present), _excess(lost, ~present, np.ones_like(present)))
        yield np.flatnonzero(~present | replaced), lost, share


def _lost(grades: Paired, acc: Acc) -> Floats:
    """Returns, (problems,), the share of seeds that were lost."""
    return np.asarray((~grades.fuzzy & (grades.target | (acc == "absolute"))).mean(1), np.float64)


def _excess(lost: Floats, gone: NDArray[np.bool_], among: NDArray[np.bool_]) -> Floats:
    """Returns, (n,), what was lost of each problem, times the part of what is gone that chance would not leave out."""
    of_them = float(lost[gone].sum())
    expected = int(gone.sum()) * float(lost[among].mean())
    return lost * max(1 - expected / of_them, 0.0) if of_them else np.zeros_like(lost)
