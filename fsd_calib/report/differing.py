"""The problems whose texts differ between the target and the chosen setting, side by side."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from fsd_calib.report.record import Answer as RecordedAnswer
from fsd_calib.report.record import Differing
from fsd_calib.report.run_folder import Run
from fsd_common.pages.blocks import Answer, Block, Legend, Paragraph, Piece, Section, ShownToken, TextPair, Tone

_SOURCES = Legend((
    ("exact", "the exact rule accepts it too"), ("fuzzy", "accepted only because D ≤ T"),
    ("fallback", "in place of a rejected token"), ("bonus", "added after a wholly accepted draft"),
))  # fmt: skip
_SUMMARY = 140  # characters of a question


def differing_section(run: Run) -> Section:
    """Returns the section: how many texts differ, and some of them."""
    record = run.record
    blocks: list[Block] = []
    if record is None:
        blocks.append(Paragraph(f"The problems are not shown: {run.lacks}.", "note"))
    else:
        compared = record.differences
        others = compared.texts - len(compared.shown)
        more = f" {others:,} more are not shown." if others else ""
        of = f"{compared.texts:,} of {compared.problems:,} texts on the {compared.source} part differ."
        blocks.append(Paragraph(f"{of}{more}" if compared.texts else f"None of {compared.problems:,} texts differ."))
        if compared.untold:
            blocks.append(Paragraph(f"Tokens are not coloured by their source: {compared.untold}.", "note"))
        if any(each.sources for each in compared.shown):
            blocks.append(_SOURCES)
        blocks += [_pair(number, each) for number, each in enumerate(compared.shown)]
    return Section(
        "differing", "Problems where target and chosen setting differ",
        "What was lost comes first, then what was gained, then other texts with the same outcome; words that differ "
        "are underlined.",
        tuple(blocks),
    )  # fmt: skip


def _pair(number: int, each: Differing) -> TextPair:
    kind, tone = _outcome(each.target.correct, each.chosen.correct)
    question = " ".join((each.question or each.prompt).split())
    summary = question if len(question) <= _SUMMARY else f"{question[:_SUMMARY]} …"
    target, chosen = _pieces(each.target.text, each.chosen.text)
    tokens = tuple(ShownToken(token.text, token.source, token.says) for token in each.sources)
    sides = (
        _side("The target alone", each.target, target),
        _side("The chosen setting", each.chosen, chosen, tokens),
    )
    return TextPair(kind, summary, each.prompt, each.reference, sides, tone, open=number == 0)


def _pieces(one: str, other: str) -> tuple[list[Piece], list[Piece]]:
    """Both texts in pieces of words that they share, and words that they do not."""
    words = [re.findall(r"\s+|\S+", text) for text in (one, other)]
    pieces: tuple[list[Piece], list[Piece]] = ([], [])
    for what, *ends in SequenceMatcher(None, words[0], words[1]).get_opcodes():
        for side, its_words, (begin, end) in zip(pieces, words, (ends[:2], ends[2:]), strict=True):
            if begin < end:
                side.append(Piece("".join(its_words[begin:end]), what != "equal"))
    return pieces


def _outcome(target: bool, chosen: bool) -> tuple[str, Tone]:
    if target == chosen:
        return ("Both right" if target else "Both wrong"), ""
    return ("Lost", "bad") if target else ("Gained", "good")


def _side(label: str, answer: RecordedAnswer, pieces: list[Piece], tokens: tuple[ShownToken, ...] = ()) -> Answer:
    outcome = "right" if answer.correct else "wrong"
    return Answer(f"{label}: {outcome}, {answer.tokens} tokens", tuple(pieces), tokens)
