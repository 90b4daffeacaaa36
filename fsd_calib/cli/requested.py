"""What `fsd-calibrate` is asked for: the options on the command line, over those of a file or of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsd_calib.calibration.goal import Goal
from fsd_calib.cli.beforehand import (
    check_cluster,
    check_folders,
    check_place,
    check_predictor,
    check_sources,
    check_words,
    divergences,
)
from fsd_calib.cli.certify import models_of, profile_to_certify
from fsd_calib.cli.choices import COMPILINGS, DIVERGENCES, ENGINES, POLICIES, RULES_WITH_T, TIMINGS
from fsd_calib.cli.console import check_at_least_one
from fsd_calib.cli.drafters import AUTO_TREES, Drafters
from fsd_calib.cli.goal_options import KINDS, GoalOptions
from fsd_calib.cli.options import DraftsOptions, ProcessOptions, several
from fsd_calib.cli.search_options import FileOptions, RunOptions, SearchOptions
from fsd_calib.cli.task_options import (
    TASK_NAMES,
    AskingOptions,
    DrawingOptions,
    ProblemOptions,
    SamplingOptions,
    folder_name,
    named_task,
)
from fsd_calib.search.storage_url import check_storage
from fsd_common.argument_checks import check_sampling
from fsd_common.errors import UsageError
from fsd_decoding.model_options import Loading
from fsd_decoding.tree_shape import read_shape

if TYPE_CHECKING:
    from fsd_calib.calibration.run_file import RunFile
    from fsd_decoding.profile.threshold_profile import ThresholdProfile


@dataclass(frozen=True)
class Requested:
    """All options of a calibration, and where some come from.

    Attributes:
        given: the options on the command line, which go before those of the file.
        policies: the threshold policies by name.
        file: of --config; None: there is none.
    """

    goals: GoalOptions
    models: DraftsOptions
    loading: Loading
    problems: ProblemOptions
    asking: AskingOptions
    files: FileOptions
    search: SearchOptions
    drawing: DrawingOptions
    runs: RunOptions
    processes: ProcessOptions
    policies: tuple[str, ...]
    given: set[str]
    file: RunFile | None = None
    certified: ThresholdProfile | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        path = self.certify
        if path is not None:
            object.__setattr__(self, "certified", profile_to_certify(path, self.given))

    @property
    def certify(self) -> Path | None:
        """The profile whose setting is certified; None: one is searched."""
        of_file = None if self.file is None or self.file.certify is None else Path(self.file.certify)
        return self.goals.certify or of_file

    @property
    def task(self) -> str:
        """The task by name. UsageError: none is given."""
        of_profile = None if self.certified is None else self.certified.task
        task = self.goals.task or (self.file and self.file.task) or of_profile
        if task is None:
            raise UsageError(f"Missing option '--task': give one of {TASK_NAMES}, or --certify with a profile")
        return named_task(task, self.problems.subjects)

    @property
    def target(self) -> str | None:
        """The target that is given, or that of the profile; None: it is the task's default."""
        given = self.models.target or (self.file and self.file.target) or None
        return given if self.certified is None else given or self.certified.target.id

    @property
    def target_and_drafts(self) -> tuple[str, list[Any]]:
        """Target and drafts: those given, those of the profile, or the task's default pair."""
        if self.certified is not None and not (self.drafters.models or self.drafters.heads):
            return models_of(self.certified, self.target)
        return self.drafters.with_target(self.task, self.target)

    @property
    def drafters(self) -> Drafters:
        """What drafts: the drafts and heads that are given, or else the file's. UsageError: options contradict."""
        given, file, revision = self.models, self.file, self.loaded.draft.revision
        named = () if given.drafter is None else several("--drafter", given.drafter)
        if given.draft or given.head or file is None:
            return Drafters(given.draft or (), given.head or (), named, revision)
        asked = Drafters((), (), named or file.drafter or ())
        models = file.draft if asked.takes("model") else None
        heads = file.head if asked.takes("eagle") else None
        return Drafters(models or (), heads or (), asked.named, revision)

    @property
    def loaded(self) -> Loading:
        """How models are loaded."""
        run = self._of_file("run")
        usual = Loading.of(run.get("model_kwargs"), run.get("draft_model_kwargs"))
        return Loading(self.loading.target.over(usual.target), self.loading.draft.over(usual.draft))

    @property
    def goal(self) -> Goal:
        """What is to be reached and shown."""
        otherwise = self._of_file("goal")
        if (found := self.certified) is not None:
            otherwise = {"acc": found.certificate.acc, **otherwise}
            if not any(otherwise.get(kind) for kind in KINDS):
                otherwise["min_acc"] = found.certificate.wanted
        return self.goals.goal(self.given, otherwise)

    @property
    def seed(self) -> int:
        """Of problems and sampling."""
        if "seed" in self.given:
            return self.problems.seed
        usual = self.problems.seed if self.certified is None else self.certified.seed
        return int(self._of_file("decoding").get("seed", usual))

    @property
    def engines(self) -> tuple[str, ...]:
        """What decodes; several certify one setting in turn."""
        return tuple(self.of_run("engine"))

    @property
    def out(self) -> Path | None:
        """Where the profile is written; None: nothing says so."""
        return self._path("out")

    @property
    def data(self) -> Path | None:
        """The file that problems are read from; None: the task's own source."""
        return self._path("data")

    @property
    def usual_folder(self) -> Path:
        """Where the first such calibration is written if nothing says where."""
        # One engine's profile does not replace another's, nor a certified setting or an estimate a searched one.
        of_engine = "-vllm" if self.engines == ("vllm",) else ""  # of several each has a folder of its own in it
        kind = "-certified" * (self.certify is not None) + "-explored" * self.goal.explore
        return Path("fsd-profile") / (folder_name(self.task) + of_engine + kind)

    @property
    def sampling(self) -> SamplingOptions:
        """How tokens are drawn."""
        section = self._of_file("decoding").get("sampling")
        of_file = None if section is None else SamplingOptions(**section.model_dump())
        return self.drawing.sampling(self.given, of_file)

    def of_run(self, name: str) -> Any:
        """Returns a field of `RunConfig`."""
        return self._first(name, name, "run")

    def of_decoding(self, name: str) -> Any:
        """Returns a field of `DecodingConfig`."""
        found = self._first(name, "predictor" if name == "stop_policy" else name, "decoding")
        return AUTO_TREES if name == "tree" and found is None and self.drafters.auto else found

    @property
    def timing(self) -> Any:
        """Where speeds are timed. UsageError: two options contradict each other."""
        return self.goals.way(self.given, self._of_file("run").get("timing"))

    @property
    def trials(self) -> dict[str, int]:
        """The field of `RunConfig` that no option sets, if the file does."""
        of_file = self._of_file("run")
        return {"trials": of_file["trials"]} if "trials" in of_file else {}

    def check(self) -> None:
        """Raises UsageError where a number is below 1, or options contradict each other."""
        self.goal  # noqa: B018
        self.sampling  # noqa: B018
        self.timing  # noqa: B018
        self._check_drafters()
        check_at_least_one({
            "--limit": self.problems.limit, "--batch-size": self.runs.batch_size, "--seeds": self.runs.seeds,
            "--workers": self.processes.workers,
        })  # fmt: skip
        self._options  # noqa: B018
        self._check_words()
        if self.certified is None:
            self.drafters.check_pair(self.task, self.target)
        check_sampling(*self.sampling)
        check_sources({"model": [self.target, *self.drafters.models], "head": self.drafters.heads}, self.data)
        check_folders({"--cache": self._path("cache"), "--state": self._path("state")})
        check_storage(self.of_run("storage"))
        check_predictor(self.of_decoding("stop_policy"))
        check_cluster(self.of_run("ray"))

    def _check_words(self) -> None:
        """Raises UsageError where an option has a word that it does not take."""
        check_words(
            ("--rule", self.of_decoding("rule"), RULES_WITH_T),
            ("--divergence", divergences(self.of_decoding("divergence")), DIVERGENCES),
            ("--threshold-policy", self.of_decoding("threshold_policy"), POLICIES),
            ("--engine", self.engines, ENGINES), ("--timing", [self.timing], TIMINGS),
            ("--compile", [self.of_run("compile")], COMPILINGS),
        )  # fmt: skip
        check_place(self.of_run("device"), self.of_run("dtype"))
        for shape in self.of_decoding("tree") or ():
            read_shape(shape)

    def _check_drafters(self) -> None:
        stopped, policies = self.of_decoding("stop_policy"), self.of_decoding("threshold_policy") or ()
        if self.drafters.auto and (stopped is not None or set(policies) - {"constant"}):
            other = "--predictor" if stopped is not None else "--threshold-policy"
            raise UsageError(
                f"--drafter auto and {other} are both given, and {other} goes with chains of draft models alone; leave "
                "one of the two out"
            )

    @property
    def _options(self) -> dict[str, Any]:
        """The fields of `DecodingConfig` and `RunConfig` as the options say, given or by default."""
        problems, files, models = self.problems, self.files, self.models
        return {
            **self.search.fields_of_decoding(self.policies), **self.runs.fields_of_run(), **self.asking.keywords,
            "limit": problems.limit, "data": problems.data, "out": files.out, "cache": files.cache,
            "state": files.state, "storage": files.storage, "workers": self.processes.workers,
            "ray": self.processes.ray, "device": models.device, "dtype": models.dtype,
        }  # fmt: skip

    def _path(self, name: str) -> Path | None:
        given = self.of_run(name)
        return None if given is None else Path(given)

    def _first(self, name: str, option: str, section: str) -> Any:
        of_file = self._of_file(section)
        return self._options[option] if option in self.given or name not in of_file else of_file[name]

    def _of_file(self, section: str) -> dict[str, Any]:
        return {} if self.file is None else dict(getattr(self.file, section).given)


def policies_named(present: Sequence[str] | None, former: Sequence[str] | None) -> list[str]:
    """Returns the threshold policies as given. UsageError: the option is given under both of its names."""
    if former and present:
        raise UsageError("--policy and --threshold-policy are the same option; leave --policy, its old name, out")
    return [*(present or former or ["constant"])]
