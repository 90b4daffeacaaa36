"""Which problems may be searched on, and which are kept for the certificate.

Knows a problem's question and the part its source gives it. Knows nothing of seeds, order or answers: the same
question is always on the same side, so no later run can search on what an earlier one certified with.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from fsd_collectors.parts import Part

CERTIFICATION_SHARE = 0.7

_SALT = b"fsd-calib/split/1\n"  # another salt is another split: changing it voids every certificate


class Splittable(Protocol):
    """What the split needs of a problem. `part` None: the source names no parts."""

    @property
    def question(self) -> str: ...

    @property
    def part(self) -> Part | None: ...


P = TypeVar("P", bound=Splittable)


def content_key(question: str, choices: Sequence[str] = ()) -> str:
    """What a problem asks, however it is spaced and composed: its texts in NFC, each run of white space one blank.

    Case, superscripts ("2³" is not "23"), the choices, their order and their boundaries all make other problems.
    Without choices it is the normalised question itself; with them a line each, which no normalised text can hold.
    """
    return "\n".join(_normalised(text) for text in (question, *choices))


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def tuning_and_certification(
    problems: Iterable[P], certification_share: float = CERTIFICATION_SHARE
) -> tuple[list[P], list[P]]:
    """Both parts, each in the given order; `certification_share` is of the problems whose source names no part."""
    parts: dict[Part, list[P]] = {"tuning": [], "certification": []}
    for problem in problems:
        drawn: Part = "certification" if _place(problem.question) < certification_share else "tuning"
        parts[problem.part or drawn].append(problem)
    return parts["tuning"], parts["certification"]


def _place(question: str) -> float:
    """A place in [0, 1) that the question's text alone decides."""
    return int.from_bytes(hashlib.sha256(_SALT + question.encode()).digest()[:6], "big") / 2**48
