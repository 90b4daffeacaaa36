"""What a calibration is asked for: each field once, with its type, default, meaning and rules.

The options of commands, the keys of `run.yaml`, Python's keywords and what a run saves are derived from these models.
Importing this imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    SkipValidation,
    model_validator,
)

from fsd_calib.common_options import (
    AUTO,
    CALIBRATED,
    CONSTANT,
    DECODING,
    DRAFT,
    GOAL,
    MODELS,
    PHASES,
    POLICIES,
    RULES_WITH_T,
    TASK_NAMES,
    Data,
    Device,
    Drawing,
    Dtype,
    Group,
    Limit,
    PathLike,
    PhaseBegin,
    PhaseEnd,
    Ray,
    Seed,
    Target,
    Workers,
    absolute,
    check_phase,
    family_of,
)
from fsd_calib.search.storage_url import without_password
from fsd_calib.server_options import ServerDescription, parse_slo
from fsd_calib.tasks.asking import PROBLEMS, PromptOptions
from fsd_calib.tasks.registry import completed_tasks
from fsd_common.addons import AddonKind, unless_known
from fsd_common.argument_checks import check_path, named
from fsd_common.errors import UsageError
from fsd_common.option import Option, json_object, several, several_each, whole_numbers
from fsd_common.progress.base import Progress
from fsd_common.progress.chosen import called_progress
from fsd_common.settings import Count, Rule, Settings, Several, listed
from fsd_decoding.meanings import LEARNED
from fsd_decoding.model_options import USUAL, Loading, ModelKwargs, ModelOptions
from fsd_decoding.tree_shape import CHAIN, Chain, TreeShape, read_shape, without_chain

if TYPE_CHECKING:
    from fsd_decoding.sampling import Sampling

MAX_MIN_ACC = 1.2
MOST_LOOKS = 100
MOST_AT_ONCE = 32
"""The largest batch size that is chosen."""

Acc = Literal["retention", "absolute"]
Guarantee = Literal["population", "dataset"]
Timing = Literal["run", "careful", "none"]
"""Where speeds are timed: in the calibration's own process, in fresh processes, or nowhere."""
Compiling = Literal["auto", "off", "capture", "on"]
"""How rounds are called: as pays best within the planned work, or as `profile.costs.Rounds` names it."""
DesignName = Literal["all", "auto"]
EngineName = Literal["fsd-calib", "vllm", "server"]
"""What decodes."""
DRAFTERS = ("model", "eagle", "ngram", AUTO)
"""What --drafter takes, beside drafters of one's own."""


def _service_level(text: str) -> str:
    parse_slo(text)
    return text


def _found(kind: AddonKind, name: str, own: tuple[str, ...]) -> str:
    """A name of this package's own or of an add-on, behind which may stand numbers."""
    if rule := unless_known(kind, family_of(name), own):
        raise ValueError(rule)
    return name


def own_drafters(named: Iterable[str]) -> list[str]:
    """Returns those of --drafter that are not of this package."""
    return [name for name in named if name not in DRAFTERS]


def _one_of(name: str, known: tuple[str, ...]) -> str:
    if name not in known:
        raise ValueError(f"it must be one of {', '.join(known)}")
    return name


def _policy(value: Any) -> Any:
    """A family by its name; what a policy of one's own must be, `policy_families` knows."""
    return _one_of(value, POLICIES) if isinstance(value, str) else value


def _trees(value: Any) -> tuple[TreeShape | None, ...]:
    """Shapes of trees, and None for chains. Only of a list or a tuple: a dict or an iterator is no list of shapes."""
    trees = without_chain(value if isinstance(value, list | tuple) else [value])
    if not trees or not all(isinstance(tree, TreeShape | None) for tree in trees):
        raise ValueError(f"write a shape as TreeShape(top_k=2, nodes=6), chains as {CHAIN!r}, and several as a list")
    return tuple(trees)


def _written_shapes(value: Any) -> Any:
    """Refuses what is no text, such as `[2, 6]`, which YAML reads as two numbers."""
    if not all(isinstance(each, str) for each in listed(value)):
        raise ValueError(f"write a shape as '2,6', in quotes (top_k,nodes), or {CHAIN}, or a list of such")
    return value


def _saved_shapes(trees: tuple[TreeShape | None, ...]) -> list[str] | None:
    """Shapes as texts; of chains alone, which are the default, none."""
    return [CHAIN if tree is None else tree.text for tree in trees] if any(trees) else None


def _saved_keywords(given: Any) -> dict[str, Any] | None:
    """How models are loaded, by the names of the options."""
    options = ModelOptions.of(given)
    own = {name: value for name, value in vars(options).items() if name != "others" and value is not None}
    return None if options == USUAL else own | dict(options.others)


class Job(Settings):
    """A task and its models, as commands and files name them.

    Attributes:
        certify: the profile whose setting is certified; nothing is searched then.
    """

    task: Annotated[
        str | None,
        Option(f"Task to calibrate on (required without --certify): {TASK_NAMES}.", GOAL, words=completed_tasks),
    ] = None
    target: Target = None
    draft: Annotated[
        Several[str] | None,
        Option(
            f"{DRAFT} Several (--draft A --draft B) are compared in one search and certified in one attempt; the "
            "profile names the chosen one.",
            MODELS,
            repeated=True,
        ),
    ] = None
    head: Annotated[
        Several[str] | None,
        Option(
            "An EAGLE head of the target, such as fsd-train-eagle makes: hub id or local path. It drafts in place of "
            "a draft model; beside --draft, and where several are given, all are compared.",
            MODELS,
            repeated=True,
        ),
    ] = None
    speculative_config: Annotated[
        Mapping[str, Any] | None,
        Option(
            "What drafts in vLLM in place of --draft, as JSON of its --speculative-config: a head of the target, such "
            'as \'{"method": "eagle3", "model": "HEAD"}\', or mtp or dflash. With --engine vllm.',
            MODELS,
            read=lambda option, text: json_object(option, text, '{"method": "eagle3", "model": "HEAD"}'),
        ),
    ] = None
    server: Annotated[
        ServerDescription | None,
        SkipValidation,
        Option("The server of engine server, see docs/servers.md.", command=False, written=ServerDescription),
    ] = None
    drafter: Annotated[
        Several[Annotated[str, AfterValidator(lambda name: _found("drafter", name, DRAFTERS))]] | None,
        Option(
            "What drafts: model (--draft), eagle (--head), ngram, which goes by the text itself and needs no model, "
            "mine:Name, a drafter of your own (docs/extending.md), several of these, separated by commas, or auto: all "
            "that this package has, as chains and as trees. By default what --draft and --head say.",
            MODELS,
            words=DRAFTERS,
            read=several,
        ),
    ] = None
    certify: Annotated[
        PathLike | None,
        Option(
            "Certify the setting of this profile, with its task, models and sampling: nothing is searched. For a "
            "setting that was found elsewhere, with another engine, or (--engine fsd-calib,vllm) for both. Counts as "
            "an attempt like any other.",
            GOAL,
            written=str,
        ),
    ] = None


class Goal(Settings):
    """The goal of a calibration: an accuracy to keep, a speed to reach, or the Pareto front, exactly one of these."""

    min_acc: Annotated[
        Annotated[
            float,
            Field(gt=0, le=MAX_MIN_ACC), Rule(f"it must be above 0 and at most {MAX_MIN_ACC:g} (0.98 is 98 %)"),
        ] | None,
        Option(
            "Find the fastest setting that keeps at least this share of the target's accuracy (0.98: 98 % of it; of "
            "plain accuracy with --acc absolute); this or --min-speed is required.",
            GOAL,
        ),
    ] = None  # fmt: skip
    min_speed: Annotated[
        Annotated[
            float, Field(gt=0, allow_inf_nan=False), Rule("it must be a number of tokens/s above 0")
        ] | None,
        Option("Find the most accurate setting with at least this many tokens/s per stream.", GOAL),
    ] = None  # fmt: skip
    pareto: Annotated[
        bool, Option("Find the whole Pareto front of accuracy and speed, to choose from later.", GOAL)
    ] = False
    acc: Annotated[
        Acc,
        Option(
            "Meaning of --min-acc: retention (a share of the target's accuracy) or absolute (plain accuracy).", GOAL
        ),
    ] = "retention"
    confidence: Annotated[
        float, Option("Confidence level of the certificate.", GOAL),
        Field(ge=0.5, lt=1), Rule("it must be at least 0.5 and below 1, such as 0.95"),
    ] = 0.95  # fmt: skip
    guarantee: Annotated[
        Guarantee,
        Option(
            "What the certificate covers: population (problems like these), or dataset (exactly these problems).", GOAL
        ),
    ] = "population"
    looks: Annotated[
        int,
        Field(ge=1, le=MOST_LOOKS), Rule(f"it must be from 1 to {MOST_LOOKS}"),
        Option(
            "How often the outcomes of --min-acc are tested, at about equal distances (fewer where groups or few "
            "problems leave no more); decoding stops as soon as they suffice. 1 decides once, on all problems.",
            GOAL,
        ),
    ] = 10  # fmt: skip
    serve_batch: Annotated[Count, Option("Streams decoded at once when speed is measured.", GOAL)] = 1
    rate: Annotated[
        Annotated[float, Field(gt=0, allow_inf_nan=False), Rule("it must be a number of requests/s above 0")] | None,
        Option(
            "With --engine server: measure speeds at so many requests/s, which arrive as a Poisson process, in place "
            "of --serve-batch streams.",
            GOAL,
        ),
    ] = None
    slo: Annotated[
        Annotated[str, AfterValidator(_service_level)] | None,
        Option(
            "With --engine server: the service level that requests are counted by, such as ttft=500ms,itl=50ms (time "
            "to the first token, and from one token to the next).",
            GOAL,
        ),
    ] = None
    explore: Annotated[
        bool,
        Option(
            "Estimate retention and speed, with intervals, on the tuning part alone: no certificate, and no attempt is "
            "spent.",
            GOAL,
        ),
    ] = False

    @property
    def tests(self) -> int:
        """How often outcomes are tested, at most: once where nothing is wanted of accuracy."""
        return 1 if self.min_acc is None else self.looks

    @classmethod
    def merged(cls, usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all fields; a goal of one kind replaces one of another."""
        replaced = KINDS if any(given.get(kind) not in (None, False) for kind in KINDS) else ()
        return {name: value for name, value in usual.items() if name not in replaced} | dict(given)

    @model_validator(mode="after")
    def _check(self) -> Goal:
        if [self.min_acc is not None, self.min_speed is not None, self.pareto].count(True) != 1:
            raise UsageError("give exactly one of {}, {} and {}".format(*map(named, KINDS)))
        if self.acc == "absolute" and self.min_acc is not None and self.min_acc > 1:
            raise UsageError(f"{named('min_acc')} is {self.min_acc}; it must be above 0 and at most 1 (0.98 is 98 %)")
        return self


def moves(policy: Any) -> bool:
    """Returns whether T varies over a text by a policy, or by the family of this name."""
    if isinstance(policy, str):
        return policy != CONSTANT
    from fsd_decoding.adaptive import Constant  # has loaded torch already, as the policy has

    return not isinstance(policy, Constant)


KINDS = ("min_acc", "min_speed", "pareto")
"""The fields of a goal of which there is exactly one."""


class SearchSpace(Drawing):
    """What a calibration chooses among, and how tokens are drawn. T itself is always searched."""

    rule: Annotated[
        Several[Annotated[str, AfterValidator(lambda name: _found("rule", name, RULES_WITH_T))]],
        Option(
            f"Acceptance rule: {', '.join(RULES_WITH_T)}, or several, separated by commas. mine:Name is a rule of your "
            "own (docs/extending.md).",
            DECODING,
            words=RULES_WITH_T,
            read=several,
        ),
    ] = ("fsd-coupled",)
    score: Annotated[
        Several[Annotated[str, AfterValidator(lambda name: _found("score", name, (AUTO, *CALIBRATED)))]],
        Option(
            f"Score that the threshold bounds: {', '.join(CALIBRATED)}, one with numbers, such as gated-js@0.7, or "
            "several, separated by commas. auto: those that traces of the models speak for; with a predictor, and for "
            "drafts that are no models, js and doubt. js@50 uses only the target's 50 "
            "likeliest tokens and one bucket for the rest; numbers of other scores are in docs/rules.md. "
            "mine:Name is a score of your own (docs/extending.md).",
            DECODING,
            words=(AUTO, *CALIBRATED),
            read=several,
            also="divergence",
        ),
    ] = (AUTO,)
    threshold_policy: Annotated[
        Several[Annotated[Any, AfterValidator(_policy)]],
        Option(
            "How T changes over a text: constant (the default), schedule (stricter at the beginning, or towards the "
            "end), entropy (looser where the target is unsure), per-prompt (predicted from the prompt and the draft's "
            "first token; learned on the tuning part, even with --plan), phase (one T while the model thinks and "
            "another one else; phase-inside and phase-outside are exact in the other phase), or several, separated by "
            "commas or by repeating the option. Each policy has a handful of shapes; how loose a shape may be is "
            "searched and certified like a constant T.",
            DECODING,
            words=POLICIES,
            read=several_each,
            repeated=True,
            written=Several[Annotated[str, AfterValidator(_policy)]],
        ),
    ] = (CONSTANT,)
    phase_begin: PhaseBegin = None
    phase_end: PhaseEnd = None
    draft_length: Annotated[
        Several[Count] | None,
        Option(
            "Tokens drafted per round: a number such as 5, or several to search over, such as 2-8 or 4,6,8. By default "
            "1-12, or at most 16 with --predictor; trees are 2 to 6 or 8 deep.",
            DECODING,
            read=whole_numbers,
        ),
    ] = None
    tree: Annotated[
        TreeShape | Chain | Sequence[TreeShape | Chain | None] | None,
        PlainValidator(_trees),
        Option(
            "Draft trees of this shape: TOP_K,NODES, such as 2,6 for six nodes a round, each with up to two children; "
            "the draft length is their depth. Repeat it to choose among shapes, and give chain to choose among chains "
            "too. By default chain.",
            DECODING,
            read=lambda option, texts: tuple(map(read_shape, texts)),
            repeated=True,
            written=Annotated[
                Several[str],
                BeforeValidator(_written_shapes),
                AfterValidator(lambda them: tuple(map(read_shape, them))),
            ],
            saved=_saved_shapes,
        ),
    ] = (None,)
    predictor: Annotated[
        PathLike | None,
        Option(
            "Folder of a predictor from fsd-train-predictor, which ends drafts early; auto trains one on the tuning "
            "part.",
            DECODING,
            written=str,
            saved=lambda given: given if str(given) == AUTO else absolute(given),
        ),
    ] = None
    judge: Annotated[
        PathLike | None,
        Option(
            "File of the judge that score judge is, as a calibration trained it; auto labels mismatches of half the "
            "tuning part, and trains one on them (docs/judge.md).",
            DECODING,
            written=str,
            saved=lambda given: given if str(given) == AUTO else absolute(given),
        ),
    ] = None
    judge_budget: Annotated[
        Count, Option("With --judge auto: mismatches to label, for each of which the target writes on once.", DECODING)
    ] = 2000
    stop_policy: Annotated[
        Annotated[str, AfterValidator(lambda name: _found("stop policy", name, ()))] | None,
        Option("A stop policy of your own that ends drafts early: mine:Name (docs/extending.md).", DECODING),
    ] = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _check_together(self) -> SearchSpace:
        check_phase(self.phase_begin, self.phase_end, self.phases)
        self._check_judge()
        if any(self.trees):
            self.check_walked(f"{named('tree')} is given", "trees")
        if self.stop_policy is not None and (self.predictor is not None or any(self.trees)):
            what = "a predictor ends drafts too" if self.predictor is not None else "trees are drafted as a whole"
            raise UsageError(f"{named('stop_policy')} is given, and {what}; leave one of the two out")
        if self.predictor is not None and self.moving:
            raise UsageError(
                f"a predictor ends drafts by the T they are given, and policy {self.moving} judges them by another; "
                "leave one of the two out"
            )
        return self

    def _check_judge(self) -> None:
        judges = [name for name in listed(self.score) if family_of(name) == LEARNED]
        if len(judges) > 1:
            raise UsageError(f"{named('score')} has {' and '.join(judges)}; give one judge")
        given, asked = self.judge is not None, LEARNED in judges
        if given != asked:
            has, lacks = (named("judge"), f"{named('score')} {LEARNED}") if given else (
                f"{named('score')} {LEARNED}", f"{named('judge')} FILE, or {named('judge')} {AUTO} to train one"
            )  # fmt: skip
            raise UsageError(f"{has} is given without {lacks}; give both, or none")
        if judges and any(self.trees):
            raise UsageError(
                f"{named('score')} {judges[0]} and {named('tree')} are given, and a judge judges chains alone; leave "
                "one out"
            )
        if judges and self.predictor is not None:
            raise UsageError(
                f"{named('score')} {judges[0]} and {named('predictor')} are given, and a predictor is trained for "
                "scores that are known before; leave one of the two out"
            )

    def check_walked(self, given: str, what: str) -> None:
        """Raises UsageError where something is given that needs traces, which only chains of models have.

        Args:
            given: what is given that drafts otherwise, and `what` drafts so, in words.
        """
        if self.predictor is not None:
            raise UsageError(f"{given}, and a predictor ends chains of draft models early; leave one of the two out")
        if self.moving:
            raise UsageError(
                f"{given}, and how fast {what} are with policy {self.moving} is not forecast; leave one of the two out"
            )

    @property
    def moving(self) -> str:
        """The policies by name, if T moves by one of them; empty: it is constant."""
        policies = listed(self.threshold_policy)
        names = (each if isinstance(each, str) else type(each).__name__ for each in policies)
        return ", ".join(names) if any(map(moves, policies)) else ""

    @property
    def phases(self) -> bool:
        """Whether T moves by the task's phase."""
        return any(isinstance(each, str) and each in PHASES for each in listed(self.threshold_policy))

    @property
    def trees(self) -> tuple[TreeShape | None, ...]:
        """The shapes of trees; None: chains."""
        return self.tree  # type: ignore[return-value]  # which its validator has made of it

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn, as decoders take it. This imports torch."""
        from fsd_decoding.sampling import Sampling

        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p)


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
