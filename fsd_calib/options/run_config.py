"""How a calibration is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SkipValidation, model_validator

from fsd_calib.options.common import DECODING, GOAL, Data, Device, Dtype, Group, Limit, PathLike, Ray, Workers, absolute
from fsd_calib.search.storage_url import without_password
from fsd_calib.tasks.asking import PROBLEMS, PromptOptions
from fsd_calib.tasks.registry import completed_tasks
from fsd_common.argument_checks import check_path, named
from fsd_common.errors import UsageError
from fsd_common.option import Option, json_object, several
from fsd_common.progress.base import Progress
from fsd_common.progress.chosen import called_progress
from fsd_common.settings import Count, Rule, Several
from fsd_decoding.model_options import USUAL, Loading, ModelKwargs, ModelOptions

MOST_AT_ONCE = 32
"""The largest batch size that is chosen."""

Timing = Literal["run", "careful", "none"]
"""Where speeds are timed: in the calibration's own process, in fresh processes, or nowhere."""
Compiling = Literal["auto", "off", "capture", "on"]
"""How rounds are called: as pays best within the planned work, or as `profile.costs.Rounds` names it."""
DesignName = Literal["all", "auto"]
EngineName = Literal["fsd-calib", "vllm", "server"]
"""What decodes."""


def _saved_keywords(given: Any) -> dict[str, Any] | None:
    """How models are loaded, by the names of the options."""
    options = ModelOptions.of(given)
    own = {name: value for name, value in vars(options).items() if name != "others" and value is not None}
    return None if options == USUAL else own | dict(options.others)


class RunConfig(PromptOptions):
    """How a calibration is run: its course, its cost, and where its files are."""

    batch_size: Annotated[
        Count | None,
        Option(
            f"Problems decoded at once while calibrating. By default as many as fit in memory, at most {MOST_AT_ONCE}.",
            DECODING,
        ),
    ] = None
    device: Device = None
    dtype: Dtype = None
    data: Data = None
    limit: Limit = None
    group: Group = None
    extend: Annotated[
        bool | None,
        Option(
            "Go on from the last attempt of the same command that had fewer problems: the settings that it froze are "
            "tested on its problems and the new ones, and nothing is searched. By default where the new ones are a "
            "quarter to four times as many, and not all settings passed.",
            GOAL,
        ),
    ] = None
    design: Annotated[
        DesignName,
        Option(
            "all: certify on all problems, with --seeds each. auto: on as few problems, with as few seeds each above "
            "temperature 0, as the plan finds enough for the goal.",
            GOAL,
        ),
    ] = "all"
    guard: Annotated[
        Several[str] | None,
        Option(
            "Estimate on this task, too, what share of the target's accuracy the chosen setting keeps: with an "
            "interval, on problems of its tuning part, and no certificate. Repeat it for several.",
            GOAL,
            words=completed_tasks,
            repeated=True,
        ),
    ] = None
    seeds: Annotated[
        Count, Option("Noise seeds to decode each problem with when the temperature is above 0.", DECODING)
    ] = 1
    min_gain: Annotated[
        float,
        Field(ge=1, allow_inf_nan=False), Rule("it must be a number of 1 or more, such as 1.05"),
        Option(
            "End with the plan, and exit code 3, where not even accepting every drafted token is so many times as fast "
            "as the best lossless setting: no threshold can gain more. 1 goes on whatever there is to gain. Not with "
            "--min-speed or --certify.",
            GOAL,
        ),
    ] = 1.05  # fmt: skip
    price_per_hour: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False), Rule("it must be a number of 0 or more")] | None,
        Option("Price of a device for an hour; the plan then says what the work costs.", GOAL),
    ] = None
    trials: Annotated[Count, Option("The most settings that are tried on the tuning part.", command=False)] = 30
    timing: Annotated[
        Timing,
        Option(
            "run: time speeds in this process. careful: time them in five fresh processes, so that intervals include "
            "the variation between processes. none: time no setting; forecast speeds from the number of rounds and the "
            "cost of a round.",
            GOAL,
        ),
    ] = "run"
    compile: Annotated[
        Compiling,
        Option(
            "How rounds are called in all that is decoded and timed. off: directly. capture: as graphs, which removes "
            "Python and keeps the texts. on: as graphs of compiled kernels, which round differently. auto: capture, "
            "where that saves more time within the planned work than it takes.",
            DECODING,
        ),
    ] = "auto"
    engine: Annotated[
        EngineName,
        Option(
            "What decodes, times and is certified: fsd-calib, our own engine, vllm, for profiles that vLLM serves "
            "(needs vLLM in this environment), or server, one that somebody else runs and --config describes "
            "(docs/servers.md). With --certify also fsd-calib,vllm: the second is tested once the first "
            "has passed, in the same attempt, and each has a profile in a folder of its name in --out.",
            DECODING,
            read=several,
            written=Several[EngineName],
        ),
    ] = "fsd-calib"
    engine_args: Annotated[
        Mapping[str, Any] | None,
        Option("Arguments of vLLM's engine, as JSON: '{\"tensor_parallel_size\": 4}'.", DECODING, read=json_object),
    ] = None
    out: Annotated[
        PathLike | None,
        Option(
            "Folder for profile.json and the measurements. By default fsd-profile/TASK, with -vllm, -certified or "
            "-explored behind it for --engine vllm, --certify and --explore, and with models and goal where that "
            "folder is another run's.",
            PROBLEMS,
            written=str,
            saved=absolute,
        ),
    ] = None
    replace: Annotated[
        bool,
        Option(
            "Write over the profile of another run in --out. Only a certified one replaces a certified one.",
            PROBLEMS,
            file=False,
        ),
    ] = False
    cache: Annotated[
        PathLike | None,
        Option(
            "Folder for cached decodings and traces, shared by all runs. By default $FSD_CALIB_CACHE, else "
            "~/.cache/fsd-calib.",
            PROBLEMS,
            written=str,
            saved=absolute,
        ),
    ] = None
    state: Annotated[
        PathLike | None,
        Option(
            "Folder for the ledger of attempts, which must not be deleted; machines that work on the same problems "
            "should share it. By default $FSD_CALIB_STATE, else the user's state folder, on Linux "
            "~/.local/state/fsd-calib.",
            PROBLEMS,
            written=str,
            saved=absolute,
        ),
    ] = None
    storage: Annotated[
        str | None,
        Field(repr=False),  # it may hold a password
        Option(
            "Optuna storage for the search: a file, or a URL (postgresql://…) that several processes can share. By "
            "default study.log in the output folder.",
            PROBLEMS,
        ),
    ] = None
    workers: Workers = None
    ray: Ray = None
    progress: Annotated[Progress | None, SkipValidation] = None
    model_kwargs: Annotated[
        ModelKwargs | None,
        SkipValidation,
        Option(
            "How the models are loaded, see `SpeculativeDecoder.from_pretrained`.",
            command=False,
            written=dict[str, Any],
            saved=_saved_keywords,
        ),
    ] = None
    draft_model_kwargs: Annotated[
        ModelKwargs | None,
        SkipValidation,
        Option(
            "The same for the drafts, where they differ.",
            command=False,
            written=dict[str, Any],
            saved=_saved_keywords,
        ),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        if self.engine_args is not None and self.engine != "vllm":
            raise UsageError(
                f"{named('engine_args')} are for engine 'vllm', and {named('engine')} is {self.engine!r}; leave one of "
                "them out"
            )
        if "\0" in (self.storage or ""):
            raise UsageError(
                f"{named('storage')} {without_password(self.storage)} holds a null character; leave it out"
            )
        check_path(named("storage"), self.storage)
        self.loading  # noqa: B018  raises UsageError
        return self

    def path(self, name: Literal["data", "out", "cache", "state"]) -> Path | None:
        """Returns a field that names a file or a folder, as a `Path`."""
        value = getattr(self, name)
        return None if value is None else Path(value)

    @property
    def prompts(self) -> PromptOptions:
        """How a task's prompts are made."""
        return PromptOptions(**{name: getattr(self, name) for name in PromptOptions.model_fields})

    @property
    def loading(self) -> Loading:
        """How the models are loaded."""
        return Loading.of(self.model_kwargs, self.draft_model_kwargs)

    @property
    def reporter(self) -> Progress:
        """Receives the progress; where none was given, a bar in a notebook, and elsewhere nothing."""
        return self.progress or called_progress()

    @property
    def study_storage(self) -> str | None:
        """The Optuna storage of the study; None: in memory."""
        out = self.path("out")
        return self.storage or (None if out is None else str((out / "study.log").absolute()))
