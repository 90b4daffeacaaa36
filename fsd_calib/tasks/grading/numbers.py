"""Final numbers in texts, and whether two texts end in the same one.

Understands numbers as people and models write them: 1,234, $5.00, −3, \\boxed{12}; compares exact decimals, never
floats. Fractions ("1/2" is a 1 and a 2), powers of ten ("1e6") and decimal commas are not understood.
"""

from __future__ import annotations

import re
from decimal import Decimal

MARK = "####"  # GSM8K's mark before the final answer

# A hyphen after a word, a digit, a closing bracket or another hyphen is an operator or a dash: 5-3, x-3.
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
    """Returns the answer of a text: the last number after its last `####`, else its last number, or None."""
    marked = marked_number(text)
    return _last_number(text) if marked is None else marked


def marked_number(text: str) -> Decimal | None:
    """Returns the last number after the last `####`, or None where there is none."""
    _, mark, after = text.rpartition(MARK)
    return _last_number(after) if mark else None


def same_answer(reference: str, text: str) -> bool:
    """Whether both texts give the same number; a text without a number is never right."""
    answer = final_number(text)
    return answer is not None and answer == final_number(reference)


def _last_number(text: str) -> Decimal | None:
    found = list(_NUMBER.finditer(_TEX_SPACE.sub("", text.replace("{,}", ","))))
    if not found:
        return None
    number = Decimal(found[-1]["digits"].replace(",", ""))
    return number.copy_negate() if found[-1]["sign"] else number
