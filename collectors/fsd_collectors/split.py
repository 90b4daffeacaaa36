"""Which problems are the same one, which may be searched on, and which are kept for the certificate.

The same problem is always on the same side, so no later run can search on what an earlier one certified with.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeVar

from fsd_decoding.errors import UsageError

# MERGED: """The two parts that problems are divided into. Knows their names only."""


Part = Literal["tuning", "certification"]


CERTIFICATION_SHARE = 0.7

_SALT = "fsd-calib/split/1\n"  # another salt is another split: changing it voids every certificate
_SHOWN = 60  # characters of a text in a message


class Splittable(Protocol):
    """What the split needs of a problem. `part` None: the source names no parts. A problem to choose from answers has
    them as `choices`, a sequence of texts, too."""

    @property
    def question(self) -> str: ...

    @property
    def part(self) -> Part | None: ...


class Identified(Splittable, Protocol):
    """`id`: the key of its noise, and what its decodings are kept by."""

    @property
    def id(self) -> int: ...

    @property
    def prompt(self) -> str: ...


P = TypeVar("P", bound=Splittable)


def content_key(question: str, choices: Sequence[str] = ()) -> str:
    """What a problem asks, however it is spaced and composed: its texts in NFC, each run of white space one blank.

    Case, superscripts ("2³" is not "23"), the choices, their order and their boundaries all make other problems.
    Without choices it is the normalised question itself; with them a line each, which no normalised text can hold.
    """
    return "\n".join(_normalised(text) for text in (question, *choices))


def hashed(text: str) -> int:
    """48 bits that the text alone decides."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def tuning_and_certification(
    problems: Iterable[P], certification_share: float = CERTIFICATION_SHARE
) -> tuple[list[P], list[P]]:
    """Both parts; `certification_share` is of the problems whose source names no part.

    Each is in the order of a hash of the content key, so that a prefix of it is a random sample, whatever order the
    problems came in.
    """
    parts: dict[Part, list[P]] = {"tuning": [], "certification": []}
    for key, problem in sorted(((_key(p), p) for p in problems), key=lambda keyed: hashed(keyed[0])):
        drawn: Part = "certification" if hashed(_SALT + key) / 2**48 < certification_share else "tuning"
        parts[problem.part or drawn].append(problem)
    return parts["tuning"], parts["certification"]


def check_ids(problems: Iterable[Identified]) -> None:
    """UsageError: an id names two problems, one of which would be passed over."""
    first: dict[int, Identified] = {}
    for problem in problems:
        pairs = zip(_asked(first.setdefault(problem.id, problem)), _asked(problem), strict=True)
        differing = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if differing is not None:
            one, other = (f"{str(text)[:_SHOWN]!r}" for text in differing)
            raise UsageError(f"id {problem.id} is of {one} and of {other}: an id names one problem, give each its own")


def _asked(problem: Identified) -> tuple[str, Sequence[str], str]:
    return problem.question, _choices(problem), problem.prompt


def _key(problem: Splittable) -> str:
    return content_key(problem.question, _choices(problem))


def _choices(problem: Splittable) -> tuple[str, ...]:
    return tuple(getattr(problem, "choices", ()))


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())
