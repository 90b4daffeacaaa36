"""What is set for the plugin: by users for an engine (the entry "fsd" of --additional-config) and for a request
(`vllm_xargs`), and by calibrations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from fsd_common.errors import UsageError
from fsd_decoding.profile.parts import Amount, Count, Part, PolicyInfo, SamplingInfo
from fsd_decoding.scores import score_named

if TYPE_CHECKING:
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

_EXAMPLE = """--additional-config '{"fsd": {"profile": "profile.json"}}'"""


@dataclass(frozen=True)
class ServeSettings:
    """Settings of the plugin.

    Args:
        profile: the profile's file, or its folder.
        allow_edited: follow a profile that was changed after its calibration, too.
        records: folder for traces of what is served; None: none are written.
        record_texts: number of texts after which recording ends.
        audit: share of requests whose texts are decoded losslessly once more, while no other request is there.
        audit_file: to which a line of each is added; None: they are counted alone.
        grader: says which of both texts are right, `module:function`; None: nobody does.
        content: the profile as it was read when the engine was configured, which its workers follow. Not for users.
        counters: folder by which workers pass their counters on. Not for users.
        engines: number of data-parallel engines, each with records of its own. Not for users.
    """

    profile: str
    allow_edited: bool = False
    records: str | None = None
    record_texts: int = 1000
    audit: float = 0.0
    audit_file: str | None = None
    grader: str | None = None
    content: str = ""
    counters: str = ""
    engines: int = 1

    @classmethod
    def of(cls, given: object) -> Self:
        """Returns the settings that a user gave. Raises UsageError: one is unknown, missing or of another type."""
        known = [field.name for field in fields(cls)][:-3]
        if not isinstance(given, Mapping):
            raise UsageError(f"fsd is {given!r:.60}; it must be an object, as in {_EXAMPLE}")
        if unknown := [name for name in given if name not in known]:
            raise UsageError(f"fsd has no setting {unknown[0]!r:.60}; it has {', '.join(known)}")
        if not isinstance(given.get("profile"), str):
            raise UsageError(f"fsd has the profile {given.get('profile')!r:.60}; it must be a path, as in {_EXAMPLE}")
        _check("allow_edited", given, bool, "true or false")
        _check("records", given, str, "the path of a folder")
        _check("record_texts", given, int, "a whole number of at least 1")
        if given.get("record_texts", 1) < 1:
            raise UsageError(f"record_texts is {given['record_texts']}; it must be a whole number of at least 1")
        _check("audit_file", given, str, "the path of a file")
        _check("grader", given, str, "module:function")
        share = given.get("audit", 0.0)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UsageError(f"audit is {share!r:.60}; it must be a share of requests, from 0 to 1, such as 0.01")
        if other := next((name for name in ("audit_file", "grader") if given.get(name) and not share), None):
            raise UsageError(f"{other} is given, and audit is 0, so nothing is audited; give audit, such as 0.01")
        return cls(**given)

    def passed_on(self, content: str, counters: str, engines: int) -> dict[str, Any]:
        """Returns the settings for the workers, as JSON holds them."""
        return asdict(replace(self, content=content, counters=counters, engines=engines))


def _check(name: str, given: Mapping[str, Any], kind: type, rule: str) -> None:
    value = given.get(name)
    if value is not None and type(value) is not kind:
        raise UsageError(f"{name} is {value!r:.60}; it must be {rule}")


EXACT = -1.0  # T of requests that are decoded exactly

_SWITCH, _THRESHOLD = "fsd", "fsd_threshold"


def requested_threshold(extra_args: Mapping[str, Any] | None, default: float) -> float:
    """Returns the T that a request is decoded at.

    Args:
        extra_args: the request's `vllm_xargs`, in Python `SamplingParams.extra_args`.
        default: the profile's T.

    Raises:
        UsageError: an option of the plugin is unknown, has another value than it may have, or contradicts another.
    """
    given = {name: value for name, value in (extra_args or {}).items() if str(name).startswith(_SWITCH)}
    if unknown := [name for name in given if name not in (_SWITCH, _THRESHOLD)]:
        raise UsageError(f"vllm_xargs has {unknown[0]!r:.60}; of fsd it may have {_SWITCH!r} and {_THRESHOLD!r}")
    switch = given.get(_SWITCH, "on")
    if switch not in ("on", "off"):
        raise UsageError(f"{_SWITCH} in vllm_xargs is {switch!r:.60}; it must be 'off' (decode exactly) or 'on'")
    if _THRESHOLD not in given:
        return EXACT if switch == "off" else default
    threshold = given[_THRESHOLD]
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not _finite(threshold):
        raise UsageError(
            f"{_THRESHOLD} in vllm_xargs is {threshold!r:.60}; it must be a finite number, the largest score to accept"
        )
    if switch == "off":
        raise UsageError(f"vllm_xargs has {_SWITCH} 'off' and {_THRESHOLD}; give one of them")
    return float(threshold)


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an int that no float can hold
        return False


def other_law(rule: str, name: str, greedy: bool) -> str | None:
    """Returns why vLLM's rejection sampling samples from another law than a rule of `RULES`; None: from the same.

    Where the score is of p and q alone, a token is drawn from q if it is at most T, else from p, by either rule.

    Args:
        name: of the score.
    """
    if greedy or rule == "fsd-sd" or not score_named(name).reads_token:
        return None
    return f"rule {rule!r} with score {name!r} samples from another law than vLLM, whose rule is 'fsd-sd'"


def hidden_noise(name: str, greedy: bool, noise_is_seen: bool = True) -> str | None:
    """Returns why a request cannot be decoded by a score: it needs the u of vLLM's exact test. None: it can.

    Args:
        name: of the score.
        greedy: whether the request is.
        noise_is_seen: whether the plugin sees the u that a sampled request's tokens are tested with.
    """
    score = score_named(name)
    if greedy and score.reads_noise:
        return f"score {name!r} reads the random number of the exact test, which vLLM draws in sampled requests alone"
    if not greedy and not noise_is_seen and (score.reads_noise or score.window):
        return (
            f"score {name!r} needs the random number of the exact test, which vLLM's V2 model runner draws in a kernel"
        )
    return None


CALIBRATION = "calibration"
"""The setting of the plugin that holds the first setting to measure, as JSON text, in place of a profile."""


class MeasuredSetting(Part):
    """What an engine decodes under while a calibration measures it."""

    task: str
    score: str
    sampling: SamplingInfo
    draft_length: Count
    """L, at most that which the engine was loaded for. 0: the target decodes alone."""
    threshold: Amount | None = None
    """T. null: decoding is exact."""
    policy: PolicyInfo | None = None
    """Scales T. null: it is constant."""
    traced: tuple[str, ...] = ()
    """Scores that are measured at every drafted token, with the other columns of traces. None: nothing is."""
    each_token: bool = False
    """Whether a step keeps one token alone, so that each token of a text is drafted for. L is 1."""


Followed: TypeAlias = "ThresholdProfile | MeasuredSetting"
"""What a model runner follows: a score with its threshold, for requests with this sampling."""
