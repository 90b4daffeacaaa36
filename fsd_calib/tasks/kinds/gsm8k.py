"""The `gsm8k` task: grade-school word problems, from the Hugging Face hub or from a file in the original form.

GSM8K: Cobbe et al. 2021, arXiv 2110.14168. Its train part is used for tuning and its test part for certification; a
file has no parts. The worked examples below were written for this project and are in neither part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fsd_calib.tasks.asking import Exemplar, WorkedExamples
from fsd_calib.tasks.base import Example, TaskKind, pick
from fsd_calib.tasks.grading.graders import same_number
from fsd_calib.tasks.grading.numbers import MARK, marked_number
from fsd_calib.tasks.rows import HubData, Row, examples_of, read_rows
from fsd_common.errors import UsageError

_HUB = HubData(
    "openai/gsm8k", {"train": "tuning", "test": "certification"}, "main", ("README.md", "main/*"),
    "--data FILE.jsonl takes a local file in the original form",
)  # fmt: skip


def _read(seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
    if data is not None:
        return pick(examples_of(read_rows(data), _example), seed, limit), str(data)
    found = [replace(_example(row), part=part) for row, part in _HUB.rows("gsm8k")]
    return pick(found, seed, limit), str(_HUB)


def _example(row: Row) -> Example:
    answer = row.text("answer")
    if marked_number(answer) is None:
        raise UsageError(f"{row.where}: the answer does not end in '{MARK} N'; N must be its final number")
    return Example(row.text("question"), answer)


_WORKED: tuple[Exemplar, ...] = (
    (
        "A community theater has 14 rows of 12 seats. On Friday all but 23 of the seats were sold, "
        "at $9 each. How much money did the theater take in on Friday?",
        "The theater has 14 * 12 = 168 seats.\n"
        "It sold 168 - 23 = 145 of them.\n"
        "So it took in 145 * 9 = $1305.\n"
        "#### 1305",
    ),
    (
        "Mei reads 18 pages on every weekday and twice as many on each day of the weekend. "
        "How many pages does she read in three weeks?",
        "On the five weekdays Mei reads 18 * 5 = 90 pages.\n"
        "On a day of the weekend she reads 18 * 2 = 36 pages, so on both she reads 36 * 2 = 72 pages.\n"
        "In one week that makes 90 + 72 = 162 pages.\n"
        "In three weeks she reads 162 * 3 = 486 pages.\n"
        "#### 486",
    ),
    (
        "A pump pours 35 liters of water a minute into an empty tank of 640 liters, while a leak loses "
        "3 liters a minute. How many minutes does it take until the tank is full?",
        "Each minute the tank gains 35 - 3 = 32 liters.\nIt is full after 640 / 32 = 20 minutes.\n#### 20",
    ),
    (
        "Tomas is 4 years older than twice the age of his niece. In 6 years he will be 46. How old is his niece now?",
        "Tomas is 46 - 6 = 40 years old now.\n"
        "Without the 4 extra years that leaves 40 - 4 = 36, which is twice his niece's age.\n"
        "So his niece is 36 / 2 = 18 years old.\n"
        "#### 18",
    ),
    (
        "A bakery sells loaves for $6 each and takes 25% off after 5 pm. On Monday it sold 40 loaves before "
        "5 pm and 16 loaves after. How many dollars did it earn with loaves that day?",
        "The discount on a loaf is 6 * 0.25 = $1.5.\n"
        "So a late loaf costs 6 - 1.5 = $4.5.\n"
        "The early loaves brought 40 * 6 = $240 and the late ones 16 * 4.5 = $72.\n"
        "Together the bakery earned 240 + 72 = $312.\n"
        "#### 312",
    ),
    (
        "Two cyclists leave the same square in opposite directions, one at 14 kilometers an hour and the "
        "other at 17. How many kilometers apart are they after 3 hours?",
        "Every hour the distance between them grows by 14 + 17 = 31 kilometers.\n"
        "After 3 hours they are 31 * 3 = 93 kilometers apart.\n"
        "#### 93",
    ),
    (
        "A gardener spends $84 on seedlings at $1.50 each. One eighth of them die, and she shares the rest "
        "equally among 7 beds. How many seedlings are in each bed?",
        "She buys 84 / 1.5 = 56 seedlings.\n"
        "Of these 56 / 8 = 7 die.\n"
        "That leaves 56 - 7 = 49 seedlings.\n"
        "Each bed gets 49 / 7 = 7 seedlings.\n"
        "#### 7",
    ),
    (
        "Of the 120 students of a school 40% walk there, and a quarter of the others come by bus. "
        "How many students come in another way?",
        "The students who walk are 120 * 0.4 = 48.\n"
        "The others are 120 - 48 = 72.\n"
        "Of those 72 / 4 = 18 come by bus.\n"
        "So 72 - 18 = 54 students come in another way.\n"
        "#### 54",
    ),
)

# Reference solutions stay under 400 tokens; instruction-tuned models explain more than those do.
GSM8K = TaskKind("gsm8k", _read, WorkedExamples(lambda asking: _WORKED), max_new_tokens=512, grader=same_number)
