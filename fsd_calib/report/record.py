"""The record of a run: what a profile does not hold and pages show, saved beside it as run.json.

It may be deleted: pages then say what is missing. It holds texts of problems, so it is as confidential as they are.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from fsd_decoding.profile.certificate import OutcomeCounts
from fsd_decoding.profile.fields import CurvePoint, Source, Work
from fsd_decoding.profile.parts import Amount, Count, Natural, Part, Positive, Ratio, Share
from fsd_decoding.profile.setting import Setting

VERSION: Final = 1
FILE_NAME: Final = "run.json"


class DraftAlone(Part):
    """The draft by itself, on tuning problems."""

    point: CurvePoint
    """What was measured of it, as of any other setting."""
    speed: Amount | None
    """Timed tokens/s of one stream, as the profile's speeds were. null: nothing was timed."""
    speed_interval: tuple[Amount, Amount] | None
    """Its interval. null: nothing was timed, or on too few problems."""


class Trial(Part):
    """A trial of the search, in the order in which they finished."""

    setting: Setting
    """What was tried."""
    share: Annotated[float, Field(ge=0, lt=1)]
    """Share of the tokens drafted along the target's text that its T accepts."""
    problems: Natural
    """Number of tuning problems after which the trial was settled."""
    retention: Ratio
    """On those problems."""
    speed: Amount
    """Tokens/s of one stream by the cost model, from the rounds on those problems."""
    feasible: bool
    """Whether the search expects it to meet the goal."""


class Rung(Part):
    """A frozen setting, in the order of the test."""

    setting: Setting
    """What was frozen."""
    problems: Natural | None
    """Problems of the certification part that were decoded, up to the look that decided. null: it was not tested."""
    counts: OutcomeCounts | None
    """On these. null: it was not tested."""
    lower_bound: Ratio | None
    """Of its retention. null: it was not tested."""
    accuracy_bound: Share | None
    """Lower bound of its accuracy. null: it was not tested."""
    p_value: Share | None
    """Of the hypothesis that it does not keep what was requested. null: it was not tested, or nothing was requested."""
    passed: bool | None
    """Whether it passed. null: as `p_value`."""


class Step(Part):
    """A step of the calibration."""

    name: str
    """Its name."""
    seconds: Amount
    """By the clock, in the process that wrote the record: what an earlier one did is not in it."""
    work: Work | None = None
    """What was decoded and reused in it. null: not counted."""


class Scale(Part):
    """What thresholds of a score mean on the tuning part, along the target's text."""

    arm: Setting
    """A setting with that score, policy, draft and tree, without a threshold."""
    shares: tuple[Share, ...]
    """Shares of drafted tokens accepted by D <= T alone."""
    thresholds: tuple[Amount, ...]
    """T at which each share is accepted."""


class Replayed(Part):
    """What a draft length gives at the chosen T, counted by replay of the target's text."""

    setting: Setting
    """The chosen one, at that draft length."""
    tokens_per_round: Positive
    """Tokens per round."""
    accepted: Share
    """Share of the drafted tokens that were accepted."""


class Token(Part):
    """A token of a text."""

    text: str
    """Its part of the text."""
    source: Literal["exact", "fuzzy", "fallback", "bonus", "target"]
    """Which decision emitted it, see `fsd_decoding.observers.token_sources.TokenSource`."""
    says: str
    """Its source, score, T and the token that it displaced, in a line."""


class Answer(Part):
    """A text, and whether it was right."""

    text: str
    """The text, cut where it is very long."""
    correct: bool
    """Whether it was right."""
    tokens: Count
    """Number of its tokens."""


class Differing(Part):
    """A problem whose text differs between the target and the chosen setting."""

    problem: Count
    """Its id."""
    question: str
    """The question, cut where it is very long."""
    prompt: str
    """The prompt that asked it, likewise."""
    reference: str
    """The reference answer."""
    target: Answer
    """The target's own text."""
    chosen: Answer
    """The chosen setting's text."""
    sources: tuple[Token, ...] = ()
    """The tokens of the chosen setting's text. Empty: it was not decoded once more to tell them."""


class Differences(Part):
    """Problems whose texts differ, with the first seed."""

    source: Source
    """The part that was compared."""
    problems: Count
    """Number of problems that were compared."""
    texts: Count
    """Number of texts that differ."""
    shown: tuple[Differing, ...]
    """Some of them: those whose outcome differs first."""
    unattributed: str | None = None
    """Why no text has its tokens. null: some have, or none differ."""


class RunRecord(Part):
    """The record of a run."""

    version: Literal[1] = VERSION
    """Version of this schema."""
    profile: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The digest of the profile that the run wrote."""
    draft_alone: DraftAlone | None = None
    """null: it was not measured."""
    trials: tuple[Trial, ...]
    """Those of the search."""
    rungs: tuple[Rung, ...]
    """The frozen settings."""
    steps: tuple[Step, ...]
    """In their order."""
    scales: tuple[Scale, ...]
    """By score, policy and draft."""
    replayed: tuple[Replayed, ...]
    """At the chosen T, by draft length."""
    differences: Differences
    """What the chosen setting changed."""

    @model_validator(mode="after")
    def _scales_have_a_threshold_for_each_share(self) -> Self:
        for scale in self.scales:
            if len(scale.shares) != len(scale.thresholds):
                raise ValueError(f"scale of {scale.arm.score}: {len(scale.shares)} shares, {len(scale.thresholds)} T")
        return self
