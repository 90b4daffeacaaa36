"""Questions with lettered options, as they are asked and as sources write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from fsd_calib.tasks.base import Example
from fsd_calib.tasks.rows import Row, shown
from fsd_common.errors import UsageError
from fsd_decoding.profile.prompt_form import LETTERS

BEST_OPTION = (
    "Think step by step about the question and its options. "
    'End with a line that holds only "The answer is (X).", where X is the letter of the best option.'
)


def choice_example(row: Row, question: str, listed: object, answer: object, stratum: str = "") -> Example:
    """Returns the example of a row.

    Args:
        listed: The options: texts, the hub's {"label": […], "text": […]}, or a list of {"label": …, "text": …}.
        answer: The label of the right option; where the source has none, its letter, or its place counted from 0 as a
            number or in digits.

    Raises:
        UsageError: There are fewer than two options or too many, an option is no text, or none is the answer.
    """
    options, named = options_of(row, listed)
    letters = LETTERS[: len(options)]
    labels = None if named is None else [str(label).strip() for label in named]
    if labels is None:
        letter = _letter(answer, letters)
    else:
        places = [place for place, label in enumerate(labels) if label == str(answer).strip()]
        letter = letters[places[0]] if len(places) == 1 and len(labels) == len(letters) else None
    if letter is None:
        known = ", ".join(labels or letters) + (", or its place counted from 0" if labels is None else "")
        raise UsageError(f"{row.where}: the answer is {shown(answer)}; it must be one of {known}")
    return Example(lettered(question, options), f"The answer is ({letter}).", None, options, stratum)


def options_of(row: Row, listed: object) -> tuple[tuple[str, ...], Sequence[object] | None]:
    """Returns the options of a row, and their labels where the source has any; see `choice_example`."""
    texts, named = _texts_and_labels(row, listed)
    options = tuple("" if choice is None else " ".join(str(choice).split()) for choice in texts)
    if not 2 <= len(options) <= len(LETTERS) or not all(options):
        raise UsageError(
            f"{row.where}: the options are {shown(list(texts))}; there must be 2 to {len(LETTERS)}, none empty"
        )
    return options, named


def lettered(question: str, options: Sequence[str]) -> str:
    """Returns the question as prompts show it, with its options below."""
    return "\n".join([question, *(f"({name}) {option}" for name, option in zip(LETTERS, options, strict=False))])


def _texts_and_labels(row: Row, listed: object) -> tuple[Sequence[object], Sequence[object] | None]:
    """What the options say, and what the source calls them, if it does: "A", "B", … or "1", "2", …."""
    if isinstance(listed, Mapping) and _is_list(listed.get("text")):
        return listed["text"], listed.get("label")
    if _is_list(listed) and listed and all(isinstance(one, Mapping) and "text" in one for one in listed):
        labels = [one.get("label") for one in listed]
        return [one["text"] for one in listed], None if None in labels else labels
    if _is_list(listed) and not any(isinstance(one, Mapping) for one in listed):
        return listed, None
    raise UsageError(f"{row.where}: the choices are {shown(listed)}; they must be texts, or each a label and a text")


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _letter(answer: object, letters: str) -> str | None:
    if isinstance(answer, str):
        answer = int(answer) if answer.strip().isdecimal() else answer.strip().strip("()").upper()
    if isinstance(answer, int) and not isinstance(answer, bool):
        return letters[answer] if 0 <= answer < len(letters) else None
    return answer if isinstance(answer, str) and len(answer) == 1 and answer in letters else None
