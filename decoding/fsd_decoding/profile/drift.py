"""Drift: a warning when acceptance rates of decoded texts leave the range that the profile's calibration saw.

Acceptance says nothing of accuracy, which cannot be seen on live texts. But if a draft is accepted much more or less
often than in calibration, these texts are unlike those of the certificate. Only numbers that the host has already are
used, so the device does no work for it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fsd_decoding.batch import Request
from fsd_decoding.engine.settings import Settings
from fsd_decoding.profile.coverage import Coverage, DecodingSetting
from fsd_decoding.profile.parts import AcceptanceInfo

WINDOW = 200  # texts
_STANDARD_ERRORS = 5.5
_MIN_TEXTS = 100  # texts of a profile: with fewer, their standard deviation is too uncertain
_MIN_DEVIATION = 0.02  # without spread in calibration, a single different text would count as drift


class Finished(Protocol):
    """A finished text: a `Result`, or a row of the engine."""

    @property
    def drafted(self) -> int: ...
    @property
    def accepted(self) -> int: ...


def expected_range(calibrated: AcceptanceInfo) -> tuple[float, float]:
    """Returns the range of a window's mean acceptance rate: ± 5.5 standard errors (of window and profile)."""
    deviation = max(calibrated.deviation, _MIN_DEVIATION)
    reach = _STANDARD_ERRORS * deviation * math.sqrt(1 / WINDOW + 1 / calibrated.texts)
    return calibrated.mean - reach, calibrated.mean + reach


@dataclass
class Drift:
    """Warns once when the mean acceptance rate of a window of texts leaves the expected range.

    Windows of 200 texts follow one another without overlap, so a million texts are 5,000 tests. If texts are
    independent and like those of the calibration, the chance of any warning among a million is at most 1.1 % for
    smooth distributions of the rate, from .5 ± .15 to .95 ± .05, and 9 % if a few texts stand apart (every twentieth
    at half the rate of all others). A shift by one standard deviation is detected, with a chance above 99 %, by the end
    of the first window that lies wholly after it: within 400 texts. All this holds for profiles of 100 texts or more;
    smaller ones are not watched.

    Tokens drafted beyond a text's end are not accepted, so texts cut much shorter than in calibration differ, too.
    Only texts decoded as the profile says (`coverage`) count.
    """

    calibrated: AcceptanceInfo
    coverage: Coverage
    warned: bool = False
    _texts: int = 0
    _sum: float = 0.0

    def applies_to(self, settings: Settings, request: Request) -> bool:
        """Returns whether a text is decoded as the profile says."""
        return self.coverage.covers(DecodingSetting.of(settings, request.threshold, request.draft_length))

    def add(self, text: Finished) -> str | None:
        """Returns a warning if this text completes a window outside the range, and None ever after."""
        if self.warned or self.calibrated.texts < _MIN_TEXTS or not text.drafted:
            return None
        self._texts, self._sum = self._texts + 1, self._sum + text.accepted / text.drafted
        if self._texts < WINDOW:
            return None
        mean, (low, high) = self._sum / self._texts, expected_range(self.calibrated)
        self._texts, self._sum = 0, 0.0
        self.warned = not low <= mean <= high
        return self._message(mean, low, high) if self.warned else None

    def _message(self, mean: float, low: float, high: float) -> str:
        task = self.coverage.task
        return (
            f"the acceptance rate was {mean:.1%} over the last {WINDOW} texts, but the profile of {task!r} "
            f"expects {max(low, 0.0):.1%} to {min(high, 1.0):.1%} (it measured {self.calibrated.mean:.1%} on "
            f"{self.calibrated.texts} texts): these texts differ from those of the calibration, so its certificate may "
            "not hold; calibrate on texts like these"
        )


def watch(
    drift: Drift | None,
    settings: Settings,
    requests: Iterable[Request],
    finished: Iterable[Finished],
    stacklevel: int,
) -> None:
    """Adds finished texts to a profile's drift, if there is one, and warns at `stacklevel`.

    `finished` must be in an order that does not depend on lengths, such as that of the requests: in the order in which
    texts finish, the short ones come first.
    """
    if drift is None:
        return
    for request, text in zip(requests, finished, strict=True):
        if drift.applies_to(settings, request) and (message := drift.add(text)) is not None:
            warnings.warn(message, stacklevel=stacklevel)
