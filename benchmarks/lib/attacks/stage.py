"""What attacks share: their material, how many cases they have, and where they put files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.attacks.cases import Case
from lib.attacks.material import Material


@dataclass(frozen=True)
class Stage:
    """A run of attacks.

    Attributes:
        jobs: Commands that run at the same time.
        quick: Whether each attack has a case or two.
        case: The only one to run; None: all.
    """

    seed: int
    scratch: Path
    jobs: int = 2
    quick: bool = False
    case: int | None = None

    @property
    def material(self) -> Material:
        return Material(self.scratch / "material", self.quick)

    def numbers(self, count: int, quick: int = 1, first: int = 0) -> list[int]:
        """Returns the numbers of the cases to run: of `count`, or of `quick`."""
        numbers = range(first, first + (quick if self.quick else count))
        return [number for number in numbers if self.case in (None, number)]

    def chosen(self, numbers: Sequence[int]) -> list[int]:
        return [number for number in numbers if self.case in (None, number)]

    def folder(self, name: str) -> Path:
        folder = self.scratch / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def at_once(self, attack: Callable[..., Iterator[Case]], each: Sequence[tuple[Any, ...]]) -> Iterator[Case]:
        """Runs several attacks of processes at the same time."""
        with ThreadPoolExecutor(self.jobs) as pool:
            for cases in pool.map(lambda arguments: list(attack(*arguments)), each):
                yield from cases
