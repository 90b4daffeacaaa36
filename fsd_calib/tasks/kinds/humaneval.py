"""The `humaneval` task: functions to write from their docstring, graded by their tests in the sandbox.

HumanEval: Chen et al. 2021, arXiv 2107.03374; pass@1 is the share of problems whose first answer passes. The source has
one part, which is split by content. Its 164 problems, some 115 of them for the certificate, are few: they can only show
that no large share of the accuracy is lost.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsd_calib.tasks.base import Example, Prompting, TaskKind, pick
from fsd_calib.tasks.grading.python_tests import COLUMNS, STOP, passes_tests
from fsd_calib.tasks.prompts import chat_prompts, has_chat_template
from fsd_calib.tasks.sandbox.preflight import checked_bwrap
from fsd_decoding.errors import UsageError
from fsd_decoding.hub import explain, fetch_data, hub

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HUB = "openai/openai_humaneval"
_SPLIT = "test"
_SOLUTION = "canonical_solution"
_INSTRUCTION = (
    "Complete the Python function that the user gives. Answer with one ```python block that holds the whole function, "
    "its signature and the imports it needs included, and no examples of its use."
)
_GZIP = b"\x1f\x8b"


def _read(seed: int, limit: int | None, data: Path | None) -> tuple[Sequence[Example], str]:
    checked_bwrap()  # before anything is decoded that could not be graded
    if data is not None:
        return pick(_examples(_from_file(data)), seed, limit), str(data)
    return pick(_examples(_from_hub()), seed, limit), f"{_HUB} ({_SPLIT})"


def _from_hub() -> Iterable[tuple[str, Any]]:
    from datasets import load_dataset

    try:
        folder = fetch_data(_HUB, ("README.md", "openai_humaneval/*"))
        rows = load_dataset(_HUB if folder is None else str(folder), split=_SPLIT)
    except Exception as error:  # network, hub, cache or disk: the way out is the same
        raise UsageError(
            f"task humaneval: {_HUB} cannot be loaded from {hub()} or its local cache: "
            f"{explain(_HUB, error, 'hf download --repo-type dataset')}; "
            "--data HumanEval.jsonl.gz takes the original file"
        ) from error
    return ((f"{_HUB}, row {number}", row) for number, row in enumerate(rows, start=1))


def _from_file(path: Path) -> Iterable[tuple[str, Any]]:
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content.startswith(_GZIP) else content).decode("utf-8-sig")
    except (OSError, EOFError, ValueError, zlib.error) as error:  # missing, cut short, no UTF-8, damaged
        raise UsageError(f"data file {path}: cannot be read ({error}); give HumanEval.jsonl.gz as published") from None
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{path}, line {number}"
        if line.strip():
            try:
                rows.append((where, json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{where}: not JSON ({error}); each line must be one object") from None
    if not rows:
        raise UsageError(f"data file {path}: it is empty; it must hold one problem per line")
    return rows


def _examples(rows: Iterable[tuple[str, Any]]) -> list[Example]:
    """Returns the examples of rows, which come with the names of their places."""
    examples: dict[str, Example] = {}
    for where, row in rows:
        example = _example(where, row)
        if examples.setdefault(example.question, example) is not example:
            raise UsageError(f"{where}: repeats the prompt of an earlier one; each may occur once, remove it")
    return list(examples.values())


def _example(where: str, row: Any) -> Example:
    """White space is kept, as it is part of the program."""
    for column in (*COLUMNS, _SOLUTION):
        if not isinstance(row, Mapping) or not isinstance(row.get(column), str):
            raise UsageError(f"{where}: no text {column!r}; each row must hold {', '.join((*COLUMNS, _SOLUTION))}")
    return Example(row["prompt"], row[_SOLUTION], row={column: row[column] for column in COLUMNS})


def _prompts(tokenizer: PreTrainedTokenizerBase | None) -> Prompting:
    """Chat models are instructed; others complete the prompt itself."""
    if tokenizer is not None and has_chat_template(tokenizer):
        chat_of = chat_prompts(tokenizer, _INSTRUCTION)
        return Prompting(lambda example: chat_of(example.question), ())
    return Prompting(lambda example: example.question, STOP)


HUMANEVAL = TaskKind("humaneval", _read, _prompts, max_new_tokens=512, grader=passes_tests)
