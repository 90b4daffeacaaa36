"""Options that several commands have, and the words that options take. Importing this imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator, ValidationInfo, model_validator

from fsd_calib.tasks.asking import PROBLEMS
from fsd_calib.tasks.registry import TASKS
from fsd_common.addons import AddonKind, unless_known
from fsd_common.argument_checks import LEAST_TEMPERATURE, TRUNCATIONS, check_path, check_sampling, marker, named
from fsd_common.errors import UsageError
from fsd_common.option import Option
from fsd_common.settings import Count, Rule, Settings
from fsd_decoding.meanings import LEARNED, family_of

# The words that options take, known here without importing what they name; a test compares them.
RULES_OVER_SCORES = ("fsd", "fsd-sd", "fsd-coupled")
RULES_WITH_T = (*RULES_OVER_SCORES, "ensemble")
RULES_WITHOUT_T = ("sd", "sd-block", "coupled")
RULES = (*RULES_WITHOUT_T, *RULES_WITH_T)
DIVERGENCES = ("js", "ag", "kl_qp", "kl_pq", "tv", "hellinger", "doubt")
SCORES = (
    *DIVERGENCES, "margin", "relaxed", "fly", "cactus", "accept-threshold", "typical", "posterior", "ensemble",
)  # fmt: skip
CALIBRATED = (*SCORES, LEARNED)
"""Scores that a calibration searches: also the one that it learns, which other commands know by profiles alone."""
AUTO = "auto"
"""In place of scores: those that traces speak for. Of a predictor's folder, or a judge's file: one is trained on
the tuning part."""
CONSTANT = "constant"
PHASES = ("phase", "phase-inside", "phase-outside")
POLICIES = (CONSTANT, "schedule", "entropy", "per-prompt", *PHASES)
DTYPES = ("float32", "bfloat16", "float16")

GOAL, MODELS, DECODING = "Goal", "Models", "Decoding"
"""Panels of `--help`, beside `PROBLEMS`."""

_MEANT = {
    "agreement": "agreement (your own prompts by --data, without keys: right is the target's own text)",
    "lm-eval": "lm-eval:NAME (a task of lm-evaluation-harness)",
}  # what a name alone does not tell
TASK_NAMES = (
    f"{', '.join(_MEANT.get(name, name) for name in TASKS)}, or a file in YAML that describes your own (see fsd-tasks "
    "list)"
)
LARGE_PAIR = ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct")
"""The target and the draft of tasks that no pair is bundled for."""


def _path(value: Any, info: ValidationInfo) -> Any:
    """Refuses what is no path, and an empty one, which would be the current folder."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError("it must be a path")
    check_path(named(str(info.field_name)), value)
    return value


def absolute(value: Any) -> str:
    """Returns a path as a file has it that may be read from elsewhere."""
    return str(Path(value).absolute())


def known_name(kind: AddonKind, name: str, own: tuple[str, ...]) -> str:
    """Returns a name of this package's own or of an add-on, behind which may stand numbers.

    ValueError: there is none of this name.
    """
    if rule := unless_known(kind, family_of(name), own):
        raise ValueError(rule)
    return name


PathLike = Annotated[str | os.PathLike[str], PlainValidator(_path)]
Shares = Annotated[float, Field(gt=0, le=1), Rule("it must be in (0, 1], or None")]

Target = Annotated[
    str | None,
    Option(
        f"The large model: hub id or local path. By default the bundled model for arithmetic, else {LARGE_PAIR[0]}.",
        MODELS,
    ),
]
RECURRENT = "bundled-recurrent"
"""The bundled target's draft with a recurrent layer, as `--draft` takes it."""
DRAFT = (
    "The small model, with the target's tokenizer. Where no target is given, by default the bundled model for "
    f"arithmetic (or {RECURRENT}, which has a recurrent layer), else {LARGE_PAIR[1]}."
)
Device = Annotated[str | None, Option("cuda, cpu, … By default a GPU if there is one.", MODELS)]
Dtype = Annotated[
    str | None, Option("float32, bfloat16 or float16. By default the models' own dtype.", MODELS, words=DTYPES)
]
Data = Annotated[
    PathLike | None,
    Option("Read problems from this file instead of the task's own source.", PROBLEMS, written=str, saved=absolute),
]
Limit = Annotated[Count | None, Option("Use at most this many problems.", PROBLEMS)]
Group = Annotated[
    str | None,
    Option(
        "Column of the data whose value problems share that are not independent of each other, such as a document or a "
        "conversation: they are on one side of the split, and count together in the test.",
        PROBLEMS,
    ),
]
Seed = Annotated[int, Option("Seed for generating or picking problems, and for sampling.", PROBLEMS)]
Workers = Annotated[
    Count | None,
    Option(
        "Processes that decode, each with models of its own; 1 decodes in this one. By default one for each CPU core "
        "or GPU, as far as memory and problems suffice, once that is worth starting them.",
        DECODING,
    ),
]
Ray = Annotated[
    str | None,
    Option(
        "Run the workers on the Ray cluster at this address (auto: the one this machine is in; local: one that is "
        "started here). Needs the extra 'ray'.",
        DECODING,
    ),
]
Temperature = Annotated[
    float, Option("Sampling temperature; 0 is greedy decoding.", DECODING, within="sampling"),
    Field(ge=0, allow_inf_nan=False), Rule(f"it must be 0 (greedy) or a finite number >= {LEAST_TEMPERATURE:g}"),
]  # fmt: skip
TopK = Annotated[Count | None, Option("Sample from this many of the likeliest tokens.", DECODING, within="sampling")]
TopP = Annotated[
    Shares | None,
    Option("Sample from the likeliest tokens that together have this probability.", DECODING, within="sampling"),
]


def _marker(value: Any, info: ValidationInfo) -> Any:
    return None if value is None else marker(named(str(info.field_name)), value)


def _read_marker(option: str, text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def check_phase(begin: str | int | None, end: str | int | None, wanted: bool) -> None:
    """Raises UsageError where one marker of a phase is given, or both though no policy wants a phase."""
    first, last = named("phase_begin"), named("phase_end")
    if wanted and (begin is None) != (end is None):
        raise UsageError(f"{first} is {begin!r} and {last} is {end!r}; give both, or none")
    if not wanted and (begin, end) != (None, None):
        raise UsageError(
            f"{first} and {last} mark a phase, and no policy goes by it; give {named('threshold_policy')} "
            f"{', '.join(PHASES[:-1])} or {PHASES[-1]}, or leave them out"
        )


PhaseBegin = Annotated[
    str | int | None,
    PlainValidator(_marker),
    Option(
        "Marker behind which a phase begins: a text, in the prompt or in what is written, or the id of a token. By "
        "default the one that thinking has in the chat template or among the tokens, else the task's own.",
        DECODING,
        read=_read_marker,
    ),
]
PhaseEnd = Annotated[
    str | int | None,
    PlainValidator(_marker),
    Option("Marker behind which the phase ends, likewise.", DECODING, read=_read_marker),
]


class Drawing(Settings):
    """How tokens are drawn, as transformers does; greedily by default."""

    temperature: Temperature = 0.0
    top_k: TopK = None
    top_p: TopP = None
    min_p: Annotated[
        Shares | None,
        Option(
            "Sample from the tokens that have at least this share of the likeliest one's probability.",
            DECODING,
            within="sampling",
        ),
    ] = None

    @classmethod
    def merged(cls, usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all fields; temperature 0 turns off what is not given and greedy decoding has no use for."""
        off = TRUNCATIONS if given.get("temperature", usual.get("temperature")) == 0 else ()
        return {name: value for name, value in usual.items() if name not in off} | dict(given)

    @model_validator(mode="after")
    def _check_drawing(self) -> Drawing:
        check_sampling(self.temperature, self.top_k, self.top_p, self.min_p)
        return self
