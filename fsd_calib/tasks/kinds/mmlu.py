"""The `mmlu` task: examination questions of 57 subjects with four options, answered after a chain of thought.

MMLU: Hendrycks et al. 2021, arXiv 2009.03300. From the Hugging Face hub its validation part is used for tuning and its
test part for certification; files have no parts. A file has the hub's columns; a folder has one CSV file a subject, as
the original repository does, with or without a header. A limited choice of problems has every subject in proportion.
`mmlu:astronomy,anatomy` takes these subjects alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fsd_calib.tasks.asking import WorkedExamples
from fsd_calib.tasks.base import Example, Kind, Read, TaskKind, pick
from fsd_calib.tasks.grading.graders import same_choice
from fsd_calib.tasks.kinds import worked
from fsd_calib.tasks.kinds.multiple_choice import BEST_OPTION, choice_example
from fsd_calib.tasks.rows import HubData, Row, read_rows
from fsd_common.errors import UsageError

_HUB = HubData(
    "cais/mmlu", {"validation": "tuning", "test": "certification"}, "all", ("README.md", "all/*"),
    "a file with the hub's columns, or a folder with a CSV file for each subject",
)  # fmt: skip
_PLAIN = ("question", "A", "B", "C", "D", "answer")  # the columns of the original files, which have no header
_OPTIONS = (("choice0", "choice1", "choice2", "choice3"), _PLAIN[1:5])
_SPLIT = re.compile(r"_(?:test|dev|val)$")


def mmlu(subjects: str) -> Kind:
    """Returns the task with these subjects, separated by commas, or with all where there are none."""
    wanted = tuple(dict.fromkeys(filter(None, (_subject(name) for name in subjects.split(",")))))
    name, asks = (f"mmlu:{','.join(some)}" if some else "mmlu" for some in (wanted, sorted(wanted)))
    form = WorkedExamples(worked("mmlu"), BEST_OPTION)
    return TaskKind(name, _reader(wanted), form, 512, same_choice, asks=asks)


def _subject(name: str) -> str:
    return name.strip().casefold().replace(" ", "_")


def _reader(subjects: Sequence[str]) -> Read:
    def read(seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
        if data is None:
            found = [replace(_example(row), part=part) for row, part in _HUB.rows("mmlu")]
        else:
            found = [_example(row) for row in _local_rows(data)]  # of the original ones some repeat others
        return pick(_of_subjects(found, subjects), seed, limit), str(_HUB if data is None else data)

    return read


def _of_subjects(examples: Sequence[Example], subjects: Sequence[str]) -> Sequence[Example]:
    known = {example.stratum for example in examples}
    if unknown := [name for name in subjects if name not in known]:
        listed = ", ".join(sorted(known - {""})) or "not named"
        raise UsageError(f"subject {unknown[0]!r}: the problems have none of this name; theirs are {listed}")
    return [example for example in examples if not subjects or example.stratum in subjects]


def _local_rows(data: Path) -> list[Row]:
    if not data.is_dir():
        return read_rows(data)
    files = sorted(file for file in data.iterdir() if file.name.removesuffix(".gz").endswith(".csv"))
    if not files:
        raise UsageError(f"data folder {data}: it has no CSV files; give the folder that has one for each subject")
    return [row for file in files for row in _subject_rows(file)]


def _subject_rows(file: Path) -> list[Row]:
    rows = read_rows(file)
    if "question" not in rows[0].columns:
        rows = read_rows(file, _PLAIN)
    subject = _SPLIT.sub("", file.name.partition(".")[0])
    return [Row(row.where, {**row.columns, "subject": subject}) for row in rows]


def _example(row: Row) -> Example:
    stratum = row.text("subject") if "subject" in row.columns else ""
    example = choice_example(row, row.text("question"), _options(row), row["answer"], _subject(stratum))
    return replace(example, source=row.columns)


def _options(row: Row) -> object:
    for names in _OPTIONS:
        if names[0] in row.columns:
            return [row[name] for name in names]
    return row["choices"]
