"""How a calibration is run: what changes its course, its cost and where its files lie, but not what is asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

from fsd_calib.progress import Progress, Silent
from fsd_decoding.argument_checks import check_count

Timing = Literal["run", "careful", "none"]
"""Where speeds are timed: within the calibration's own process, in fresh ones, or nowhere."""

_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class RunConfig:
    """How a calibration is run.

    Args:
        batch_size: problems decoded at once.
        device: "cuda" where there is one, else "cpu". dtype: the checkpoints' own.
        limit: use at most so many problems. data: a file of problems, instead of the task's own.
        seeds: noise seeds a problem is decoded with; greedy decoding has no noise and takes one.
        trials: settings tried on the tuning part, at most.
        timing: "run" times speeds in this process; "careful" in five fresh ones, which load the models by their paths
            or ids; "none" not at all: then speeds are what the cost model forecasts.
        out: folder for `profile.json`, and for what an interrupted run goes on with; None writes none of them.
        cache: folder of decodings and traces, shared by all runs; None is the user's own.
        state: folder of the ledger of attempts, which must not be deleted; None is the user's own.
        storage: Optuna's, a file or a URL; None is `study.log` in `out`.
        progress: receives what a long step has done; silent by default.

    Raises:
        UsageError: a count is no whole number of at least 1.
    """

    batch_size: int = 32
    device: str | None = None
    dtype: str | None = None
    limit: int | None = None
    data: _Path | None = None
    seeds: int = 1
    trials: int = 30
    timing: Timing = "run"
    out: _Path | None = None
    cache: _Path | None = None
    state: _Path | None = None
    storage: str | None = None
    progress: Progress = field(default_factory=Silent)

    def __post_init__(self) -> None:
        for name in ("trials", "seeds", "batch_size"):
            check_count(name, getattr(self, name))

    def path(self, name: Literal["data", "out", "cache", "state"]) -> Path | None:
        """One of the fields that name a file or a folder."""
        value: _Path | None = getattr(self, name)
        return None if value is None else Path(value)

    @property
    def study_storage(self) -> str | None:
        """Where Optuna keeps the study; None: in memory."""
        out = self.path("out")
        return self.storage or (None if out is None else str(out / "study.log"))


class RunKeywords(TypedDict, total=False):
    """The fields of `RunConfig`, as keywords."""

    batch_size: int
    device: str | None
    dtype: str | None
    limit: int | None
    data: _Path | None
    seeds: int
    trials: int
    timing: Timing
    out: _Path | None
    cache: _Path | None
    state: _Path | None
    storage: str | None
    progress: Progress
