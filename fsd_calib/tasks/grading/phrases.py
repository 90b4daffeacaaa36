r"""Where a text gives its answer: in a box, `\boxed{…}`, or after a phrase such as "the answer is"."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\boxed\s+(?=[^\s{])")
_ANSWER = re.compile(
    r"""
    ^ [ \t\#*_>]* (?:final\ )? answer [ \t*_`]* $                               # a heading: ### Answer
  | \b (?: answer | choice | option | final\s+result ) \b [*_`]*
    (?: \s+ (?: here | (?:to|among|of|from|for)\s+(?:this|the|these|those)\s+(?:(?:given|above|listed)\s+)?
                       (?:question|problem|options|choices|answers) ) )?
    (?: \s* (?: \b(?:is|would\s+be|should\s+be|must\s+be)\b | = | : ) [*_`]* :? | \s+[-–—](?=\s) )
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
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


def answers(text: str) -> list[str]:
    """Returns what follows each "the answer is" and the like, up to the next one, the last one first."""
    found = list(_ANSWER.finditer(text))
    ends = [*(phrase.start() for phrase in found[1:]), len(text)]
    return [text[phrase.end() : end] for phrase, end in zip(found, ends, strict=False)][::-1]
