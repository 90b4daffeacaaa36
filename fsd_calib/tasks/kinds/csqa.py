"""The `csqa` task: questions of common sense with five options, from the Hugging Face hub or from a file.

CommonsenseQA: Talmor et al. 2019, arXiv 1811.00937. Its train part is used for tuning and its validation part for
certification, since the answers of its test part are not public; a file has no parts. A file has the hub's columns or
those of the original JSON lines.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsd_calib.tasks.asking import WorkedExamples
from fsd_calib.tasks.base import Example, TaskKind
from fsd_calib.tasks.grading.graders import same_choice
from fsd_calib.tasks.kinds import worked
from fsd_calib.tasks.kinds.multiple_choice import BEST_OPTION, choice_example
from fsd_calib.tasks.rows import HubData, Row, read_or_fetch

_HUB = HubData(
    "tau/commonsense_qa", {"train": "tuning", "validation": "certification"},
    instead="a local FILE.jsonl, in the original form or with the hub's columns",
)  # fmt: skip


def _example(row: Row) -> Example:
    asked = row["question"]
    if isinstance(asked, Mapping):  # the original form: {"question": {"stem": …, "choices": [{"label": …, "text": …}]}}
        inner = Row(row.where, asked)
        return choice_example(row, inner.text("stem"), inner["choices"], row["answerKey"])
    return choice_example(row, row.text("question"), row["choices"], row["answerKey"])


CSQA = TaskKind(
    "csqa", read_or_fetch("csqa", _HUB, _example), WorkedExamples(worked("csqa"), BEST_OPTION), 512, same_choice
)
