"""The problems whose texts differ between the target and the chosen setting, side by side."""

from __future__ import annotations

from fsd_calib.report.record import Answer as RecordedAnswer
from fsd_calib.report.record import Differing
from fsd_calib.report.run_folder import Run
from fsd_collectors.pages.blocks import Answer, Block, Section, Text, TextPair, Tone

_SUMMARY = 110  # characters of a prompt in one line


def differing_section(run: Run) -> Section:
    """Returns the section: how many texts differ, and some of them."""
    record = run.record
    blocks: list[Block] = []
    if record is None:
        blocks.append(Text(f"The problems are not shown: {run.lacks}.", "note"))
    else:
        compared = record.differences
        others = compared.texts - len(compared.shown)
        more = f" {others:,} more are not shown." if others else ""
        of = f"{compared.texts:,} of {compared.problems:,} texts on the {compared.source} part differ."
        blocks.append(Text(f"{of}{more}" if compared.texts else f"None of {compared.problems:,} texts differ."))
        blocks += [_pair(number, each) for number, each in enumerate(compared.shown)]
    return Section(
        "differing", "Problems where target and chosen setting differ",
        "What was lost comes first, then what was gained, then other texts with the same outcome; underlined from "
        "where the two texts part.",
        tuple(blocks),
    )  # fmt: skip


def _pair(number: int, each: Differing) -> TextPair:
    kind, tone = _outcome(each.target.correct, each.chosen.correct)
    same = _common_start(each.target.text, each.chosen.text)
    question = " ".join(each.prompt.split())
    summary = question if len(question) <= _SUMMARY else f"… {question[-_SUMMARY:]}"
    sides = (_side("The target alone", each.target, same), _side("The chosen setting", each.chosen, same))
    return TextPair(kind, summary, each.prompt, each.reference, sides, tone, open=number == 0)


def _common_start(one: str, other: str) -> str:
    length = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def _outcome(target: bool, chosen: bool) -> tuple[str, Tone]:
    if target == chosen:
        return ("Both right" if target else "Both wrong"), ""
    return ("Lost", "bad") if target else ("Gained", "good")


def _side(label: str, answer: RecordedAnswer, same: str) -> Answer:
    outcome = "right" if answer.correct else "wrong"
    return Answer(f"{label}: {outcome}, {answer.tokens} tokens", same, answer.text[len(same) :])
