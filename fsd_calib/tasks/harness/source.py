"""Generative tasks of lm-evaluation-harness: found, built from a data set of their own or a file, and checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fsd_common.errors import UsageError

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
        raise UsageError("task lm-eval: lm-evaluation-harness is not installed; pip install 'fsd-calib[lm-eval]'")


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
            f"lm-eval cannot load it ({type(error).__name__}: {error}); --data FILE replaces its data set by a file"
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
            "its grading runs code that the model writes in this process; --task humaneval, or a file in YAML with the "
            "grader python-tests, runs it in a sandbox"
        )
