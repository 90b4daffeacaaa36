"""The letter that a text chooses, of the choices (A), (B), …"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fsd_calib.tasks.grading.phrases import answers, last_box
from fsd_decoding.profile.prompt_form import LETTERS

_AROUND = "*_`\"'\u2018\u2019\u201c\u201d$"  # what stands around a letter, Markdown and LaTeX included
_CLOSING = rf"[)\]}}>\\{_AROUND}]*+"
_LEADING = rf"""(?: [\s:(\[{{<\\{_AROUND}] | (?:text(?:bf|it|rm)?|math(?:bf|rm)|boxed
        |option|choice|answer|letter|clearly|indeed
        |likely|most|obviously|probably|simply|then|therefore|thus|hence)(?![^\W_]) | ,(?=\s) )*+"""
_REJECTED = r"(?: not\s+(?:option\s+)?[(\[]?[A-J][)\]]?[\s,;:.–—-]+(?:but|instead|it\s+is|it['\u2019]s|rather) )?"
_LETTER = re.compile(rf"{_LEADING} {_REJECTED} {_LEADING} (?P<letter>[A-J])(?!\w)", re.VERBOSE | re.IGNORECASE)
_CLOSE = re.compile(
    rf"(?!['\u2019]s\b)\s*(?:[)\]}}>.:,;!\\{_AROUND}]|$|\n|\s+(?:[-–—]|because|since|as|is|not|rather|and\s+not|\())"
)
_NO_SENTENCE = r"(?!\w|['\u2019]s?\w|\s+(?:is|are|was|were|can|does|has|would)\b)"
# Another letter at once, "B, C" or "(A)/(B)", or in brackets behind an option's words: "(A) bank or (B) library".
_SEVERAL = re.compile(
    rf"""{_CLOSING} (?: (?: \s*(?:[,/&+]|\b(?:and|or)\b) )+ \s* (?:option\s+)? [*_(\[\\$]*[A-J]{_CLOSING}
       | (?: [^\n.;()\[\]]{{1,80}} \s(?:and|or) )? \s+ (?:option\s+)? [*_]*[(\[][A-J][)\]] ) {_NO_SENTENCE}""",
    re.VERBOSE,
)
_RIGHT = (
    r"(?:(?:the\s+)?(?:only\s+|most\s+)?(?:correct|right|best)\s+(?:answer|choice|option)|the\s+answer|correct|right)\b"
)
_STATED = re.compile(
    rf"""(?<![\w(\[*-]) [(\[*]*+ ([A-J]) [)\]*]*+ \s+ (?:is|must\s+be|would\s+be) \s+ {_RIGHT}
       | \b(?:I|[Ww]e) (?:\s+|['\u2019]d\s+) (?:would\s+|will\s+)? (?:choose|chose|go\s+with|pick|select) \s+
         (?:option\s+|answer\s+)? [(\[*]*+ ([A-J]) (?![\w'\u2019])
       | (?:^|(?<=[.!?:]\ )) (?:So|Therefore|Thus|Hence) ,?[ ] (?:it\s+is\s+|option\s+)? [(\[*]*+ ([A-J])
         [)\]*]*+ (?: \.?[*]*$ | \.\s )
       | (?<![\w(\[*-]) [(\[*]*+ ([A-J]) [)\]*]*+ ,? \s+ not \s+ [(\[*]*+ [A-J] (?!\w)""",
    re.VERBOSE | re.MULTILINE,
)
_CONNECTORS = r"(?:or|and|to|nor|vs|versus|times|plus|minus|over|by|through)\b"
# What may follow an option in words: an end, or the next words, unless they make it a part of something else (1/6).
_AFTER = re.compile(
    rf"[)\]}}\\{_AROUND}]*+(?:$|[.,;:!?](?=[\s)\]}}{_AROUND}]|$)"
    rf"|\s(?=\()|\s[-–—]\s(?=[^\W\d])|\s(?!{_CONNECTORS})(?=[^\W\d]))"
)
_TEX = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:bf|rm))\s*\{([^{}]*)\}|\\[()\[\]]")
_ARTICLE = re.compile(r"(?:an?|the) ")
_LINE = re.compile(r"[ \t>#*_`]*[(\[]?(?P<letter>[A-J])[*_`]*(?P<mark>[)\].:]*)(?P<words>(?!\w).*)")


def final_choice(text: str, choices: Sequence[str]) -> str | None:
    """Returns the letter that a text ends up with; None: it names none, or only several at once.

    Args:
        text: A model's whole answer.
        choices: Answers in the order of their letters; a text may also give one in its own words.

    What counts is, in this order: the last box; what follows the last "the answer is", as a letter or as one of the
    choices in words; a line that is a letter alone, or a letter and its choice; the last "B is correct", "I choose B",
    "So B." or "B, not A"; the letter in brackets, where no other is; the answer itself, where it is one of the
    choices, whatever stands around it.
    """
    boxed = last_box(text)
    for given in ([] if boxed is None else [boxed]) + answers(text):
        found = _letter_at(given, choices)
        if found is None:
            found = _in_words_at(given, choices)
        if found is not None:
            return found or None
    return _alone(text, choices) or _stated(text, choices) or _in_brackets(text, choices) or _whole(text, choices)


def _letter_at(text: str, choices: Sequence[str]) -> str | None:
    """The letter that a text begins with; "" where it begins with several."""
    found = _LETTER.match(text)
    if found is None or found["letter"].upper() not in LETTERS[: len(choices)]:
        return None
    letter, rest = found["letter"].upper(), text[found.end() :]
    bracketed = text[: found.start("letter")].rstrip().endswith(("(", "[", "{", "<"))
    if found["letter"] == "a" and not bracketed and re.match(r"\s+\w", rest):  # an article
        return None
    if _begins_with(_bare(_folded(rest)), _bare(_folded(choices[LETTERS.index(letter)]))):
        return letter
    if _SEVERAL.match(rest):
        return ""
    return letter if _CLOSE.match(rest) else None


def _in_words_at(text: str, choices: Sequence[str]) -> str | None:
    """The choice that a text begins with; the longest, where one choice begins with another."""
    said = _folded(text)
    for form in (str, _bare):  # "the mall" and "a mall" may be two choices
        fitting = [(len(_folded(choice)), place) for place, choice in enumerate(choices)
                   if _begins_with(form(said), form(_folded(choice)))]  # fmt: skip
        if fitting:
            return LETTERS[max(fitting)[1]]
    return None


def _begins_with(said: str, choice: str) -> bool:
    return bool(choice) and said.startswith(choice) and _AFTER.match(said, len(choice)) is not None


def _alone(text: str, choices: Sequence[str]) -> str | None:
    """The letter of the lines that are nothing but a letter, or a letter and its choice, if all have the same."""
    if re.fullmatch(rf"[(\[]?[{LETTERS[: len(choices)].lower()}][)\].]?", text.strip()):
        return text.strip("([)]. \t\r\n").upper()
    found = {letter for line in text.splitlines() if (letter := _alone_on(line, choices))}
    return found.pop() if len(found) == 1 else None


def _alone_on(line: str, choices: Sequence[str]) -> str | None:
    found = _LINE.fullmatch(line)
    if found is None or found["letter"] not in LETTERS[: len(choices)]:
        return None
    choice, words = _folded(choices[LETTERS.index(found["letter"])]), _folded(found["words"])
    own = any(form(words) == form(choice) for form in (str, _bare)) or (
        found["mark"] and re.match(r"\s*[.:;(]|\s+[-–—]\s", words[len(choice) :]) and words.startswith(choice)
    )
    return found["letter"] if own or not words else None


def _stated(text: str, choices: Sequence[str]) -> str | None:
    found = [next(filter(None, part.groups())) for part in _STATED.finditer(text)]
    return found[-1] if found and found[-1] in LETTERS[: len(choices)] else None


def _in_brackets(text: str, choices: Sequence[str]) -> str | None:
    found = set(re.findall(rf"[(\[]([{LETTERS[: len(choices)]}])[)\]]", text))
    return found.pop() if len(found) == 1 else None


def _whole(text: str, choices: Sequence[str]) -> str | None:
    for form in (str, _bare):
        said = form(_folded(text))
        fitting = [place for place, choice in enumerate(choices) if form(_folded(choice)) == said and said]
        if fitting:
            return LETTERS[fitting[0]] if len(fitting) == 1 else None
    return None


def _bare(folded: str) -> str:
    """Without the article in front."""
    return _ARTICLE.sub("", folded, count=1) if _ARTICLE.match(folded) else folded


def _folded(text: str) -> str:
    r"""Without case, \text{}, repeated space, quotes and the full stop behind: "  **A bank.**" is "a bank"."""
    text = _TEX.sub(r"\1", text)
    return " ".join(text.strip(f"{_AROUND} \n\t").rstrip(f".!,;:{_AROUND} \n\t").casefold().split())
