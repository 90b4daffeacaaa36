"""Numbers in text, and whether two texts end in the same one.

Knows how people and models write numbers: 1,234, $5.00, −3, \\boxed{12}. Compares exact decimals, never
floats. Does not know fractions ("1/2" is a 1 and a 2), powers of ten ("1e6") or decimal commas.
"""

from __future__ import annotations

import re
from decimal import Decimal

MARK = "####"  # GSM8K's mark before the final answer

# A hyphen behind a word, a digit, a closing bracket or another hyphen is an operator or a dash: 5-3, x-3.
_NUMBER = re.compile(
    r"""
    (?: (?<![\w)\]}%−-]) (?P<sign>[−-]) (?:\\?[$€£])? )?
    (?P<digits>
        (?: \d{1,3}(?:,\d{3})+(?!\d) | \d+ ) (?:\.\d+)?     # 1,234.50 or 1234.50 (and never 1,2345)
      | (?<![\w.]) \.\d+                                    # .50
    )
    """,
    re.VERBOSE,
)
_TEX_SPACE = re.compile(r"\\[,!]")  # 12\,000


def final_number(text: str) -> Decimal | None:
    """The answer a text gives: the last number after its last `####`, else its last number, or None."""
    marked = marked_number(text)
    return _last_number(text) if marked is None else marked


def marked_number(text: str) -> Decimal | None:
    """The last number after the last `####`, or None where there is none."""
    _, mark, after = text.rpartition(MARK)
    return _last_number(after) if mark else None


def same_answer(reference: str, text: str) -> bool:
    """Whether both texts give the same number; a text without a number answers nothing."""
    answer = final_number(text)
    return answer is not None and answer == final_number(reference)


def _last_number(text: str) -> Decimal | None:
    found = list(_NUMBER.finditer(_TEX_SPACE.sub("", text.replace("{,}", ","))))
    if not found:
        return None
    number = Decimal(found[-1]["digits"].replace(",", ""))
    return number.copy_negate() if found[-1]["sign"] else number
