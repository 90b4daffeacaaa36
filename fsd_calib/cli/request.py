"""What `fsd-calibrate` is asked for: the options on the command line, over those of a file or of a profile.

Nothing here imports torch, so that mistakes show at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsd_calib.cli.drafters import AUTO_TREES, Drafters
from fsd_calib.cli.family import Given
from fsd_calib.cli.options import check_data, check_place, check_sources, folder_name, named_task
from fsd_calib.options.beams import check_run_of_beams
from fsd_calib.options.common import AUTO, TASK_NAMES
from fsd_calib.options.goal import KINDS, Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.options.server import ServerDescription
from fsd_calib.search.storage_url import check_storage
from fsd_calib.tasks.base import Kind
from fsd_calib.tasks.registry import task_kind
from fsd_common.errors import UsageError
from fsd_common.settings import listed
from fsd_decoding.drafters.vllm_draft import VllmDraft
from fsd_decoding.model_options import Loading
from fsd_decoding.tree_shape import read_shape
from fsd_decoding.workers.backends import check_answers
from fsd_predictors import files as predictor_files

if TYPE_CHECKING:
    from fsd_calib.calibration.run_file import RunFile
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

SERVER = "server"
"""The engine that is a server."""


@dataclass(frozen=True)
class Request:
    """All options of a calibration, and where some come from. What is on the command line goes before the file.

    Attributes:
        given: the options on the command line, by the names of fields.
        loading: how models are loaded by options of the command line.
        subjects: of --subjects.
        file: of --config; None: there is none.

    Raises:
        UsageError: a value breaks a rule, or options contradict each other.
    """

    given: Given
    loading: Loading
    subjects: str | None = None
    file: RunFile | None = None

    def __post_init__(self) -> None:
        if self.certify is None:
            return
        searched = {*SearchSpace.model_fields, *KINDS, "drafter", "storage"} - {"seed", "min_acc"}
        if name := next((name for name in self.given if name in searched), None):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"--certify takes the profile's own setting and searches nothing; leave {option} out")
        self.certified  # noqa: B018  raises UsageError

    @property
    def certify(self) -> Path | None:
        """The profile whose setting is certified; None: one is searched."""
        path = self._first("certify")
        return None if path is None else Path(path)

    @cached_property
    def certified(self) -> ThresholdProfile | None:
        """The same, loaded."""
        if self.certify is None:
            return None
        from fsd_decoding.profile.threshold_profile import ThresholdProfile

        return ThresholdProfile.load(self.certify)

    @property
    def task(self) -> str:
        """The task by name. UsageError: none is given."""
        task = self._first("task") or (None if self.certified is None else self.certified.task)
        if task is None:
            raise UsageError(f"Missing option '--task': give one of {TASK_NAMES}, or --certify with a profile")
        return named_task(task, self.subjects)

    @property
    def kind(self) -> Kind:
        """What makes the task. UsageError: it is unknown."""
        certified = self.certified if self.certified is not None and self.certified.task == self.task else None
        recorded = None if certified is None else certified.prompt
        return task_kind(self.task, None if recorded is None else recorded.specification)

    @property
    def target(self) -> str | None:
        """The target that is given, or that of the profile; None: it is the task's default."""
        target: str | None = self._first("target")
        return target or (None if self.certified is None else self.certified.target.id)

    @property
    def target_and_drafts(self) -> tuple[str, list[Any]]:
        """Target and drafts: those given, those of the profile, or the task's default pair."""
        asked = self.drafters
        if self.certified is not None and not (asked.models or asked.heads or asked.of_vllm):
            from fsd_decoding.profile.drafts import draft_of

            return self.target or self.certified.target.id, [draft_of(self.certified.draft)]
        return asked.with_target(self.task, self.target)

    @property
    def drafters(self) -> Drafters:
        """What drafts: the drafts and heads that are given, or else the file's. UsageError: options contradict."""
        given, revision = self.given, self.loaded.draft.revision
        models, heads, named = (given.get(name) or () for name in ("draft", "head", "drafter"))
        if (of_vllm := given.get("speculative_config")) is not None:
            return Drafters(models, heads, named, of_vllm=VllmDraft.of(of_vllm))
        if models or heads or self.file is None:
            return Drafters(models, heads, named, revision)
        of_file = self.file.job
        if not named and (of_vllm := of_file.get("speculative_config")) is not None:
            return Drafters((), (), (), of_vllm=VllmDraft.of(of_vllm))
        asked = Drafters((), (), named or of_file.get("drafter") or ())
        models = of_file.get("draft") if asked.takes("model") else None
        heads = of_file.get("head") if asked.takes("eagle") else None
        return Drafters(models or (), heads or (), asked.named, revision)

    @property
    def loaded(self) -> Loading:
        """How models are loaded."""
        run = self._of_file("run")
        usual = Loading.of(run.get("model_kwargs"), run.get("draft_model_kwargs"))
        return Loading(self.loading.target.over(usual.target), self.loading.draft.over(usual.draft))

    @property
    def goal(self) -> Goal:
        """What is to be reached."""
        usual: Mapping[str, Any] = self._of_file("goal")
        if (found := self.certified) is not None:
            usual = {"acc": found.certificate.acc, **usual}
            if not any(usual.get(kind) for kind in KINDS):
                usual = {"min_acc": found.certificate.wanted, **usual}
        return Goal.over(usual, dict(self.given))

    @property
    def space(self) -> SearchSpace:
        """What is searched, where no setting is certified."""
        usual = {"tree": tuple(map(read_shape, AUTO_TREES))} if self.drafters.auto else {}
        return SearchSpace.over(usual | self._of_file("decoding"), dict(self.given))

    @property
    def seed(self) -> int:
        """The seed of problems and sampling."""
        usual = 0 if self.certified is None else self.certified.seed
        return int(self.given.get("seed", self._of_file("decoding").get("seed", usual)))

    @property
    def server(self) -> ServerDescription | None:
        """The server that the file describes; None: it describes none."""
        return None if self.file is None else self.file.job.get("server")

    @property
    def engines(self) -> tuple[str, ...]:
        """What decodes; several certify one setting in turn."""
        usual = RunConfig().engine if self.server is None else SERVER
        return tuple(listed(self.given.get("engine", self._of_file("run").get("engine", usual))))

    @property
    def run(self) -> RunConfig:
        """How it is run. UsageError: an engine is unknown, too."""
        for engine in self.engines:
            RunConfig.over({}, {"engine": engine})
        engine = "vllm" if "vllm" in self.engines else self.engines[0]
        if engine == SERVER:
            return RunConfig.over(self._of_file("run"), self.given | {"engine": engine})
        kwargs = {"model_kwargs": self.loaded.target, "draft_model_kwargs": self.loaded.draft}
        return RunConfig.over(self._of_file("run") | kwargs, self.given | {"engine": engine})

    @property
    def usual_folder(self) -> Path:
        """Where the first such calibration is written if nothing says where."""
        # One engine's profile does not replace another's, nor a certified setting or an estimate a searched one.
        # Of several engines each has a folder of its own in it.
        of_engine = f"-{self.engines[0]}" if self.engines in (("vllm",), (SERVER,)) else ""
        kind = "-certified" * (self.certify is not None) + "-explored" * self.goal.explore
        return Path("fsd-profile") / (folder_name(self.task) + of_engine + kind)

    def check(self) -> None:
        """Raises UsageError where anything that shows without torch is wrong."""
        kind = self.kind
        self.goal  # noqa: B018
        run, drafters = self.run, self.drafters
        check_data(kind, run.path("data"))
        _check_folders({"--cache": run.path("cache"), "--state": run.path("state")})
        check_storage(run.storage)
        if SERVER in self.engines:
            self._check_server()
        else:
            self._check_models(run, drafters)

    def _check_server(self) -> None:
        if self.server is None:
            raise UsageError(
                "--engine server needs a description of the server; write it into a file in YAML, under server "
                "(docs/servers.md), and give --config FILE"
            )
        given = {**self.given, **({} if self.file is None else self.file.job)}
        others = [
            name for name in ("target", "draft", "head", "drafter", "speculative_config", "certify") if given.get(name)
        ]
        if len(self.engines) > 1 or others:
            what = "another engine" if len(self.engines) > 1 else f"--{others[0].replace('_', '-')}"
            raise UsageError(f"--engine server and {what} are both given, and a server has its own models; drop one")

    def _check_models(self, run: RunConfig, drafters: Drafters) -> None:
        if drafters.of_vllm is not None and self.engines != ("vllm",):
            raise UsageError(
                f"--speculative-config says what drafts in vLLM, and --engine is {','.join(self.engines)!r}; give "
                "--engine vllm"
            )
        if self.certified is None:
            self._check_searched(run, drafters)
        check_place(run.device, run.dtype)
        check_sources({"--target": [self.target], "--draft": drafters.models, "--head": drafters.heads})
        if run.ray is not None:
            check_answers(run.ray)

    def _check_searched(self, run: RunConfig, drafters: Drafters) -> None:
        space = SearchSpace.over(self._of_file("decoding"), dict(self.given))  # without the trees of --drafter auto
        check_run_of_beams(space, run)
        if space.beams is not None:
            drafters.check_models(f"--beams is {space.beams}")
        if drafters.auto and (space.predictor is not None or space.moving):
            other = "--predictor" if space.predictor is not None else "--threshold-policy"
            raise UsageError(
                f"--drafter auto and {other} are both given, and {other} goes with chains of draft models alone; leave "
                "one of the two out"
            )
        if "vllm" in self.engines and any(space.trees):
            raise UsageError("--engine vllm and --tree are both given, and vLLM drafts no trees; leave one of them out")
        drafters.check_pair(self.task, self.target)
        if space.predictor is not None and str(space.predictor) != AUTO:
            predictor_files.read(Path(space.predictor))

    def _first(self, name: str) -> Any:
        """A field of `Job`."""
        return self.given.get(name) or (None if self.file is None else self.file.job.get(name))

    def _of_file(self, section: str) -> dict[str, Any]:
        return {} if self.file is None else dict(getattr(self.file, section).given)


def _check_folders(folders: Mapping[str, Path | None]) -> None:
    """Raises UsageError where something else than a folder is in the way of one that an option names."""
    for option, folder in folders.items():
        way = () if folder is None else (folder, *folder.parents)
        found = next((each for each in way if each.exists()), None)
        if found is not None and not found.is_dir():
            raise UsageError(
                f"{option} is {str(folder)!r}, and {str(found)!r} is no folder; choose another, or remove it"
            )
