"""Finished texts, put together from steps: their tokens and rounds, up to their ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fsd_calib.vllm_plugin.running_requests import RunningRequest
from fsd_calib.vllm_plugin.telemetry.steps import Step

Array = NDArray[Any]


@dataclass(frozen=True)
class Round:
    """What a step did for one request: drafted tokens verified, and tokens emitted."""

    begin: int  # tokens that earlier rounds emitted
    accepted: int  # drafted tokens that vLLM accepted
    emitted: tuple[int, ...]  # the accepted tokens and the target's own
    facts: Array  # (facts, n) of the n drafted tokens: `Step.facts`


@dataclass
class Text:
    """The rounds of a request. The token that came with its prompt, before any round, is not in them."""

    request: RunningRequest
    rounds: list[Round] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    length: int = 0  # tokens up to its end, a token that ends it included; known when it has finished

    @property
    def drafted(self) -> int:
        return sum(each.facts.shape[1] for each in self.rounds)

    @property
    def accepted(self) -> int:
        """Number of drafted tokens that were accepted and lie before the text's end."""
        return sum(max(0, min(each.accepted, self.length - each.begin)) for each in self.rounds)


class TextListener(Protocol):
    """Receives finished texts."""

    def finished(self, text: Text) -> None: ...


class Texts:
    """Puts texts together that are decoded as the profile says, and hands them on when they have finished.

    Args:
        listeners: receive them.
        tokenizer: vLLM's; finds stop strings, which vLLM looks for in its front end only.
    """

    def __init__(self, listeners: Sequence[TextListener], tokenizer: Any) -> None:
        self._listeners, self._tokenizer = listeners, tokenizer
        self._running: dict[str, Text] = {}

    def add(self, step: Step) -> None:
        begins = np.cumsum(step.layout.counts) - step.layout.counts
        for row, (name, request) in enumerate(zip(step.ids, step.requests, strict=True)):
            count, accepted = int(step.layout.counts[row]), int(step.accepted[row])
            if count and request.as_calibrated:
                text = self._running.setdefault(name, Text(request))
                emitted = tuple(step.sampled[row, : accepted + 1].tolist())
                facts = step.facts[:, begins[row] : begins[row] + count]
                text.rounds.append(Round(len(text.tokens), accepted, emitted, facts))
                text.tokens += emitted

    def finish(self, ids: Iterable[str]) -> None:
        for name in ids:
            if text := self._running.pop(name, None):
                text.length = self._length(text)
                for listener in self._listeners:
                    listener.finished(text)

    def _length(self, text: Text) -> int:
        """Number of tokens up to the first one that ends the text or completes a stop string."""
        ends = (place + 1 for place, token in enumerate(text.tokens) if token in text.request.ends)
        length = next(ends, len(text.tokens))
        if not text.request.stops:
            return length
        low, high = 0, length  # the shortest prefix that holds a stop string is longer than `low`, if there is one
        if not self._stopped(text, length):
            return length
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._stopped(text, middle) else (middle, high)
        return high

    def _stopped(self, text: Text, length: int) -> bool:
        decoded = self._tokenizer.decode(text.tokens[:length])
        return any(stop in decoded for stop in text.request.stops)
