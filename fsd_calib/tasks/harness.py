"""The `lm-eval` tasks: lm-eval:NAME, a generative task of the installed lm-evaluation-harness or of a YAML file for it.

Prompts, filters and metrics are lm-eval's own code. A task with training documents uses those for tuning and its test
(or validation) documents for certification; others have no parts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fsd_calib.tasks.asking import Asking
from fsd_calib.tasks.base import Example, Problem, Task, pick, problem_of, task_of
from fsd_calib.tasks.grading.apart import Apart, renew
from fsd_collectors.split import Part
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_decoding.profile.rendering import rejects_system, render_chat, system_before_user

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from fsd_decoding.profile.prompt_form import PromptInfo

NAME = "lm-eval"
_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}  # of `datasets`
_SPLIT = "file"
_YAML = (".yaml", ".yml")


class Source(NamedTuple):
    """What a task is made of, as text: it is pickled instead of the task, which may hold functions of its YAML file.

    Attributes:
        argument: The task's name, or the path of its YAML file.
        data: A file that replaces its data set.
    """

    argument: str
    data: str | None = None

    @property
    def name(self) -> str:
        return f"{NAME}:{self.argument}"

    def refused(self, reason: object) -> UsageError:
        """Returns the error that refuses the task."""
        return UsageError(f"task {self.name}: {' '.join(str(reason).split())}")


def check_installed() -> None:
    """Raises UsageError where lm-evaluation-harness is not installed."""
    if find_spec("lm_eval") is None:
        raise UsageError("task lm-eval: lm-evaluation-harness is not installed; pip install 'lm-eval>=0.4.13'")


def check_file(source: Source) -> None:
    """Raises UsageError where a task is a YAML file that is not there."""
    path = source.argument
    if path.endswith(_YAML) and not Path(path).is_file():
        raise source.refused(f"there is no file {path}; give the path of a task in YAML, or a task's name")


@cache
def harness_task(source: Source) -> Any:
    """Returns lm-eval's own object of a task, with its documents; a process that grades makes it once.

    Raises:
        UsageError: There is no such task, it is not one that a calibration can decode, or its data cannot be loaded.
    """
    from lm_eval.tasks import TaskManager

    config = _config(source)
    if source.data is not None:
        config |= _on_file(source, config)
    try:
        (task,) = TaskManager(include_defaults=False).load([config])["tasks"].values()
    except Exception as error:  # a hub, a file, a YAML field or a function of the task: the way out is the same
        raise source.refused(
            f"lm-eval cannot load it ({type(error).__name__}: {error}); {named('data')} replaces its data set by a file"
        ) from error
    _check(source, task)
    return task


def _config(source: Source) -> dict[str, Any]:
    """Returns the content of a task's YAML file, and of those that it includes; no data set is loaded."""
    from lm_eval.tasks._yaml_loader import load_yaml  # as `lm_eval --tasks my.yaml` itself reads it

    path = _yaml_file(source)
    try:
        config: dict[str, Any] = load_yaml(path)
    except Exception as error:  # YAML, an included file, or a function that it names
        raise source.refused(f"{path} cannot be read ({type(error).__name__}: {error}); correct it") from error
    if "group" in config or not isinstance(config.get("task"), str):
        raise source.refused("it is a group, or has no name (`task: …`); give a single task, or name it")
    kind = config.get("output_type", "generate_until")
    if kind != "generate_until" and "class" not in config:
        raise source.refused(f"{_comparing(kind)}; give a generative task")
    return config


def _yaml_file(source: Source) -> Path:
    """Returns the file of a task; looking for its line takes a second, and lm-eval's index of all files ten."""
    import lm_eval.tasks

    argument = source.argument
    if argument.endswith(_YAML):
        check_file(source)
        return Path(argument)
    line = re.compile(rf"^task:\s*([\"']?){re.escape(argument)}\1\s*(#.*)?$", re.MULTILINE)
    folder = Path(lm_eval.tasks.__file__).parent
    found = (path for path in sorted(folder.rglob("*.yaml")) if line.search(path.read_text("utf-8", "replace")))
    path = next(found, None)
    if path is None:
        raise source.refused(
            f"lm-eval has no single task of the name {argument!r}; `lm_eval ls subtasks` lists them, and "
            f"{NAME}:my.yaml takes a file"
        )
    return path


def _on_file(source: Source, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that make a file the data set: all its documents are problems.

    Worked examples that the task draws from a split of its data set are drawn from the file too. As the two splits
    then have one name, lm-eval leaves out the document that is asked about.
    """
    data = Path(str(source.data))
    if not data.is_file():
        raise source.refused(f"data file {data}: there is no such file; give its path")
    if data.suffix not in _READERS:
        raise source.refused(f"data file {data}: its name ends in {data.suffix!r}; give one of {', '.join(_READERS)}")
    own = (config.get("fewshot_config") or {}).get("samples") is not None
    return {
        "dataset_path": _READERS[data.suffix], "dataset_name": None, "custom_dataset": None,
        "dataset_kwargs": {"data_files": {_SPLIT: str(data.resolve())}},
        "training_split": None, "validation_split": None, "test_split": _SPLIT,
        "fewshot_split": None if own else _SPLIT,
        "fewshot_config": {**(config.get("fewshot_config") or {}), **({} if own else {"split": _SPLIT})},
    }  # fmt: skip


def _comparing(kind: object) -> str:
    return f"its output type is {kind}: it compares probabilities of given answers, and a calibration decodes texts"


def _check(source: Source, task: Any) -> None:
    """Raises UsageError for tasks whose documents are not each one text that is decoded and graded."""
    from lm_eval.api.task import ConfigurableTask

    requests: Callable[..., Any] = type(task).construct_requests
    if getattr(task, "OUTPUT_TYPE", None) != "generate_until":
        raise source.refused(f"{_comparing(getattr(task, 'OUTPUT_TYPE', None))}; give a generative task")
    if requests is not ConfigurableTask.construct_requests:
        raise source.refused("it makes requests of its own in Python; give a task whose documents are one request each")
    if getattr(task, "MULTIMODAL", False):
        raise source.refused("its documents hold images or sounds, which the models cannot read; give a task of texts")
    if task.config.repeats != 1:
        raise source.refused(
            f"repeats is {task.config.repeats}, several texts of a document, and a calibration grades one; include "
            "its YAML in one of your own with `repeats: 1`"
        )
    if getattr(task, "UNSAFE_CODE", False):
        raise source.refused(
            "its grading runs code that the model writes in this process; the task humaneval, or a file in YAML with "
            "the grader python-tests, runs it in a sandbox"
        )


Message = dict[str, str]  # role, content


def chat_renderer(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any]) -> Callable[..., str]:
    """Returns the function that lm-eval calls with messages, and whether the assistant's turn is to begin.

    What the system says precedes the first user message where the template rejects the role; lm-eval's own models leave
    it out.

    Args:
        arguments: of the chat template.
    """

    folds = rejects_system(tokenizer, arguments)

    def render(messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        turns = [(each["role"], each["content"]) for each in messages]
        return render_chat(tokenizer, system_before_user(turns) if folds else turns, arguments, add_generation_prompt)

    return render


_SEED = 1234  # lm-eval's own for drawing worked examples


class Prompts:
    """Makes the prompts of one task for one model.

    With a chat template they are those of `lm_eval --apply_chat_template`, where worked examples are earlier turns.
    """

    def __init__(self, task: Any, asking: Asking, info: PromptInfo) -> None:
        self._task, self._shots = task, task.config.num_fewshot or 0
        tokenizer = None if info.template is None else asking.tokenizer
        self._render = None if tokenizer is None else chat_renderer(tokenizer, info.template_arguments)
        task.set_fewshot_seed(_SEED)

    def of_chosen(self, seed: int, limit: int | None) -> Iterator[tuple[Example, str]]:
        """Yields at most `limit` documents with their prompts.

        lm-eval draws all worked examples from one generator, document by document; so those of the documents between
        are drawn too. It has no prompts for training documents: each is given a generator of its own.
        """
        task = self._task
        parted = task.has_training_docs()
        documents: list[tuple[Part | None, Any]] = [
            ("certification" if parted else None, each) for each in task.eval_docs
        ]
        documents += [("tuning", each) for each in task.training_docs()] if parted else []
        numbered = [Example(str(number), "", part) for number, (part, _) in enumerate(documents)]
        chosen = {int(example.question) for example in pick(numbered, seed, limit)}
        for number, (part, content) in enumerate(documents):
            if number in chosen:
                prompt = self._of_training(number, content) if part == "tuning" else self.prompt(content)
                question = str(task.doc_to_text(content)).strip()
                yield Example(question, reference(task, content), part, row=content, source=content), prompt
            elif self._shots and part != "tuning":  # drawn as `fewshot_context` does, and forgotten
                same = task.fewshot_cfg.split == task.config.test_split
                task.sampler.sample(n=self._shots, eval_doc=content if same else None)

    def prompt(self, content: Mapping[str, Any]) -> str:
        """Returns the prompt of a document, with the worked examples that are drawn next."""
        chats = self._render is not None
        prompt: str = self._task.fewshot_context(
            content, num_fewshot=self._shots, apply_chat_template=chats, fewshot_as_multiturn=chats,
            chat_template=self._render, gen_prefix=self._task.doc_to_prefix(content),
        )  # fmt: skip
        return prompt

    def _of_training(self, number: int, content: Mapping[str, Any]) -> str:
        usual = getattr(self._task, "sampler", None)
        try:
            if usual is not None:
                self._task.sampler = _LeavingOut(usual.set_rnd(f"{_SEED}/{number}"), content)
            return self.prompt(content)
        finally:
            self._task.sampler = usual


class _LeavingOut:
    """Draws worked examples for one training document among which it is not itself; a sampler of lm-eval."""

    def __init__(self, sampler: Any, content: Mapping[str, Any]) -> None:
        self._sampler, self._content = sampler, content

    def sample(self, n: int, eval_doc: object = None) -> Any:
        return self._sampler.sample(n=n, eval_doc=self._content)


def stop_of(task: Any) -> tuple[str, ...]:
    """Returns the strings that end an answer (`until`)."""
    until = (task.config.generation_kwargs or {}).get("until") or []
    return tuple(filter(None, [until] if isinstance(until, str) else until))


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
            for example, prompt in Prompts(task, asking, info).of_chosen(seed, limit):
                problems.append(problem_of(example, asked.setdefault(example.question, prompt)))
        except UsageError:
            raise
        except Exception as error:  # too few documents for the worked examples, or a function of the task
            raise source.refused(f"a prompt cannot be made ({type(error).__name__}: {error})") from error
        described = _description(source, task, grader)
        grading = f"{described} {_code_of(task)}"
        return task_of(
            self.name, problems, info, described, grader, grading=grading, asks=self._asks(task, grader),
            keys_are_texts=all(grader(problem, problem.reference) for problem in problems[:_TRIED]),
        )  # fmt: skip

    def _asks(self, task: Any, grader: MetricGrader) -> str:
        """See `Task`. A file has a copy of another name, or for other data, which asks the same."""
        name = self.argument
        if name.endswith(_YAML):
            says = {key: value for key, value in task.dump_config().items() if key not in _OF_DATA}
            name = hashlib.sha256(json.dumps(says, sort_keys=True, default=str).encode()).hexdigest()
        return f"{NAME}:{name},{grader.filter}"


_OF_DATA = (
    "task", "dataset_path", "dataset_name", "dataset_kwargs", "training_split", "validation_split", "test_split",
    "fewshot_split", "fewshot_config", "metadata",
)  # fmt: skip


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
        f"; it asks for temperature {settings.get('temperature', 1.0)}, which the run's own replaces"
        if settings["do_sample"]
        else ""
    )
    return (
        f"{source.data or config} by lm_eval {version('lm-eval')}, task {task.config.task} {task.VERSION}, "
        f"{grader.metric} after {grader.filter}{sampled}"
    )
