"""The letter that a text chooses, of the choices (A), (B), …"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fsd_calib.tasks.grading.phrases import answer_places, last_box

LETTERS = "ABCDEFGHIJ"

_AROUND = "*_`\"'\u2018\u2019\u201c\u201d$"  # what stands around a letter, Markdown and LaTeX included
_OPEN = (
    rf"[\s:{_AROUND}]*(?:\\(?:text|mathrm|mathbf|textbf)\s*\{{)?(?:(?:option|choice|answer)\s+)?[{_AROUND}]*[(\[{{]?\s*"
)
_CLOSE = rf"\s*(?:[)\]}}.:,;!{_AROUND}]|$|\n|\s+(?:-|–|because|since|as|is|\())"


def final_choice(text: str, choices: Sequence[str]) -> str | None:
    """Returns the letter that a text ends up with; None: it names none, or only several at once.

    Args:
        text: A model's whole answer.
        choices: Answers in the order of their letters; a text may also give one in its own words.

    What counts is, in this order: the last box; what follows the last "the answer is", as a letter or as one of the
    choices in words; a line that is a letter alone; the last letter in brackets, where no other is; the answer itself,
    where it is one of the choices, whatever stands around it.
    """
    letters = LETTERS[: len(choices)]
    boxed = last_box(text)
    given = [] if boxed is None else [boxed]
    given += [text[place:] for place in answer_places(text)]
    for after in given:
        found = _letter_at(after, letters) or _in_words_at(after, choices)
        if found is not None:
            return found
    return _alone(text, letters) or _in_brackets(text, letters) or _whole(text, choices)


def _letter_at(text: str, letters: str) -> str | None:
    found = re.match(_OPEN + f"([{letters}{letters.lower()}])" + _CLOSE, text, re.IGNORECASE)
    if found is None:
        return None
    bracketed = text[: found.start(1)].rstrip().endswith(("(", "[", "{"))
    article = found[1] == "a" and not bracketed and re.match(r"\s+\w", text[found.end(1) :])
    return None if article else found[1].upper()


def _in_words_at(text: str, choices: Sequence[str]) -> str | None:
    """The choice that a text begins with; the longest, where one choice begins with another."""
    said = _folded(text)
    fitting = [(len(_folded(choice)), place) for place, choice in enumerate(choices)
               if _folded(choice) and re.match(re.escape(_folded(choice)) + r"(?!\w)", said)]  # fmt: skip
    return LETTERS[max(fitting)[1]] if fitting else None


def _alone(text: str, letters: str) -> str | None:
    """The letter of the last line that is nothing but a letter, or a letter and its choice: "B", "(B) a bank"."""
    found = re.findall(rf"^[\s*_`]*[(\[]?([{letters}])(?:[)\].:][^\n]*|[\s*_`]*)$", text, re.MULTILINE)
    return found[-1] if found and len(set(found)) == 1 else None


def _in_brackets(text: str, letters: str) -> str | None:
    found = set(re.findall(rf"[(\[]([{letters}])[)\]]", text))
    return found.pop() if len(found) == 1 else None


def _whole(text: str, choices: Sequence[str]) -> str | None:
    said = _folded(text)
    fitting = [place for place, choice in enumerate(choices) if _folded(choice) == said and said]
    return LETTERS[fitting[0]] if len(fitting) == 1 else None


def _folded(text: str) -> str:
    """Without case, repeated space, quotes and the full stop behind: "  **A bank.**" is "a bank"."""
    return " ".join(text.strip(f"{_AROUND} \n\t").rstrip(f".!,;:{_AROUND} \n\t").casefold().split())
