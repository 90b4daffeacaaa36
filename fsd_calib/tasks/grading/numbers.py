r"""Final numbers in texts, and whether two texts end in the same one.

Understands numbers as people and models write them: 1,234, $5.00, −3, 1/2, 2 1/2, 2½, \frac{1}{2}, \boxed{12}, 1e-07;
compares exact fractions, never floats. A percent sign, a unit and a currency are left out. Powers of ten in words or
signs ("3 million", "2 × 10^3") and decimal commas are not understood.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from fsd_calib.tasks.grading.phrases import answers, last_box

MARK = "####"  # GSM8K's mark before the final answer

_LONGEST = 1000  # characters of a number; Python refuses to read integers of more than 4300 digits
_LARGEST = 3  # digits of an exponent: that of 1e999999999 would fill the memory
_TERM = r"[−-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"

# A hyphen after a word, a digit, a closing bracket or another hyphen is an operator or a dash: 5-3, x-3.
_NUMBER = re.compile(
    rf"""
    (?: (?<![\w)\]}}%−-]) (?P<sign>[−-]) (?:\\?[$€£₹¥])? )?
    (?:
        (?: (?P<many>\d+) \s* )? \\[dt]?frac \s*                # 2\frac{{1}}{{2}}, \frac12, \frac1{{12}}
            (?: \{{\s*(?P<top>{_TERM})\s*\}} | (?P<top1>\d) ) \s*
            (?: \{{(?=[^{{}}]*[1-9])\s*(?P<under>{_TERM})\s*\}} | (?P<under1>[1-9]) )
      | (?: (?P<whole>\d+)[ ] )? (?<![\d./,]) (?P<above>\d+) [ ]?/[ ]? (?P<below>0*[1-9]\d*) (?![\d/]|\.\d)  # 2 1/2
      | (?P<digits>
            (?: \d{{1,3}}(?:,\d{{3}})+(?!\d) | \d+ ) (?:\.\d+)? # 1,234.50 or 1234.50 (and never 1,2345)
          | (?<![\w.]) \.\d+                                    # .50
        ) (?: [eE](?P<exponent>[+−-]?\d+)(?!\w) )?
    )
    """,
    re.VERBOSE,
)
_TEX_SPACE = re.compile(r"\\[,!]")  # 12\,000
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:[\u00a0\u2009\u202f]|\\ )\d{3})+(?!\d)")  # with spaces of fixed width
_SPACED = re.compile(r"[−-]?\d{1,3}(?: \d{3})+(?![\d/])")
_VULGAR = re.compile(r"(?:(?<=\d) ?)?[¼-¾⅐-⅞]")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z}])\s*\^\s*(?:\d|\{[−-]?\d+\})")  # of \text{ cm}^2
_DIRECTLY = re.compile(
    r"""(?: \s | [*_`~≈:$€£₹¥+\\({\["'\u2018\u2019\u201c\u201d=] | ,(?=\s) | -(?=\s) | </?\w{1,9}> | Rs\.? | US
        | about | approximately | around | exactly | indeed | just | only | roughly | simply | then | therefore | thus
        | text(?:bf|it|rm)? | math(?:bf|it|rm) | displaystyle | boxed )*""",
    re.VERBOSE,
)
_LINE_END = re.compile(r"\n(?![ \t]*&?=)")  # a line that begins with an equals sign goes on with the equation
_EQUATION = re.compile(r"[^=]*=")  # up to its next equals sign
_ITEM = re.compile(r"\d\d?[.)][ \t]+\S")  # 1. the first of several steps
_STEP = re.compile(r"[ \t*]*(\d\d?)[.)][ \t]+\S")  # 1. as a heading


def final_number(text: str) -> Fraction | None:
    """Returns the answer of a text: the number right after its last `####` that has one, else in its last box, else
    right after its last "the answer is", else on the line of its last `####`, else its last number; None: it holds
    none."""
    marked = marked_number(text)
    if marked is not None:
        return marked
    boxed = last_box(text)
    if boxed is not None and (number := _boxed_number(boxed)) is not None:
        return number
    for after in answers(text):
        if (number := _number_at(after)) is not None:
            return number
    marked_lines = [after.partition("\n")[0] for after in _marked(text)]
    behind = _last_number(marked_lines[-1]) if marked_lines else None
    return _last_number(text) if behind is None else behind


def marked_number(text: str) -> Fraction | None:
    """Returns the number that directly follows the last `####` that has one, on its line or the next, or None."""
    for after in reversed(_marked(text)):
        if (number := _number_at(after)) is not None:
            return number
    return None


def _marked(text: str) -> list[str]:
    """Returns what follows each `####`, up to the next.

    Headings of steps that are counted from 1 ("#### 1. Find the cost", "#### 2. Add the tax") mark no answers; a single
    one cannot be told from an answer.
    """
    marked = text.split(MARK)[1:]
    steps = {i: int(found[1]) for i, after in enumerate(marked) if (found := _STEP.match(after))}
    if len(steps) < 2 or list(steps.values()) != list(range(1, len(steps) + 1)):
        return marked
    return [after for i, after in enumerate(marked) if i not in steps]


def same_answer(reference: str, text: str) -> bool:
    """Whether both texts give the same number; a text without a number is never right."""
    answer = final_number(text)
    return answer is not None and answer == final_number(reference)


def numbers(text: str) -> list[Fraction]:
    """Returns all numbers of a text, in order."""
    return [number for found in _NUMBER.finditer(_plain(text)) if (number := _value(found)) is not None]


def _last_number(text: str) -> Fraction | None:
    found = numbers(text)
    return found[-1] if found else None


def _boxed_number(boxed: str) -> Fraction | None:
    """Returns the number that a box begins with, else its last one."""
    text = _UNIT_POWER.sub("", boxed)
    number = _number_at(text)
    return _last_number(text) if number is None else number


def _number_at(text: str) -> Fraction | None:
    """Returns the number that a text begins with, or the result of the equation that it begins with."""
    text, start = _begun(_plain(text))
    if _ITEM.match(text, start) and "\n" in text[:start]:
        return None
    ending = _LINE_END.search(text, start)
    at, end = 0, ending.start() if ending else len(text)
    while (found := _NUMBER.search(text, at, end)) and _DIRECTLY.fullmatch(text, at, found.start()):
        equation = _EQUATION.match(text, found.end(), end)
        if equation is None or re.search(r"[.!?](?:\s|$)", equation[0]):  # the equals sign of another sentence
            return _value(found)
        at = equation.end()
    return None


def _begun(text: str) -> tuple[str, int]:
    """Returns a text and where its first word or number begins, which is read as what an answer begins with: a dash
    before a number is a minus, and spaces between groups of three digits are left out."""
    leading = _DIRECTLY.match(text)
    start = leading.end() if leading else 0
    if re.compile(r"[–\u2011][\d.$€£₹¥\\]").match(text, start):
        text = f"{text[:start]}-{text[start + 1 :]}"
    if spaced := _SPACED.match(text, start):
        text = text[:start] + spaced[0].replace(" ", "") + text[spaced.end() :]
    return text, start


def _plain(text: str) -> str:
    text = _TEX_SPACE.sub("", text.replace("{,}", ","))
    text = _GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    return _VULGAR.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    mixed = found.start() > 0 and found.string[found.start() - 1].isdecimal()
    return " " * mixed + unicodedata.normalize("NFKC", found[0].strip()).replace("\u2044", "/")


def _value(found: re.Match[str]) -> Fraction | None:
    """Returns the number, or None where it is longer than can be read."""
    part = found.groupdict()
    exponent = (part["exponent"] or "0").replace("−", "-")
    if len(found[0]) > _LONGEST or len(exponent.lstrip("+-")) > _LARGEST:
        return None
    if part["digits"]:
        number = Fraction(f"{part['digits'].replace(',', '')}e{exponent}")
    else:
        above, below = part["top"] or part["top1"] or part["above"], part["under"] or part["under1"] or part["below"]
        number = int(part["many"] or part["whole"] or 0) + _term(above) / _term(below)
    return -number if part["sign"] else number


def _term(written: str) -> Fraction:
    return Fraction(written.replace(",", "").replace("−", "-"))
