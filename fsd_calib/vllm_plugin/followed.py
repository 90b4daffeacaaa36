"""What a model runner follows: a profile, or the setting that a calibration measures."""

from __future__ import annotations

from typing import Any, Protocol

from fsd_decoding.profile.parts import PolicyInfo


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
