"""The `lm-eval:…` tasks: any generative task of an installed lm-evaluation-harness, or a YAML file in its form.

Prompts, filters and metrics are lm-eval's own code. A task with training documents uses those for tuning and its test
(or validation) documents for certification; others have no parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsd_calib.tasks.asking import Asking
from fsd_calib.tasks.base import Example, Task, pick, problem_of, task_of
from fsd_calib.tasks.grading.apart import renew
from fsd_calib.tasks.harness.metric import MetricGrader, grader_of
from fsd_calib.tasks.harness.prompts import Document, Prompts, stop_of
from fsd_calib.tasks.harness.source import NAME, Source, check_file, check_installed, harness_task
from fsd_collectors.split import Part
from fsd_common.errors import UsageError

if TYPE_CHECKING:
    from fsd_decoding.profile.parts import PromptInfo


_TRIED = 3  # references by which is told whether a task's filters take them for answers


def lm_eval(argument: str) -> HarnessKind:
    """Returns the kind of task `lm-eval:argument`: a name or a YAML file, and after a comma the name of filters.

    Raises:
        UsageError: lm-eval is not installed, or the argument is empty, or the name of a file that is not there.
    """
    check_installed()
    task, _, filters = argument.partition(",")
    if not task:
        raise UsageError(f"task {NAME}: which one? Give {NAME}:gsm8k, {NAME}:gsm8k,flexible-extract or {NAME}:my.yaml")
    check_file(Source(task))
    return HarnessKind(task, filters or None)


@dataclass(frozen=True)
class HarnessKind:
    """Makes one task of lm-eval; implements `Kind`.

    Attributes:
        filters: The name of the filters that texts go through (None: the task's first).
    """

    argument: str
    filters: str | None

    @property
    def name(self) -> str:
        return f"{NAME}:{self.argument}" + ("" if self.filters is None else f",{self.filters}")

    def prompts(self, asking: Asking) -> PromptInfo:
        """See `Kind.prompts`; lm-eval makes them of whole documents."""
        return self._info(harness_task(Source(self.argument)), asking)

    def first_prompt(self, asking: Asking, document: Mapping[str, Any]) -> str:
        """Returns the prompt of the first document that is evaluated."""
        return Prompts(harness_task(Source(self.argument)), asking, self.prompts(asking)).prompt(document)

    def _info(self, task: Any, asking: Asking) -> PromptInfo:
        if asking.options.system is not None:
            raise UsageError(f"system is given, and task {self.name} has its own in its description; leave it out")
        return asking.info(None, stop_of(task), int(_generation(task)["max_gen_toks"]), digest_of=_code_of(task))

    def load(self, seed: int, limit: int | None, data: Path | None, asking: Asking) -> Task:
        """See `Kind.load`."""
        harness_task.cache_clear()  # its files may have changed
        renew()
        source = Source(self.argument, None if data is None else str(data))
        task, grader = harness_task(source), grader_of(source, self.filters)
        asked: dict[str, str] = {}  # a question that is repeated is asked with the same worked examples
        info, problems = self._info(task, asking), []
        try:
            for example, prompt in Prompts(task, asking, info).of(_chosen(task, seed, limit)):
                problems.append(problem_of(example, asked.setdefault(example.question, prompt)))
        except UsageError:
            raise
        except Exception as error:  # too few documents for the worked examples, or a function of the task
            raise source.refused(f"a prompt cannot be made ({type(error).__name__}: {error})") from error
        described = _description(source, task, grader)
        grading = f"{described} {_code_of(task)}"
        return task_of(
            self.name, problems, info, described, grader, grading=grading,
            keys_are_texts=all(grader(problem, problem.reference) for problem in problems[:_TRIED]),
        )  # fmt: skip


def _chosen(task: Any, seed: int, limit: int | None) -> Iterator[Document]:
    """Yields all documents, of which `limit` are chosen."""
    has_parts = task.has_training_docs()
    groups: list[tuple[Part | None, Any]] = [("certification" if has_parts else None, task.eval_docs)]
    if has_parts:
        groups.append(("tuning", task.training_docs()))
    documents = [(part, content) for part, group in groups for content in group]
    numbered = [Example(str(number), "", part) for number, (part, _) in enumerate(documents)]
    kept = {int(example.question) for example in pick(numbered, seed, limit)}
    for number, (part, content) in enumerate(documents):
        yield Document(number, part, content, number in kept)


def _generation(task: Any) -> dict[str, Any]:
    """Returns a task's generation settings under lm-eval's own names, with its defaults."""
    from lm_eval.models.utils import normalize_gen_kwargs

    settings: dict[str, Any] = normalize_gen_kwargs(task.config.generation_kwargs or {})
    return settings


def _code_of(task: Any) -> str:
    """A hash of all that a task's configuration says, its filters and metrics included."""
    return hashlib.sha256(json.dumps(task.dump_config(), sort_keys=True, default=str).encode()).hexdigest()


def _description(source: Source, task: Any, grader: MetricGrader) -> str:
    """Returns what profiles record of the source: the data, the metric, and sampling that is left to the user."""
    from importlib.metadata import version

    settings = _generation(task)
    config = " ".join(filter(None, (task.config.dataset_path, task.config.dataset_name)))
    sampled = (
        f"; it asks for temperature {settings.get('temperature', 1.0)}, which --temperature sets"
        if settings["do_sample"]
        else ""
    )
    return (
        f"{source.data or config} by lm_eval {version('lm-eval')}, task {task.config.task} {task.VERSION}, "
        f"{grader.metric} after {grader.filter}{sampled}"
    )
