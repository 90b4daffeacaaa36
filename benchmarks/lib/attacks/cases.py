"""What attacks share: their cases with what came of each, which of them run, and where they put files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

# silent: something else than the original was returned without a word, or a cheat was graded as right. traceback: an
# exception that is no UsageError, or a crash. hang: no answer within `HANGS`. lost: saved results are gone, decoded
# again, or the end result is another. unclear: a refusal that is not one line, has control characters, another exit
# code or does not say what failed.
FAULTS = ("silent", "traceback", "hang", "lost", "unclear")
HANGS = 300.0  # seconds; on a busy machine two minutes of work take as long
_AT_ONCE = 2  # commands that run at the same time
Verdict = tuple[str, str]
"""One of `FAULTS`, or a word for what is right: refused (in one line), equal, told (a warning says what is missing),
forgot (a cache), read (no digest guards the file, so what it says counts), wrong (a text's grade), resumed, ended;
and the evidence."""


@dataclass(frozen=True)
class Case:
    """One attack.

    Attributes:
        number: With the seed it determines the case, which can be repeated alone.
        subject: What was attacked.
        damage: What was done to it.
        verdict, detail: See `Verdict`.
        seconds: What it took; 0: not measured.
    """

    attack: str
    number: int
    subject: str
    damage: str
    verdict: str
    detail: str = ""
    seconds: float = 0.0

    @property
    def is_fault(self) -> bool:
        return self.verdict in FAULTS

    def line(self) -> str:
        took = f" ({self.seconds:.1f} s)" if self.seconds else ""
        return f"{self.verdict}: {self.attack} {self.number}, {self.subject}, {self.damage}: {self.detail:.400}{took}"


@dataclass(frozen=True)
class Stage:
    """A run of attacks.

    Attributes:
        scratch: The folder for all that they write.
        quick: Whether each attack has a case or two.
        case: The only one to run; None: all.
    """

    seed: int
    scratch: Path
    quick: bool = False
    case: int | None = None

    def chosen(self, numbers: Sequence[int], quick: Sequence[int]) -> list[int]:
        """Returns the numbers of the cases to run, of all those that there are, or of those of a quick run."""
        return [number for number in (quick if self.quick else numbers) if self.case in (None, number)]

    def folder(self, name: str) -> Path:
        folder = self.scratch / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def random(self, attack: str, number: int) -> Random:
        """Returns a case's own randomness, independent of the other cases."""
        return Random(f"{self.seed}/{attack}/{number}")


def at_once(attack: Callable[[int], Iterator[Case]], numbers: Iterable[int]) -> Iterator[Case]:
    """Runs attacks of processes at the same time, by their numbers."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for cases in pool.map(lambda number: list(attack(number)), numbers):
            yield from cases


def report(cases: Sequence[Case]) -> dict[str, Any]:
    """Returns what an attack found: verdicts, also by subject, faults, and an example of each verdict."""
    return {
        "counts": dict(Counter(case.verdict for case in cases)),
        "subjects": {subject: dict(sorted(Counter(c.verdict for c in cases if c.subject == subject).items()))
                     for subject in dict.fromkeys(case.subject for case in cases)},
        "slowest": [case.line() for case in sorted(cases, key=lambda case: -case.seconds)[:10]],
        "faults": [asdict(case) for case in cases if case.is_fault],
        "examples": list({(case.subject, case.verdict): case.line() for case in cases}.values()),
    }  # fmt: skip


def as_table(cases: Sequence[Case]) -> str:
    """Returns a table in Markdown."""
    lines = [f"| attack | cases | {' | '.join(FAULTS)} | right |", "| --- " * (len(FAULTS) + 3) + "|"]
    for attack in dict.fromkeys(case.attack for case in cases):
        counts = Counter(case.verdict for case in cases if case.attack == attack)
        right = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()) if verdict not in FAULTS)
        cells = (attack, counts.total(), *(counts[fault] for fault in FAULTS), right)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
