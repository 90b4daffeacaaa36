r"""Where a text gives its answer: in a box, `\boxed{…}`, or after a phrase such as "the answer is"."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\boxed\s+(?=[^\s{])")
_ANSWER = re.compile(
    r"""\b (?:(?:final|correct|best|right)\s+)* (?:answer|choice|option)\b [*_`]*
        (?: \s+ (?:here|to\s+(?:this|the)\s+(?:question|problem)) )?
        (?: \s* (?:\bis\b|\bwould\s+be\b|\bshould\s+be\b|\bmust\s+be\b|=|:) [*_`]* :? )""",
    re.VERBOSE | re.IGNORECASE,
)


def last_box(text: str) -> str | None:
    r"""Returns what is in the last `\boxed{…}`, whose braces may be nested, or up to the end where none closes it."""
    found = list(_BOX.finditer(text))
    if not found:
        return None
    start = found[-1].end()
    if not found[-1][0].endswith("{"):  # \boxed 5
        return text[start:].split(maxsplit=1)[0].rstrip("$.")
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0) if text[place - 1] != "\\" else 0
        if depth == 0:
            return text[start:place]
    return text[start:]


def answer_places(text: str) -> list[int]:
    """Returns where texts after "the answer is" and the like begin, the last one first."""
    return [found.end() for found in _ANSWER.finditer(text)][::-1]
