r"""Final numbers in texts, and whether two texts end in the same one.

Understands numbers as people and models write them: 1,234, $5.00, −3, 1/2, 2 1/2, \frac{1}{2}, \boxed{12}; compares
exact fractions, never floats. A percent sign, a unit and a currency are left out. Powers of ten ("1e6", "3 million")
and decimal commas are not understood.
"""

from __future__ import annotations

import re
from fractions import Fraction

from fsd_calib.tasks.grading.phrases import answer_places, last_box

MARK = "####"  # GSM8K's mark before the final answer

# A hyphen after a word, a digit, a closing bracket or another hyphen is an operator or a dash: 5-3, x-3.
_NUMBER = re.compile(
    r"""
    (?: (?<![\w)\]}%−-]) (?P<sign>[−-]) (?:\\?[$€£])? )?
    (?:
        \\[dt]?frac \s* (?: \{\s*(?P<top>\d+)\s*\} \s* \{\s*(?P<under>0*[1-9]\d*)\s*\} | (?P<top1>\d)(?P<under1>[1-9]) )
        # 1/2, 2 1/2
      | (?: (?P<whole>\d+)[ ] )? (?<![\d./,]) (?P<above>\d+) [ ]?/[ ]? (?P<below>0*[1-9]\d*) (?![\d/]|\.\d)
      | (?P<digits>
            (?: \d{1,3}(?:,\d{3})+(?!\d) | \d+ ) (?:\.\d+)?     # 1,234.50 or 1234.50 (and never 1,2345)
          | (?<![\w.]) \.\d+                                    # .50
        )
    )
    """,
    re.VERBOSE,
)
_TEX_SPACE = re.compile(r"\\[,!]")  # 12\,000
_DIRECTLY = re.compile(r"(?:\s|[*_`~≈:$€£\\({\[]|about|approximately|therefore|thus|-(?=\s)|text|boxed|=)*")
_EQUATION = re.compile(r"[^\n=]*=")  # up to its next equals sign


def final_number(text: str) -> Fraction | None:
    """Returns the answer of a text: the number after its last `####` that has one, else in its last box, else right
    after its last "the answer is", else its last number; None: it holds none."""
    marked = marked_number(text)
    if marked is not None:
        return marked
    boxed = last_box(text)
    if boxed is not None and (number := _last_number(boxed)) is not None:
        return number
    for place in answer_places(text):
        if (number := _number_at(text[place:])) is not None:
            return number
    return _last_number(text)


def marked_number(text: str) -> Fraction | None:
    """Returns the number behind the last `####` that has one on its line, or at once on the next, or None."""
    for after in reversed(text.split(MARK)[1:]):
        line, _, following = after.partition("\n")
        for number in (_number_at(line), _last_number(line), None if line.strip() else _number_at(following)):
            if number is not None:
                return number
    return None


def same_answer(reference: str, text: str) -> bool:
    """Whether both texts give the same number; a text without a number is never right."""
    answer = final_number(text)
    return answer is not None and answer == final_number(reference)


def numbers(text: str) -> list[Fraction]:
    """Returns all numbers of a text, in order."""
    return [_value(found) for found in _NUMBER.finditer(_plain(text))]


def _last_number(text: str) -> Fraction | None:
    found = numbers(text)
    return found[-1] if found else None


def _number_at(text: str) -> Fraction | None:
    """Returns the number that a text begins with, or the result of the equation that it begins with."""
    line = _plain(text).partition("\n")[0]
    while (found := _NUMBER.search(line)) and _DIRECTLY.fullmatch(line[: found.start()]):
        equation = _EQUATION.match(line, found.end())
        if equation is None or re.search(r"[.!?](?:\s|$)", equation[0]):  # the equals sign of another sentence
            return _value(found)
        line = line[equation.end() :]
    return None


def _plain(text: str) -> str:
    return _TEX_SPACE.sub("", text.replace("{,}", ","))


def _value(found: re.Match[str]) -> Fraction:
    part = found.groupdict()
    above, below = part["top"] or part["top1"] or part["above"], part["under"] or part["under1"] or part["below"]
    if above is None:
        number = Fraction(part["digits"].replace(",", ""))
    else:
        number = int(part["whole"] or 0) + Fraction(int(above), int(below))
    return -number if part["sign"] else number
