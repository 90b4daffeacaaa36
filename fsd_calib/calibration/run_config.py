"""How a calibration is run: settings for its course, cost and files, separate from its goal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from fsd_calib.search.storage_url import without_password
from fsd_calib.tasks.asking import PromptKeywords, PromptOptions
from fsd_common.argument_checks import check_count, check_path
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress, Silent
from fsd_decoding.model_options import Loading, ModelKwargs

Timing = Literal["run", "careful", "none"]
"""Where speeds are timed: in the calibration's own process, in fresh processes, or nowhere."""

Compiling = Literal["auto", "off", "capture", "on"]
"""How rounds are called: as pays best within the planned work, or as `profile.costs.Rounds` names it."""

EngineName = Literal["fsd-calib", "vllm"]
"""What decodes."""

MOST_AT_ONCE = 32
"""The largest batch size that is chosen."""

_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class RunConfig:
    """How a calibration is run.

    Args:
        batch_size: problems decoded at once; by default as many as fit in memory: 32, 16, 8, 4, 2 or 1.
        device: by default "cuda" if available, else "cpu".
        dtype: by default the checkpoints' own.
        limit: use at most this many problems.
        data: a file to read problems from, instead of the task's own source.
        seeds: noise seeds to decode each problem with; greedy decoding has no noise and uses one.
        trials: maximum number of settings tried on the tuning part.
        timing: "run" times speeds in this process; "careful" in five fresh processes, which load the models by their
            paths or ids; "none" does not time them, and the cost model forecasts them.
        compile: "off" calls rounds directly; "capture" as graphs of PyTorch's own kernels, which give the same texts;
            "on" as graphs of compiled kernels, which round differently; "auto" as graphs of PyTorch's own kernels where
            what they save within the planned work, as measured here, is more than capturing takes.
        engine: "fsd-calib", our own, or "vllm", which decodes, times and is certified in our engine's place.
        engine_args: arguments of `vllm.LLM` by name, such as `{"tensor_parallel_size": 4}`.
        out: folder for `profile.json` and for the files from which an interrupted run resumes; None writes neither.
        replace: write over the profile of another run in `out`, which is refused otherwise.
        cache: folder of decodings and traces, shared by all runs; None: the user's cache folder.
        state: folder of the ledger of attempts, which must not be deleted; None: the user's state folder.
        workers: processes that decode, each with models of its own; 1 decodes in this process alone. By default as
            many as help: the CPU's cores or the GPUs, as far as memory and problems suffice, once decoding has taken
            as long as it takes to start them; 1 with loaded models, which no other process can load.
        ray: address of a Ray cluster to run the workers on.
        storage: Optuna storage, a file or a URL; None: `study.log` in `out`.
        progress: receives progress reports of long steps; silent by default.
        model_kwargs, draft_model_kwargs: how models are loaded, see `SpeculativeDecoder.from_pretrained`.

    Raises:
        UsageError: a count is not a whole number of at least 1, `compile` is none of the four, a path is empty or
            holds a null character, or models cannot be loaded so.
    """

    batch_size: int | None = None
    device: str | None = None
    dtype: str | None = None
    limit: int | None = None
    data: _Path | None = None
    seeds: int = 1
    trials: int = 30
    timing: Timing = "run"
    compile: Compiling = "auto"
    engine: EngineName = "fsd-calib"
    engine_args: Mapping[str, Any] | None = None
    out: _Path | None = None
    replace: bool = False
    cache: _Path | None = None
    state: _Path | None = None
    workers: int | None = None
    ray: str | None = None
    storage: str | None = field(default=None, repr=False)  # it may hold a password
    progress: Progress | None = None
    model_kwargs: ModelKwargs | None = None
    draft_model_kwargs: ModelKwargs | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    system: str | None = None
    max_new_tokens: int | None = None
    answer_after: str | None = None

    def __post_init__(self) -> None:
        self.prompts  # noqa: B018  raises UsageError
        for name in ("trials", "seeds"):
            check_count(name, getattr(self, name))
        for name in ("limit", "batch_size", "workers"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.compile not in get_args(Compiling):
            raise UsageError(f"compile is {self.compile!r:.40}; it must be one of {', '.join(get_args(Compiling))}")
        if self.engine not in get_args(EngineName):
            raise UsageError(f"engine is {self.engine!r:.40}; it must be one of {', '.join(get_args(EngineName))}")
        if self.engine_args is not None and self.engine != "vllm":
            raise UsageError(f"engine_args are for engine 'vllm', and engine is {self.engine!r}; leave one of them out")
        if "\0" in (self.storage or ""):
            raise UsageError(f"storage {without_password(self.storage)} holds a null character; leave it out")
        Loading.of(self.model_kwargs, self.draft_model_kwargs)
        for name in ("data", "out", "cache", "state", "storage"):
            check_path(name, getattr(self, name))

    def path(self, name: Literal["data", "out", "cache", "state"]) -> Path | None:
        """Returns a field that names a file or a folder, as a `Path`."""
        value: _Path | None = getattr(self, name)
        return None if value is None else Path(value)

    @property
    def prompts(self) -> PromptOptions:
        """How a task's prompts are made."""
        return PromptOptions(self.chat_template_kwargs, self.system, self.max_new_tokens, self.answer_after)

    @property
    def loading(self) -> Loading:
        """How the models are loaded."""
        return Loading.of(self.model_kwargs, self.draft_model_kwargs)

    @property
    def reporter(self) -> Progress:
        """Receives the progress; silent where none was given."""
        return self.progress or Silent()

    @property
    def study_storage(self) -> str | None:
        """The Optuna storage of the study; None: in memory."""
        out = self.path("out")
        return self.storage or (None if out is None else str((out / "study.log").absolute()))


class RunKeywords(PromptKeywords, total=False):
    """The fields of `RunConfig`, as keywords."""

    batch_size: int | None
    device: str | None
    dtype: str | None
    limit: int | None
    data: _Path | None
    seeds: int
    trials: int
    timing: Timing
    compile: Compiling
    engine: EngineName
    engine_args: Mapping[str, Any] | None
    out: _Path | None
    replace: bool
    cache: _Path | None
    state: _Path | None
    workers: int | None
    ray: str | None
    storage: str | None
    progress: Progress | None
    model_kwargs: ModelKwargs | None
    draft_model_kwargs: ModelKwargs | None
