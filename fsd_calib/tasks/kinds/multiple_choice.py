"""Questions with lettered options, as they are asked and as sources write them."""

from __future__ import annotations

from collections.abc import Sequence

from fsd_calib.tasks.base import Example
from fsd_calib.tasks.grading.choices import LETTERS
from fsd_calib.tasks.prompts import Exemplar
from fsd_calib.tasks.sources.rows import Row, shown
from fsd_decoding.errors import UsageError

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


def choice_example(row: Row, question: str, choices: Sequence[object], answer: object, stratum: str = "") -> Example:
    """Returns the example of a row.

    Args:
        answer: The letter of the right option, or its place counted from 0, as a number or in digits.

    Raises:
        UsageError: There are fewer than two options or too many, an option is no text, or none is the answer.
    """
    options = tuple(" ".join(str(choice).split()) for choice in choices)
    if not 2 <= len(options) <= len(LETTERS) or not all(options):
        raise UsageError(
            f"{row.where}: the options are {shown(list(choices))}; there must be 2 to {len(LETTERS)}, none empty"
        )
    letter = _letter(answer, len(options))
    if letter is None:
        raise UsageError(
            f"{row.where}: the answer is {shown(answer)}; it must be one of {', '.join(LETTERS[: len(options)])}, or "
            "its place counted from 0"
        )
    return Example(with_options(question, options), f"The answer is ({letter}).", None, options, stratum)


def _letter(answer: object, options: int) -> str | None:
    letters = LETTERS[:options]
    if isinstance(answer, str):
        answer = int(answer) if answer.strip().isdecimal() else answer.strip().strip("()").upper()
    if isinstance(answer, int) and not isinstance(answer, bool):
        return letters[answer] if 0 <= answer < options else None
    return answer if isinstance(answer, str) and len(answer) == 1 and answer in letters else None
