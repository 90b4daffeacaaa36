"""Right or wrong by a metric of lm-evaluation-harness: a text through a task's filters, and its document's value.

That is code of the task, which a text may break: it runs in the graders' own process, which loads the task once more.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fsd_calib.tasks.base import Problem
from fsd_calib.tasks.grading.apart import Apart
from fsd_calib.tasks.harness.source import Source, harness_task

_SECONDS = 20.0  # CPU time of the filters and metrics of one text


@dataclass(frozen=True)
class MetricGrader:
    """A `Grader`: the value of a task's metric for one document and one text.

    Attributes:
        filter: The name of the filters (`filter_list`) that a text goes through.
    """

    source: Source
    filter: str
    metric: str

    def __call__(self, problem: Problem, text: str) -> bool:
        value_of = Apart(f"{__name__}:valuation", (*self.source, self.filter, self.metric), _SECONDS)
        document = base64.b64encode(pickle.dumps(dict(problem.row))).decode()
        value = value_of(document, text)
        if isinstance(value, str):
            raise self.source.refused(
                f"{self.metric} of document {problem.id} is {value}, and must be 0 or 1; give a task with a metric "
                "that is, such as exact_match"
            )
        return bool(value)


def valuation(argument: str, data: str | None, chosen: str, metric: str) -> Callable[[str, str], bool | str]:
    """Returns a function of a pickled document and a text: whether it is right, or the value that does not say so.

    Raises:
        UsageError: See `harness_task`.
    """
    source = Source(argument, data)
    harness_task(source)

    def value_of(document: str, text: str) -> bool | str:
        value = values(source, chosen, pickle.loads(base64.b64decode(document)), text).get(metric)
        return bool(value) if _is_right_or_wrong(value) else repr(value)

    return value_of


def grader_of(source: Source, wanted: str | None) -> MetricGrader:
    """Returns the grader of a task: its first metric whose values are 0 or 1, after these filters or the first.

    Two texts of the first document are tried, its own answer and half of it: of a metric by degrees (F1, ROUGE) not
    both values are 0 or 1.

    Raises:
        UsageError: The task has no such filters, or no such metric.
    """
    task = harness_task(source)
    filters = [each.name for each in task._filters]
    chosen = filters[0] if wanted is None else wanted
    if chosen not in filters:
        raise source.refused(f"it has no filters {chosen!r}; after the comma give one of {', '.join(filters)}")
    document = task.eval_docs[0]
    answer = reference(task, document)
    tried = [values(source, chosen, document, text) for text in (answer, answer[: len(answer) // 2])]
    for metric in tried[0]:
        higher = task.higher_is_better().get(metric, True)
        if higher and all(_is_right_or_wrong(found.get(metric)) for found in tried):
            return MetricGrader(source, chosen, metric)
    raise source.refused(
        f"its metrics ({', '.join(tried[0])}) give a document another value than 0 (wrong) or 1 (right); give a task "
        "with one that does, such as exact_match, or add it in a YAML of your own that includes this one"
    )


def values(source: Source, chosen: str, document: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Returns what a task's metrics say of one text, by name."""
    from lm_eval.api.instance import Instance

    task = harness_task(source)
    asked = Instance("generate_until", dict(document), ("", {}), 0, (task.config.task, 0, 1))
    asked.resps.append(text)
    next(each for each in task._filters if each.name == chosen).apply([asked])
    found: dict[str, Any] = task.process_results(dict(document), [asked.filtered_resps[chosen]])
    return found


def reference(task: Any, document: Mapping[str, Any]) -> str:
    """Returns a document's answer; the first, where it has several."""
    answer = task.doc_to_target(document)
    if isinstance(answer, int) and task.config.doc_to_choice is not None:
        answer = task.doc_to_choice(document)[answer]
    if isinstance(answer, (list, tuple)):
        answer = answer[0] if answer else ""
    return str(answer)


def _is_right_or_wrong(value: Any) -> bool:
    """Whether a value is a number that is 0 or 1; numpy's are too."""
    return not isinstance(value, (str, list, tuple, dict)) and value is not None and value in (0, 1)
