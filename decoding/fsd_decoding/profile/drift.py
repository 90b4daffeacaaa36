"""Drift: whether the texts a decoder makes still look like those that its profile was calibrated on.

Knows how many drafted tokens each finished text accepted, and what the profile saw of that. Touches no tensor: the
device does no work for it. It says nothing of accuracy, which live texts do not show; but where a draft is accepted
much more or less often than in calibration, the certificate is of other texts than these.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fsd_decoding.batch import Request
from fsd_decoding.engine.engine import Settings
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.profile.parts import AcceptanceInfo
from fsd_decoding.sampling import Sampling

WINDOW = 200  # texts
_STANDARD_ERRORS = 5.5
_FEWEST = 100  # texts a profile must have seen: fewer do not tell the deviation
_LEAST_DEVIATION = 0.02  # of shares: where calibration saw no spread, a single other text would be drift


class Finished(Protocol):
    """A text that is done: a `Result`, or an engine's row."""

    @property
    def drafted(self) -> int: ...
    @property
    def accepted(self) -> int: ...


def expected_range(seen: AcceptanceInfo) -> tuple[float, float]:
    """Where the mean accepted share of a window lies, 5.5 standard errors (of window and profile) to each side."""
    reach = _STANDARD_ERRORS * max(seen.deviation, _LEAST_DEVIATION) * math.sqrt(1 / WINDOW + 1 / seen.texts)
    return seen.mean - reach, seen.mean + reach


@dataclass
class Drift:
    """Warns once when a window of texts leaves the range.

    Windows of 200 texts follow one another without overlap, so a million texts are 5,000 tests. Where texts are
    independent and like those of the calibration, the chance of any warning among a million is at most 1.1 % for
    smooth laws of the share, from .5 ± .15 to .95 ± .05, and 9 % where a few texts stand apart (every
    twentieth at half the share of all others). A shift of one deviation is seen, with a chance above 99 %, by the
    end of the first window wholly behind it: within 400 texts. All this from profiles of 100 texts on; smaller
    ones are not watched.

    What is drafted beyond a text's end is not accepted, so texts cut much shorter than in calibration are unlike too.
    Only texts decoded as the profile says count: under its `rule`, `threshold` and what moves it, `draft_length`,
    `sampling` and `policy`.
    """

    seen: AcceptanceInfo
    task: str
    rule: str
    threshold: float | ThresholdPolicy
    draft_length: int
    sampling: Sampling
    policy: StopPolicy | None = None
    warned: bool = False
    _texts: int = 0
    _sum: float = 0.0

    def follows(self, settings: Settings, request: Request) -> bool:
        moves = self.threshold if isinstance(self.threshold, ThresholdPolicy) else None
        threshold = self.threshold if moves is None else moves.threshold
        now = settings.rule.name, settings.sampling, request.threshold, request.draft_length, _name(settings.adaptive)
        then = self.rule, self.sampling, threshold, self.draft_length, _name(moves)
        return now == then and _name(settings.policy) == _name(self.policy)

    def add(self, text: Finished) -> str | None:
        """What to warn of, where this text ended a window outside the range; never again after that."""
        if self.warned or self.seen.texts < _FEWEST or not text.drafted:
            return None
        self._texts, self._sum = self._texts + 1, self._sum + text.accepted / text.drafted
        if self._texts < WINDOW:
            return None
        mean, (low, high) = self._sum / self._texts, expected_range(self.seen)
        self._texts, self._sum = 0, 0.0
        self.warned = not low <= mean <= high
        return self._message(mean, low, high) if self.warned else None

    def _message(self, mean: float, low: float, high: float) -> str:
        return (
            f"the draft was accepted at {mean:.1%} over the last {WINDOW} texts, the profile of {self.task!r} lets "
            f"expect {max(low, 0.0):.1%} to {min(high, 1.0):.1%} (it saw {self.seen.mean:.1%} of {self.seen.texts} "
            "texts): these texts are unlike its own, and its certificate may not hold; calibrate on texts like these"
        )


def _name(policy: StopPolicy | ThresholdPolicy | None) -> object:
    """Equal for policies that do alike."""
    return policy if policy is None or policy.identity is None else policy.identity


def watch(
    drift: Drift | None,
    settings: Settings,
    requests: Iterable[Request],
    finished: Iterable[Finished],
    stacklevel: int,
) -> None:
    """Shows a profile's drift, if there is one, finished texts, in an order that does not depend on their lengths:
    as they finish, the short ones come first. Warns at `stacklevel`."""
    if drift is None:
        return
    for request, text in zip(requests, finished, strict=True):
        if drift.follows(settings, request) and (message := drift.add(text)) is not None:
            warnings.warn(message, stacklevel=stacklevel)
