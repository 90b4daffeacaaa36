"""Graders: functions that say whether a model's whole answer to a problem is right. Those with settings are made by
functions; texts are compared without surrounding white space."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from itertools import accumulate
from typing import Any

from fsd_calib.tasks.base import Grader, Problem
from fsd_calib.tasks.grading.apart import Apart
from fsd_calib.tasks.grading.choices import final_choice
from fsd_calib.tasks.grading.numbers import final_number, same_answer
from fsd_calib.tasks.grading.phrases import last_box
from fsd_common.errors import UsageError
from fsd_decoding.profile.prompt_form import LETTERS

# Of scripts that put no spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana, Chinese characters.
_UNSPACED = (
    r"\u0e00-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff"
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_TOKEN = re.compile(rf"\s+|[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")


def same_number(problem: Problem, text: str) -> bool:
    """Whether a text ends in the number that the reference ends in; see `final_number`."""
    return same_answer(problem.reference, text)


def near_number(tolerance: float) -> Grader:
    """Returns a grader for numbers that differ from the reference's by at most a share of it.

    Args:
        tolerance: .01 allows 1 %; where the reference is 0, the number itself must be at most that.
    """
    share = Fraction(str(tolerance))

    def near(problem: Problem, text: str) -> bool:
        wanted, given = final_number(problem.reference), final_number(text)
        if wanted is None or given is None:
            return False
        return abs(given - wanted) <= share * (abs(wanted) or 1)

    return near


def same_choice(problem: Problem, text: str) -> bool:
    """Whether a text chooses what the reference chooses, of `problem.choices`; see `final_choice`."""
    wanted = _choice(problem, problem.reference)
    return wanted is not None and _choice(problem, text) == wanted


def _choice(problem: Problem, text: str) -> str | None:
    letters = LETTERS[: len(problem.choices)]
    bare = text.strip()
    return bare if len(bare) == 1 and bare in letters else final_choice(text, problem.choices)


def same_text(problem: Problem, text: str) -> bool:
    """Whether a text is the reference."""
    return text.strip() == problem.reference.strip()


def contains(problem: Problem, text: str) -> bool:
    """Whether a text has the reference in it, as whole words and numbers, whatever their case and white space."""
    wanted = _normal(problem.reference).split()
    before = r"(?<!\w)"
    after = r"(?!\w)"
    if wanted and wanted[0][0].isdigit():
        before += r"(?<!\d[.,])(?<![-−])"  # no part of 1.5, and not -5
    if wanted and wanted[-1][-1].isdigit():
        after += r"(?![.,]\d)"
    return re.search(before + r"\s+".join(map(re.escape, wanted)) + after, _normal(text)) is not None


def _normal(text: str) -> str:
    """Without case, and with one form of each accented letter."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def similar(least: float) -> Grader:
    """Returns a grader for texts whose edit similarity to the reference, token by token, is at least `least`.

    The similarity is 1 less the smallest number of tokens to insert, remove or replace, over the length of the longer
    text. Tokens are words and numbers, single characters of scripts without spaces between words (Chinese, Japanese,
    Thai, …), other single characters, and line breaks, each with the indentation behind it.
    """

    def near(problem: Problem, text: str) -> bool:
        return similarity(problem.reference, text) >= least

    return near


def similarity(one: str, other: str) -> float:
    """Returns the edit similarity of two texts, from 0 to 1; see `similar`."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.normalized_similarity(_tokens(one), _tokens(other))


def _tokens(text: str) -> list[str]:
    return [_line_break(token) if token.isspace() else token
            for token in _TOKEN.findall(text.strip()) if not token.isspace() or "\n" in token]  # fmt: skip


def _line_break(space: str) -> str:
    """Without what stands at the end of lines, which nobody sees."""
    return "\n" * space.count("\n") + space.rpartition("\n")[2]


def extracting(pattern: str, grader: Grader) -> Grader:
    """Returns a grader of what a regular expression last finds in a text: its first group, or all of it.

    A text in which it finds nothing, or does not end (`Apart`), is wrong. The reference itself needs no such place, and
    is graded whole first.
    """
    find = Apart(f"{__name__}:finder", (pattern,))

    def of_extract(problem: Problem, text: str) -> bool:
        if text.strip() == problem.reference.strip() and grader(problem, text):
            return True
        found = find(text)
        return found is not None and grader(problem, found)

    return of_extract


def finder(pattern: str) -> Callable[[str], str | None]:
    """Returns a function that gives what a regular expression last finds in a text; see `extracting`."""
    expression = re.compile(pattern, re.MULTILINE | re.DOTALL)

    def last(text: str) -> str | None:
        found = None
        for found in expression.finditer(text):  # noqa: B007
            pass
        return None if found is None else found[min(expression.groups, 1)] or ""

    return last


_COMPARISON = Apart(f"{__name__}:comparison")


def same_expression(problem: Problem, text: str) -> bool:
    r"""Whether the final expressions of a text and of the reference are equal: `\boxed{\frac12}` and `0.5` are.

    The final expression is in the last box, or where there is none, the one that math-verify finds in the whole text.
    One that takes math-verify longer than `Apart` allows is wrong.

    Raises:
        UsageError: math-verify is not installed.
    """
    return bool(_COMPARISON(_final(problem.reference), _final(text)))


def _final(text: str) -> str:
    """The last box alone: math-verify would join several to one set."""
    boxed = last_box(text)
    return text if boxed is None else f"\\boxed{{{boxed}}}"


def comparison() -> Callable[[str, str], bool]:
    """Returns a function that says whether the final expressions of two texts are equal.

    Raises:
        UsageError: math-verify is not installed.
    """
    try:
        library = import_module("math_verify")
    except ImportError as error:
        raise UsageError(
            "task math: answers are compared by math-verify, which is not installed; pip install math-verify"
        ) from error
    for name in ("math_verify.grader", "math_verify.parser"):  # which warn of texts
        logging.getLogger(name).setLevel(logging.ERROR)

    @lru_cache(maxsize=1 << 12)  # a reference is asked for again and again
    def parsed(text: str) -> list[Any]:
        if max(accumulate((char == "{") - (char == "}") for char in text), default=0) > _DEEPEST:
            return []
        try:
            return list(library.parse(text, parsing_timeout=None, raise_on_error=True))
        except _BREAKS:
            raise
        except Exception:  # whatever its parsers raise of a text that is not mathematics
            return []

    def equal(one: Any, other: Any) -> bool:
        try:
            return bool(library.verify(one, other, timeout_seconds=None, raise_on_error=True))
        except _BREAKS:
            raise
        except Exception:
            return False

    def same(reference: str, text: str) -> bool:
        return any(equal(one, other) for one in parsed(reference) for other in parsed(text))

    return same


_BREAKS = (MemoryError, RecursionError)
_DEEPEST = 50  # braces within braces; of more than some hundred its parser takes the innermost part for the whole


COMPARING: frozenset[Grader] = frozenset({same_number, same_choice, same_text, same_expression})
"""Graders that compare answers: a text in place of the reference does as well."""
