"""The cases of an attack, with what came of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

# silent: something else than the original was returned without a word, or a cheat was graded as right. traceback: an
# exception that is no UsageError, or a crash. hang: no answer within `HANGS`. lost: saved results are gone, decoded
# again, or the end result is another. unclear: a refusal that is not one line, has control characters, another exit
# code or does not say what failed.
FAULTS = ("silent", "traceback", "hang", "lost", "unclear")
HANGS = 300.0  # seconds; on a busy machine two minutes of work take as long


@dataclass(frozen=True)
class Case:
    """One attack.

    Attributes:
        number: With the seed it determines the case, which can be repeated alone.
        subject: What was attacked.
        damage: What was done to it.
        verdict: One of `FAULTS`, or a word for what is right: refused (in one line), equal, told (a warning says what
            is missing), forgot (a cache), read (no digest guards the file, so what it says counts), wrong (a text's
            grade), resumed, ended.
        detail: The evidence.
        seconds, mebibytes: What it took; 0: not measured.
    """

    attack: str
    number: int
    subject: str
    damage: str
    verdict: str
    detail: str = ""
    seconds: float = 0.0
    mebibytes: int = 0

    @property
    def is_fault(self) -> bool:
        return self.verdict in FAULTS

    def line(self) -> str:
        took = f" ({self.seconds:.1f} s, {self.mebibytes} MiB)" if self.seconds else ""
        return f"{self.verdict}: {self.attack} {self.number}, {self.subject}, {self.damage}: {self.detail:.400}{took}"


def random_of(seed: int, attack: str, number: int) -> Random:
    """Returns the case's own randomness, independent of the other cases."""
    return Random(f"{seed}/{attack}/{number}")


def summary(cases: Iterable[Case], of: Callable[[Case], str] = lambda case: case.attack) -> dict[str, dict[str, int]]:
    """Returns how many cases of each attack, or of what `of` returns, have each verdict."""
    counts: dict[str, Counter[str]] = {}
    for case in cases:
        counts.setdefault(of(case), Counter())[case.verdict] += 1
    return {name: dict(sorted(verdicts.items())) for name, verdicts in counts.items()}


def report(cases: Sequence[Case]) -> dict[str, Any]:
    """Returns what an attack found: verdicts by subject, what took most, faults, and an example of each verdict."""
    return {
        "counts": dict(Counter(case.verdict for case in cases)),
        "subjects": summary(cases, lambda case: case.subject),
        "slowest": [case.line() for case in sorted(cases, key=lambda case: -case.seconds)[:10]],
        "largest": [case.line() for case in sorted(cases, key=lambda case: -case.mebibytes)[:5]],
        "faults": [asdict(case) for case in cases if case.is_fault],
        "examples": list({(case.subject, case.verdict): case.line() for case in cases}.values()),
    }


def as_table(cases: Sequence[Case]) -> str:
    """Returns a table in Markdown."""
    head = [f"| attack | cases | {' | '.join(FAULTS)} | right |", "| --- " * (len(FAULTS) + 3) + "|"]
    rows = [_row(attack, verdicts) for attack, verdicts in summary(cases).items()]
    return "\n".join([*head, *rows])


def _row(attack: str, verdicts: dict[str, int]) -> str:
    right = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items() if verdict not in FAULTS)
    cells = (attack, sum(verdicts.values()), *(verdicts.get(fault, 0) for fault in FAULTS), right)
    return "| " + " | ".join(map(str, cells)) + " |"
