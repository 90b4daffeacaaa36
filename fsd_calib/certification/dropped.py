"""Problems of earlier attempts that are gone or changed: what was lost among them may count.

Who leaves out problems because an earlier attempt lost them, as bad labels say, certifies what is false: with a fifth
of them gone, a second attempt at 98 % is wrong in up to a quarter of the cases. So those that are gone count as lost
again, as far as they are more than a random choice of the problems would leave out. Where data are replaced as time
goes on, that is next to none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from fsd_calib.certification.attempt_ledger import Entry, Numbers, same_and_unchanged
from fsd_calib.certification.certificate import graded_in
from fsd_calib.certification.claim import Acc

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Dropped:
    """What became of the problems of an earlier attempt.

    Attributes:
        attempt: Its number.
        problems: How many of those it graded are gone or have another answer.
        lost: How many of them it had lost.
        counted: How many count as lost again.
    """

    attempt: int
    problems: int
    lost: int
    counted: int

    def __str__(self) -> str:
        said = (
            f"{self.problems} problems of attempt {self.attempt} are gone or have another answer; it lost {self.lost} "
            "of them"
        )
        return said + (f", {self.counted} more than chance, which count as lost" if self.counted else "")


def dropped(earlier: Sequence[Entry], requested: Numbers, acc: Acc) -> Dropped | None:
    """Returns the attempt whose lost problems count most; None: none that shares a problem has lost any that is gone.

    Args:
        earlier: The attempts of the family before this one.
        requested: The problems that are to be certified on.
        acc: Lost is what the target solved and the fuzzy rule did not, or for "absolute" what it did not solve.
    """
    found = [each for entry in earlier if entry.verdict is not None for each in _of(entry, requested, acc)]
    return max(found, key=lambda each: (each.counted, each.lost), default=None)


def _of(entry: Entry, requested: Numbers, acc: Acc) -> list[Dropped]:
    """What is gone, for every setting that the attempt tested."""
    assert entry.verdict is not None
    gone = ~same_and_unchanged(entry.problems, requested)
    found = []
    for grades in graded_in(entry.verdict) if gone.any() and not gone.all() else ():
        among, lost = gone[: grades.problems], (~grades.fuzzy).mean(1)
        if acc == "retention":
            lost = (grades.target & ~grades.fuzzy).mean(1)
        missing, of_them = int(among.sum()), float(lost[among].sum())
        if of_them:
            excess = of_them - missing * float(lost.mean())
            found.append(Dropped(entry.number, missing, round(of_them), max(ceil(excess - _ROUNDING), 0)))
    return found
