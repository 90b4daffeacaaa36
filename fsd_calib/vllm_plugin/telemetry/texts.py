"""Finished texts, put together from steps: their tokens and rounds, up to their ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from fsd_calib.vllm_plugin.running_requests import RunningRequest
from fsd_calib.vllm_plugin.telemetry.steps import Step

Array = NDArray[Any]
Reason = Literal["eos", "stop", "length", "abort"]


@dataclass(frozen=True)
class Round:
    """What a step did for one request: drafted tokens verified, and tokens emitted."""

    begin: int  # tokens of the text before it
    drafted: int  # tokens that it verified
    accepted: int  # of these, by vLLM
    facts: Array  # (facts, n) of those n whose logits were compared: `Step.facts`


@dataclass
class ServedText:
    """The tokens of a request, and the steps that brought them."""

    request: RunningRequest
    steps: list[Round] = field(default_factory=list)  # the first is the prompt's
    tokens: list[int] = field(default_factory=list)  # with those beyond its end, until it has finished
    whole: bool = True  # whether all tokens are known
    reason: Reason = "abort"  # why it ended; abort: none of the others, so the request was given up

    @property
    def rounds(self) -> list[Round]:
        """The steps in which drafted tokens were compared."""
        return [each for each in self.steps if each.facts.shape[1]]

    @property
    def drafted(self) -> int:
        return sum(each.facts.shape[1] for each in self.rounds)

    @property
    def accepted(self) -> int:
        """Number of drafted tokens that were accepted and lie before the text's end."""
        return sum(max(0, min(each.accepted, len(self.tokens) - each.begin)) for each in self.rounds)

    def add(self, begin: int, emitted: Sequence[int], accepted: int, facts: Array, drafted: int) -> None:
        """Adds what a step emitted from `begin` on. What is known from there on vLLM has discarded."""
        self.whole = self.whole and 0 <= begin <= len(self.tokens)
        del self.tokens[max(begin, 0) :]
        while self.steps and self.steps[-1].begin >= begin:
            self.steps.pop()
        self.steps.append(Round(begin, drafted, accepted, facts))
        self.tokens += emitted

    def end(self, length: int, reason: Reason) -> None:
        """Ends it behind `length` tokens. A step that begins there was under way before the end was known."""
        self.reason = reason
        del self.tokens[length:]
        self.steps = [each for each in self.steps if each.begin < length]


class Ends:
    """Finds where texts end.

    Args:
        tokenizer: vLLM's; finds stop strings, which vLLM looks for in its front end only.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def of(self, tokens: Sequence[int], request: RunningRequest, whole: bool = True) -> tuple[int, Reason]:
        """Returns the number of tokens up to a text's end, a token that ends it included, and what ends it there.

        Args:
            tokens: of the text, with those behind its end.
            whole: whether all tokens are known.
        """
        length = len(tokens)
        reason: Reason = "abort"
        if request.limit is not None and length >= request.limit:
            length, reason = request.limit, "length"
        own = next((place + 1 for place, token in enumerate(tokens[:length]) if token in request.ends), None)
        if own is not None:
            length, reason = own, "eos"
        if whole and request.stops and self._stopped(tokens[:length], request):
            return self._first_stopped(tokens[:length], request), "stop"
        return length, reason

    def _first_stopped(self, tokens: Sequence[int], request: RunningRequest) -> int:
        """Returns the length of the shortest prefix that holds a stop string, which the whole does."""
        low, high = 0, len(tokens)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._stopped(tokens[:middle], request) else (middle, high)
        return high

    def _stopped(self, tokens: Sequence[int], request: RunningRequest) -> bool:
        decoded = self._tokenizer.decode(tokens)
        return any(stop in decoded for stop in request.stops)


class TextListener(Protocol):
    """Receives finished texts."""

    def finished(self, text: ServedText) -> None: ...


class Texts:
    """Puts texts together that are decoded as the profile says, and hands them on when they have finished.

    Args:
        listeners: receive them.
        tokenizer: vLLM's.
    """

    def __init__(self, listeners: Sequence[TextListener], tokenizer: Any) -> None:
        self._listeners, self._ends = listeners, Ends(tokenizer)
        self._running: dict[str, ServedText] = {}

    def add(self, step: Step) -> None:
        counts, end = step.layout.counts.tolist(), 0
        of_rows = step.emits.tolist(), step.accepted.tolist(), step.begins.tolist(), step.drafted.tolist()
        rows = zip(step.ids, step.requests, counts, step.sampled.tolist(), *of_rows, strict=True)
        for name, request, count, sampled, emits, accepted, begin, drafted in rows:
            end += count
            if not request.as_calibrated or not emits or accepted < 0:
                continue
            text = self._running.get(name)
            if text is None or (text.request is not request and text.request != request):  # or a session went on
                text = self._running[name] = ServedText(request)
            facts = step.facts[:, end - count : end].copy()  # not to keep those of the whole batch
            text.add(begin - len(request.prompt), sampled[: accepted + 1], accepted, facts, drafted)

    @property
    def running(self) -> Sequence[str]:
        """Ids of the requests whose texts are not yet handed on."""
        return tuple(self._running)

    def finish(self, ids: Iterable[str]) -> None:
        for name in ids:
            if text := self._running.pop(name, None):
                text.end(*self._ends.of(text.tokens, text.request, text.whole))
                self._hand_on(text)

    def close(self) -> None:
        """Hands on the texts that have ended, though vLLM has not said so: it does at its next step."""
        for text in self._running.values():
            length, reason = self._ends.of(text.tokens, text.request, text.whole)
            if reason != "abort":
                text.end(length, reason)
                self._hand_on(text)
        self._running.clear()

    def _hand_on(self, text: ServedText) -> None:
        for listener in self._listeners:
            listener.finished(text)
