"""The acceptance rates of finished texts, compared with those of the profile."""

from __future__ import annotations

from collections.abc import Callable

from fsd_calib.vllm_plugin.telemetry.counters import Counters
from fsd_calib.vllm_plugin.telemetry.texts import ServedText
from fsd_decoding.profile.following import Drift


class Acceptance:
    """Watches texts for drift.

    Args:
        drift: compares windows of texts with the profile.
        counters: receive the texts' rates, and that they drifted.
        warn: called with drift's message.
    """

    def __init__(self, drift: Drift, counters: Counters, warn: Callable[[str], None]) -> None:
        self._drift, self._counters, self._warn = drift, counters, warn

    def finished(self, text: ServedText) -> None:
        if not text.drafted or not text.whole:
            return
        self._counters.increase("texts", 1)
        self._counters.increase("accepted_share", text.accepted / text.drafted)
        if message := self._drift.add(text):
            self._counters.increase("drifted", 1)
            self._warn(message)
