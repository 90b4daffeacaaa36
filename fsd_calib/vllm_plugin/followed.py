"""What a model runner follows: a profile, or the setting that a calibration measures."""

from __future__ import annotations

from typing import Any, Protocol

from fsd_decoding.profile.parts import Amount, Count, Part, PolicyInfo, SamplingInfo

CALIBRATION = "calibration"
"""The setting of the plugin that holds the first setting to measure, as JSON text, in place of a profile."""


class MeasuredSetting(Part):
    """What an engine decodes under. Implements `Followed`."""

    task: str
    divergence: str
    sampling: SamplingInfo
    draft_length: Count
    """L, at most that which the engine was loaded for. 0: the target decodes alone."""
    threshold: Amount | None = None
    """T. null: decoding is exact."""
    policy: PolicyInfo | None = None
    """Scales T. null: it is constant."""
    traced: tuple[str, ...] = ()
    """Divergences of the traces along the target that are collected. None: none are; else texts are exact, L is 1."""


class Followed(Protocol):
    """A divergence with its threshold, for requests with this sampling."""

    @property
    def task(self) -> str: ...
    @property
    def divergence(self) -> str: ...
    @property
    def threshold(self) -> float | None:
        """T; None: decoding is exact."""
        ...

    @property
    def policy(self) -> PolicyInfo | None:
        """Scales T; None: it is constant."""
        ...

    @property
    def sampling(self) -> Any:
        """The fields of `Sampling`."""
        ...
