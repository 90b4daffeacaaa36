"""The goal of a calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from fsd_calib.options.common import GOAL
from fsd_calib.options.server import parse_slo
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.option import Option
from fsd_common.settings import Count, Rule, Settings

MAX_MIN_ACC = 1.2
MOST_LOOKS = 100

Acc = Literal["retention", "absolute"]
Guarantee = Literal["population", "dataset"]

KINDS = ("min_acc", "min_speed", "pareto")
"""The fields of a goal of which there is exactly one."""


def _service_level(text: str) -> str:
    parse_slo(text)
    return text


class Goal(Settings):
    """The goal of a calibration: an accuracy to keep, a speed to reach, or the Pareto front, exactly one of these."""

    min_acc: Annotated[
        Annotated[
            float,
            Field(gt=0, le=MAX_MIN_ACC), Rule(f"it must be above 0 and at most {MAX_MIN_ACC:g} (0.98 is 98 %)"),
        ] | None,
        Option(
            "Find the fastest setting that keeps at least this share of the target's accuracy (0.98: 98 % of it; of "
            "plain accuracy with --acc absolute); this, --min-speed or --pareto is required.",
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
