"""The cases of an attack, with what came of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

# silent: something else than the original was returned without a word. traceback: an exception that is no UsageError,
# or a crash. lost: saved results are gone, decoded again, or the end result is another. unclear: a refusal that is not
# one line, has control characters, another exit code or does not say what failed.
FAULTS = ("silent", "traceback", "lost", "unclear")


@dataclass(frozen=True)
class Case:
    """One attack.

    Attributes:
        number: With the seed it determines the case, which can be repeated alone.
        subject: What was attacked.
        damage: What was done to it.
        verdict: One of `FAULTS`, or a word for what is right: refused, equal, set aside, forgot, resumed.
        detail: The evidence.
    """

    attack: str
    number: int
    subject: str
    damage: str
    verdict: str
    detail: str = ""

    @property
    def is_fault(self) -> bool:
        return self.verdict in FAULTS

    def line(self) -> str:
        return f"{self.verdict}: {self.attack} {self.number}, {self.subject}, {self.damage}: {self.detail}"


def random_of(seed: int, attack: str, number: int) -> Random:
    """Returns the case's own randomness, independent of the other cases."""
    return Random(f"{seed}/{attack}/{number}")


def summary(cases: Iterable[Case]) -> dict[str, dict[str, int]]:
    """Returns how many cases of each attack have each verdict."""
    counts: dict[str, Counter[str]] = {}
    for case in cases:
        counts.setdefault(case.attack, Counter())[case.verdict] += 1
    return {attack: dict(sorted(verdicts.items())) for attack, verdicts in counts.items()}


def faults(cases: Iterable[Case]) -> list[dict[str, Any]]:
    return [asdict(case) for case in cases if case.is_fault]


def as_table(cases: Sequence[Case]) -> str:
    """Returns a table in Markdown."""
    head = [f"| attack | cases | {' | '.join(FAULTS)} | right |", "| --- " * (len(FAULTS) + 3) + "|"]
    rows = [_row(attack, verdicts) for attack, verdicts in summary(cases).items()]
    return "\n".join([*head, *rows])


def _row(attack: str, verdicts: dict[str, int]) -> str:
    right = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items() if verdict not in FAULTS)
    cells = (attack, sum(verdicts.values()), *(verdicts.get(fault, 0) for fault in FAULTS), right)
    return "| " + " | ".join(map(str, cells)) + " |"
