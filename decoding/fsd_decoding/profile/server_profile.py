"""The profile of a server: what a calibration of its knob measured, chose and certified, as one JSON file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, JsonValue

from fsd_common.errors import UsageError
from fsd_decoding.profile.certificate import Certificate, OutcomeCounts
from fsd_decoding.profile.fields import CERTIFIED, MET, Effort, Interval, Outcome, Source
from fsd_decoding.profile.io import file_of, read, write_atomically
from fsd_decoding.profile.parts import (
    Accuracy,
    Amount,
    Confidence,
    Count,
    DataInfo,
    Lengths,
    Natural,
    NumericalChurn,
    Part,
    Positive,
    Ratio,
    Repetition,
    SamplingInfo,
    Share,
    Truncation,
)
from fsd_decoding.profile.prompt_form import PromptInfo
from fsd_decoding.profile.sealed import Sealed
from fsd_decoding.profile.threshold_profile import ThresholdProfile


class ServerInfo(Part):
    """The server, by what it and its user say of it."""

    url: str
    """Its address when it was calibrated."""
    model: str
    """What requests call the model."""
    name: str | None
    """The user's name for the model."""
    said: dict[str, JsonValue]
    """What its list of models says of the model."""
    version: str
    """Its version, or unknown."""


class KnobInfo(Part):
    """The knob."""

    name: str
    """What the server calls it."""
    way: Literal["request", "live", "restart"]
    """How it is set: with each request, in the running server, or when it starts."""
    written: JsonValue
    """What sets it, with {T} in place of the value: fields of a request, an address and what is sent there, or a
    command."""
    values: tuple[float, ...]
    """The values that were searched, from strict to loose."""


class ServerPoint(Part):
    """One value of the knob, or the lossless reference, on one part beside the reference on the same problems."""

    value: float | None
    """The value. null: the reference, asked again."""
    source: Source
    """The part that the problems are of."""
    problems: Natural
    """Number of problems."""
    counts: OutcomeCounts
    """What was counted."""
    accuracy: Share
    """Share of right answers."""
    retention: Ratio
    """Right answers, divided by the reference's."""
    interval: tuple[Ratio, Ratio] | None
    """Approximate two-sided interval of retention at the certificate's confidence, by itself. null: the reference
    solved nothing."""
    lower_bound: Ratio | None
    """Lower bound of retention, by itself at the certificate's level. null: the value was not tested."""
    tokens_per_second: Positive
    """As it was measured before the search, at the load."""


class AcceptanceTold(Part):
    """What the server told of drafts, summed over texts, by the names of AIPerf's record of acceptance."""

    num_spec_steps: Count
    """Verifications by the target."""
    num_draft_tokens: Count
    """Drafted tokens."""
    num_accepted_draft_tokens: Count
    """Drafted tokens that were accepted."""
    mean_acceptance_length: Positive
    """Tokens per verification, with the one that the target adds."""
    draft_acceptance_rate: Share
    """Share of the drafted tokens that were accepted."""


Percentiles = tuple[Amount, Amount, Amount]


class LoadFigures(Part):
    """What was seen of one setting at the load."""

    stream_tokens_per_second: Positive
    """Of a typical stream; at a rate, of a typical request."""
    tokens_per_second: Positive
    """Of the whole server."""
    time_to_first_token: Percentiles
    """Seconds, as percentiles 50, 90 and 99."""
    time_between_tokens: Percentiles | None
    """Mean seconds from one token to the next in a request, as percentiles 50, 90 and 99. null: texts have one."""
    requests: Count
    """Requests that were answered."""
    failed: Count
    """Requests that were not."""
    goodput: Amount | None = None
    """Requests/s that were answered within the service level. null: none was given."""
    acceptance: AcceptanceTold | None = None
    """What the server told of drafts. null: nothing."""


class LoadInfo(Part):
    """Speeds at a load, of settings in turn on the same requests."""

    streams: Natural | None
    """Streams at once. null: requests arrived by themselves."""
    rate: Positive | None
    """Requests/s that arrived, as a Poisson process. null: streams were kept busy."""
    slo: dict[str, Positive] = Field(default={})
    """The service level: the most seconds to the first token (ttft) and from one token to the next (itl)."""
    reference: LoadFigures
    """Of the lossless reference."""
    chosen: LoadFigures
    """Of the chosen value."""
    over_reference: Positive
    """How many times as fast a stream of the chosen value is: the centre of the ratios of pieces of work."""
    interval: Interval | None
    """Its confidence interval. null: too little was timed."""
    confidence: Confidence
    """Of the interval."""
    part: Source
    """The part that the requests are of."""


class Unanswered(Part):
    """Requests that stayed unanswered, after all their repetitions."""

    asked: Count
    """Requests of the last process."""
    reference: Count
    """Texts of the reference. Their problems count for no value."""
    chosen: Count
    """Texts of the chosen value that the reference answered. They count as lost."""


class ServerProfile(Sealed):
    """The exported result of a server's calibration."""

    kind: Literal["server"] = "server"
    """What tells it from profiles of engines."""
    created: AwareDatetime
    """When the calibration began."""
    outcome: Outcome
    """What the test showed of accuracy, and then the clock of speed; see profiles of engines."""
    task: str
    """Name of the task."""
    prompt: PromptInfo | None
    """How its prompts were made and its texts ended. null: by a task of a user's own code."""
    data: DataInfo
    """The problems."""
    server: ServerInfo
    """The server."""
    endpoint: Literal["chat", "completions"]
    """What prompts are sent to."""
    body: dict[str, JsonValue]
    """Fields of all requests beside prompt, sampling and limits."""
    knob: KnobInfo
    """What makes the server lossy."""
    value: float | None
    """The value of the knob to serve with. null: the reference."""
    estimate: float | None
    """A value that was chosen or tested, and that is not to be served with. null: there is none."""
    reference: dict[str, JsonValue]
    """How the lossless reference is had."""
    sampling: SamplingInfo
    """How tokens are sampled, as requests say."""
    seed: int
    """Seed of the noise, and of the choice of problems."""
    certificate: Certificate
    """What was tested, and what it showed."""
    accuracy: Accuracy
    """Of the reference and of the chosen value."""
    speed: LoadInfo | None
    """Speeds. null: nothing was timed."""
    curve: tuple[ServerPoint, ...]
    """The measured points."""
    unanswered: Unanswered
    """Requests that stayed unanswered."""
    numerical_churn: NumericalChurn | None = None
    """What the reference changed when it was asked again. null: its texts are sampled."""
    truncation: Truncation
    """How many texts reached the limit on new tokens."""
    lengths: Lengths
    """How long texts are."""
    repetition: Repetition
    """How many texts end in a loop."""
    effort: Effort
    """What was decoded."""
    versions: Annotated[dict[str, str], Field(min_length=1)]
    """Versions of Python and of the packages."""

    @property
    def name(self) -> str:
        return f"the profile of {self.task!r}"

    @property
    def met(self) -> bool:
        """Whether the calibration reached what was requested, as far as the digest shows."""
        return self.outcome in MET and self.bound

    @property
    def certifies(self) -> bool:
        """Whether anything is certified."""
        return self.bound and (self.outcome in CERTIFIED or self.certificate.certified)

    @property
    def chosen(self) -> float | None:
        """The chosen value, whether it is to be served with or an estimate; None: none was chosen."""
        return self.value if self.value is not None else self.estimate

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file atomically. UsageError: it has no digest, or cannot be written."""
        self.check_sealed()
        write_atomically(Path(path), self.model_dump_json(indent=2) + "\n")
        self._file = Path(path)

    @classmethod
    def _check_kind(cls, kind: object, name: str) -> None:
        if kind != "server":
            raise UsageError(f"{name} is of no server; give the profile of one")


def load_any(path: str | os.PathLike[str], *, allow_edited: bool = False) -> ThresholdProfile | ServerProfile:
    """Reads a profile of an engine or of a server; see `Sealed.load`."""
    file = file_of(path)
    content: dict[str, Any] = read(file, f"profile {str(file)!r}")
    kind = ServerProfile if content.get("kind") == "server" else ThresholdProfile
    return kind.load(file, allow_edited=allow_edited)
