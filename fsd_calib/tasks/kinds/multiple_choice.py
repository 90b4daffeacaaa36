"""Questions with lettered options, as they are asked and as sources write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from fsd_calib.tasks.asking import Exemplar
from fsd_calib.tasks.base import Example
from fsd_calib.tasks.rows import Row, shown
from fsd_common.errors import UsageError
from fsd_decoding.profile.parts import LETTERS

BEST_OPTION = (
    "Think step by step about the question and its options. "
    'End with a line that holds only "The answer is (X).", where X is the letter of the best option.'
)


def with_options(question: str, choices: Sequence[str]) -> str:
    """Returns a question with its options on lines of their own: (A) …"""
    return "\n".join([question, *(f"({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False))])


def worked_choice(question: str, choices: Sequence[str], answer: str) -> Exemplar:
    """Returns a worked example; its answer ends in "The answer is (X)."."""
    return with_options(question, choices), answer


class Options(NamedTuple):
    """Answers to choose from, as a source lists them.

    Attributes:
        labels: What the source calls them, if it does: "A", "B", … or "1", "2", ….
    """

    texts: Sequence[object]
    labels: Sequence[object] | None = None

    @classmethod
    def of(cls, row: Row, listed: object) -> Options:
        """Reads a list of texts, the hub's {"label": […], "text": […]}, or a list of {"label": …, "text": …}.

        Raises:
            UsageError: It is none of these.
        """
        if isinstance(listed, Mapping) and _is_list(listed.get("text")):
            return cls(listed["text"], listed.get("label"))
        if _is_list(listed) and listed and all(isinstance(one, Mapping) and "text" in one for one in listed):
            labels = [one.get("label") for one in listed]
            return cls([one["text"] for one in listed], None if None in labels else labels)
        if _is_list(listed) and not any(isinstance(one, Mapping) for one in listed):
            return cls(listed)
        raise UsageError(
            f"{row.where}: the choices are {shown(listed)}; they must be texts, or each a label and a text"
        )


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def choice_example(row: Row, question: str, choices: Options, answer: object, stratum: str = "") -> Example:
    """Returns the example of a row.

    Args:
        answer: The label of the right option; where the source has none, its letter, or its place counted from 0 as a
            number or in digits.

    Raises:
        UsageError: There are fewer than two options or too many, an option is no text, or none is the answer.
    """
    options = tuple("" if choice is None else " ".join(str(choice).split()) for choice in choices.texts)
    if not 2 <= len(options) <= len(LETTERS) or not all(options):
        raise UsageError(
            f"{row.where}: the options are {shown(list(choices.texts))}; there must be 2 to {len(LETTERS)}, none empty"
        )
    letters = LETTERS[: len(options)]
    labels = None if choices.labels is None else [str(label).strip() for label in choices.labels]
    letter = _letter(answer, letters) if labels is None else _labelled(answer, labels, letters)
    if letter is None:
        known = ", ".join(labels or letters) + (", or its place counted from 0" if labels is None else "")
        raise UsageError(f"{row.where}: the answer is {shown(answer)}; it must be one of {known}")
    return Example(with_options(question, options), f"The answer is ({letter}).", None, options, stratum)


def _labelled(answer: object, labels: Sequence[str], letters: str) -> str | None:
    places = [place for place, label in enumerate(labels) if label == str(answer).strip()]
    return letters[places[0]] if len(places) == 1 and len(labels) == len(letters) else None


def _letter(answer: object, letters: str) -> str | None:
    if isinstance(answer, str):
        answer = int(answer) if answer.strip().isdecimal() else answer.strip().strip("()").upper()
    if isinstance(answer, int) and not isinstance(answer, bool):
        return letters[answer] if 0 <= answer < len(letters) else None
    return answer if isinstance(answer, str) and len(answer) == 1 and answer in letters else None
