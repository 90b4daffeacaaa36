"""The `csqa` task: questions of common sense with five options, from the Hugging Face hub or from a file.

CommonsenseQA: Talmor et al. 2019, arXiv 1811.00937. Its train part is used for tuning and its validation part for
certification, since the answers of its test part are not public; a file has no parts. A file has the hub's columns or
those of the original JSON lines. The worked examples below were written for this project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fsd_calib.tasks.asking import WorkedExamples
from fsd_calib.tasks.base import Example, TaskKind, pick
from fsd_calib.tasks.grading.graders import same_choice
from fsd_calib.tasks.kinds.multiple_choice import BEST_OPTION, Options, choice_example, worked_choice
from fsd_calib.tasks.rows import HubData, Row, examples_of, read_rows

_HUB = HubData(
    "tau/commonsense_qa", {"train": "tuning", "validation": "certification"},
    instead="--data FILE.jsonl takes a local file, in the original form or with the hub's columns",
)  # fmt: skip


def _read(seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
    if data is not None:
        return pick(examples_of(read_rows(data), _example), seed, limit), str(data)
    return pick([replace(_example(row), part=part) for row, part in _HUB.rows("csqa")], seed, limit), str(_HUB)


def _example(row: Row) -> Example:
    asked = row["question"]
    if isinstance(asked, Mapping):  # the original form: {"question": {"stem": …, "choices": [{"label": …, "text": …}]}}
        inner = Row(row.where, asked)
        question, listed = inner.text("stem"), inner["choices"]
    else:
        question, listed = row.text("question"), row["choices"]
    return choice_example(row, question, Options.of(row, listed), row["answerKey"])


_WORKED = (
    worked_choice(
        "Where would you most likely leave your coat during a concert?",
        ["stage", "cloakroom", "kitchen", "parking meter", "roof"],
        "During a concert people give their coats to someone who looks after them. Concert halls have a room for that, "
        "near the entrance. The stage is for the musicians, and the other places are not meant for coats.\n"
        "The answer is (B).",
    ),
    worked_choice(
        "Lena wanted her tea to cool quickly, so what did she add?",
        ["sugar", "a lid", "honey", "ice", "a spoon of salt"],
        "Something cold cools a hot drink. Sugar, honey and salt change its taste, and a lid keeps it warm. Of the "
        "options only ice is cold.\n"
        "The answer is (D).",
    ),
    worked_choice(
        "What do people do when they cannot hear a speaker?",
        ["move closer", "fall asleep", "close their eyes", "cook dinner", "whistle"],
        "A voice is louder the nearer one is. Whoever wants to understand the speaker therefore goes nearer. The other "
        "options do not help to hear.\n"
        "The answer is (A).",
    ),
    worked_choice(
        "The river had not seen rain for months; what had become of its bed?",
        ["flooded", "noisy", "steeper", "frozen", "dry"],
        "Without rain a river carries less and less water. After months its bed holds no water. Then it is dry, and "
        "neither flooded nor frozen.\n"
        "The answer is (E).",
    ),
    worked_choice(
        "What is a ladder used for by someone who paints a house?",
        ["mixing paint", "cleaning brushes", "reaching high places", "counting windows", "keeping dry"],
        "A painter has to get at walls below the roof, which are higher than a person can reach. A ladder takes one up "
        "there.\n"
        "The answer is (C).",
    ),
)

CSQA = TaskKind("csqa", _read, WorkedExamples(lambda asking: _WORKED, BEST_OPTION), 512, same_choice)
