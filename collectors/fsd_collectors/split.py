"""The split of problems into a tuning part, to search on, and a certification part, held out for certificates.

The part is decided by what a problem asks, so a problem is in the same part in every run: no later run can search on
what an earlier one certified with.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Literal, Protocol, TypeVar

from fsd_common.errors import UsageError

Part = Literal["tuning", "certification"]

CERTIFICATION_SHARE = 0.8
"""Of the problems: with fewer to tune on settings are chosen worse, with more fewer are certified (docs/benchmarks.md).

It is the same however many problems there are: else one that certified would tune once there are more.
"""

_SALT = "fsd-calib/split/1\n"  # another salt makes another split, which would void every certificate
_SHOWN = 60  # characters of a text shown in a message
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")  # "007" may be a name


class Splittable(Protocol):
    """What the split needs of a problem.

    `part` is None where the source has no parts of its own. A multiple-choice problem also has the attribute
    `choices`, a sequence of texts; one of a group has the attribute `group`, a number.
    """

    @property
    def question(self) -> str: ...

    @property
    def part(self) -> Part | None: ...


class Identified(Splittable, Protocol):
    """A problem with an `id`, which keys its noise and its cached decodings."""

    @property
    def id(self) -> int: ...

    @property
    def prompt(self) -> str: ...


P = TypeVar("P", bound=Splittable)


def content_key(question: str, choices: Sequence[str] = ()) -> str:
    """Returns a normalised text of what a problem asks: in NFC, with each run of white space as one blank.

    Problems that differ in case, in superscripts ("2³" is not "23") or in the choices, their order or boundaries have
    different keys. The question and each choice take one line; a normalised text holds no line break.
    """
    return "\n".join(_normalised(text) for text in (question, *choices))


def hashed(text: str) -> int:
    """Returns 48 bits of the text's SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def row_hash(row: Mapping[str, object]) -> int:
    """Returns 48 bits of a hash of a row's columns, whatever their order: it is known by them in another task.

    Values count as `value_text` has them, and columns without one not at all, so that a row is the same in CSV, JSON
    and Parquet.
    """
    return hashed(value_text(row))


def value_text(value: object) -> str:
    """Returns the value of a column as a normalised text; "": null, NaN or empty.

    17, 17.0 and "17 " are alike, and so are true and "True"; lists and objects are alike where all in them is, and
    where they are written as JSON in a table.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, Mapping):
        texts = {str(name): text for name, each in value.items() if (text := value_text(each))}
        return json.dumps(texts, sort_keys=True) if texts else ""
    if isinstance(value, list | tuple):
        return json.dumps([value_text(each) for each in value]) if value else ""
    text = _normalised(str(value))
    if text.startswith(("[", "{")):
        with suppress(ValueError, RecursionError):  # it is no JSON
            return value_text(json.loads(text))
    if text in ("True", "False"):
        return text.lower()
    return _number_text(text) if _NUMBER.fullmatch(text) else text


def _number_text(text: str) -> str:
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)  # it is finite
    whole = "".join(map(str, digits))
    kept = whole.rstrip("0")
    return f"{'-' * sign}{kept}e{exponent + len(whole) - len(kept)}" if kept else "0"


def tuning_and_certification(
    problems: Iterable[P], certification_share: float = CERTIFICATION_SHARE
) -> tuple[list[P], list[P]]:
    """Splits problems into the tuning part and the certification part.

    Each part is ordered by a hash of the content key, so that any prefix of it is a random sample, whatever the order
    of `problems`. Problems of a group are in one part, side by side.

    Args:
        certification_share: share of certification problems among those whose source names no part.
    """
    parts: dict[Part, list[P]] = {"tuning": [], "certification": []}
    keyed = ((_together(p), _key(p), p) for p in problems)
    for together, _, problem in sorted(keyed, key=lambda each: (hashed(each[0]), hashed(each[1]))):
        drawn: Part = "certification" if hashed(_SALT + together) / 2**48 < certification_share else "tuning"
        parts[problem.part or drawn].append(problem)
    return parts["tuning"], parts["certification"]


def check_ids(problems: Iterable[Identified]) -> None:
    """Raises UsageError where one id names two problems, of which one would be ignored."""
    first: dict[int, Identified] = {}
    for problem in problems:
        pairs = zip(_content(first.setdefault(problem.id, problem)), _content(problem), strict=True)
        differing = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if differing is not None:
            one, other = (f"{str(text)[:_SHOWN]!r}" for text in differing)
            raise UsageError(f"id {problem.id} names both {one} and {other}; give each problem an id of its own")


def _content(problem: Identified) -> tuple[str, Sequence[str], str]:
    return problem.question, _choices(problem), problem.prompt


def _key(problem: Splittable) -> str:
    return content_key(problem.question, _choices(problem))


def _together(problem: Splittable) -> str:
    """What the part of a problem follows from: its group, or what it asks."""
    group = getattr(problem, "group", None)
    return _key(problem) if group is None else f"group {group}"


def _choices(problem: Splittable) -> tuple[str, ...]:
    return tuple(getattr(problem, "choices", ()))


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())
