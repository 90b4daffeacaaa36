"""Texts that the target finishes behind a given beginning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fsd_collectors.collection.along_target import Completion
from fsd_decoding.batch import FinishReason, Request
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import attach_finished
from fsd_decoding.text import StopStrings, cut_before


@dataclass(frozen=True)
class Begun:
    """The beginning of a text. `request` asks for the whole text; its key is that of the noise."""

    request: Request
    tokens: Sequence[int] = ()

    @property
    def rest(self) -> Request:
        """Asks for the rest: the same noise at the same places, and no more tokens than the whole may have."""
        return replace(
            self.request, prompt=[*self.request.prompt, *self.tokens], begun=len(self.tokens),
            max_new_tokens=self.request.max_new_tokens - len(self.tokens),
        )  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A finished text, as the engine's `Result` has it."""

    text: str
    tokens: Sequence[int]  # without EOS
    finish_reason: FinishReason
    rounds: int = 0  # of what was written behind its beginning, as the numbers that follow
    drafted: int = 0
    accepted: int = 0

    @property
    def emitted(self) -> int:
        """Number of tokens, an EOS included."""
        return len(self.tokens) + (self.finish_reason == "eos")

    def behind(self, begun: Begun) -> Completion:
        """What follows a beginning, which counts as part of the prompt."""
        given, ended = len(begun.tokens), self.finish_reason == "eos"
        of_eos = given > len(self.tokens)  # it is the EOS that was given
        return Completion(begun.request.key, begun.rest.prompt, self.tokens[given:], ended and not of_eos, given)


class Finisher:
    """Finishes texts with the target of a decoder.

    Args:
        decoder: decodes by a lossless rule.
        stop: strings that end a text, wherever they begin in it.
        batch_size: texts decoded at once.
    """

    def __init__(self, decoder: SpeculativeDecoder, stop: tuple[str, ...], batch_size: int) -> None:
        self._decoder, self._stop, self._batch_size = decoder, stop, batch_size
        self._stops = StopStrings(decoder.tokenizer, stop) if stop else None

    def finish(self, begun: Sequence[Begun]) -> list[Written]:
        """Returns the finished texts. UnfinishedError: see `SpeculativeDecoder.generate`."""
        ended = [self._ended(each) for each in begun]
        open_ones = [i for i, text in enumerate(ended) if text is None]
        written = dict(self._written([begun[i] for i in open_ones])) if open_ones else {}
        by_index = {i: written[place] for place, i in enumerate(open_ones)}
        return [by_index[i] if text is None else text for i, text in enumerate(ended)]

    def _ended(self, begun: Begun) -> Written | None:
        """The text where its beginning is all of it: that ends as the engine ends texts."""
        tokens = list(begun.tokens)
        if not tokens:
            return None
        if tokens[-1] in self._decoder.eos:
            return self._text(tokens[:-1], "eos")
        if self._stops is not None and self._stops.completed_at(tokens, 1) is not None:
            return self._text(tokens, "stop")
        return self._text(tokens, "length") if len(tokens) == begun.request.max_new_tokens else None

    def _written(self, begun: Sequence[Begun]) -> Iterator[tuple[int, Written]]:
        """Yields the index of each with its text, as they are finished."""
        requests = [replace(each.rest, index=place) for place, each in enumerate(begun)]
        settings = self._decoder.settings()
        if self._stops is not None:
            settings = replace(settings, stops=lambda request, new, count: self._stopped(begun, request, new, count))
        with attach_finished({}, min(self._batch_size, len(requests))):
            for row in self._decoder.engine(settings, requests, self._batch_size).run(requests):
                assert row.finish_reason is not None
                tokens = [*begun[row.request.index].tokens, *row.tokens]
                counts = row.rounds, row.drafted, row.accepted
                yield row.request.index, self._text(tokens, row.finish_reason, *counts)

    def _stopped(self, begun: Sequence[Begun], request: Request, new: list[int], count: int) -> int | None:
        """Where the new tokens of a request complete a stop string, which may begin before them."""
        assert self._stops is not None
        given = begun[request.index].tokens
        end = self._stops.completed_at([*given, *new], count)
        return None if end is None else end - len(given)

    def _text(self, tokens: Sequence[int], reason: FinishReason, *counts: int) -> Written:
        text = cut_before(self._decoder.tokenizer, tokens, self._stop if reason == "stop" else ())
        return Written(text, tokens, reason, *counts)
