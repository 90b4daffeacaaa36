"""Decoding requests in a `vllm.LLM`, so many at a time, and what each text took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from fsd_calib.engines.base import Begin
from fsd_common.errors import UsageError
from fsd_decoding.batch import Request

_numbers = count()  # of requests: vLLM and the plugin tell them apart by their names


class Finished(NamedTuple):
    """A finished request.

    Attributes:
        place: Its place among the requests.
        output: vLLM's `CompletionOutput`.
        facts: What the plugin counted; see `fsd_calib.vllm_plugin.calibrating`.
    """

    place: int
    output: Any
    facts: dict[str, Any]


class Requests:
    """Feeds an engine with requests, `rows` at a time.

    Args:
        llm: The engine, in which no other request is running.
        requests: With their prompts as token ids.
        parameters: `SamplingParams` of each.
    """

    def __init__(self, llm: Any, requests: Sequence[Request], parameters: Sequence[Any], rows: int) -> None:
        self._engine, self._requests, self._parameters, self._rows = llm.llm_engine, requests, parameters, rows
        self._running: dict[str, int] = {}

    def results(self, begin: Begin | None = None) -> Iterator[Finished]:
        """Yields the requests that are begun, by default all, as they finish; if the caller leaves, they are aborted.

        Raises:
            UsageError: The plugin has not seen a whole text, so that its rounds are not known.
        """
        places = (i for i in range(len(self._requests)) if begin is None or begin(i))
        with self.aborting():
            while self.fill(places) or self._running:
                yield from self.step()

    def fill(self, places: Iterator[int]) -> int:
        """Adds requests while there is room, and returns how many."""
        added = 0
        while len(self._running) < self._rows and (index := next(places, None)) is not None:
            name = f"fsd{next(_numbers)}"
            prompt = {"prompt_token_ids": list(self._requests[index].prompt)}
            self._engine.add_request(name, prompt, self._parameters[index])
            self._running[name] = index
            added += 1
        return added

    def step(self) -> list[Finished]:
        """Runs one step of the engine, and returns what finished in it."""
        ended = {output.request_id: output.outputs[0] for output in self._engine.step() if output.finished}
        if not ended:
            return []
        answers = self._engine.collective_rpc("fsd_take", args=(list(ended),))
        facts = {each["id"]: each for of_worker in answers for each in of_worker}
        if missing := [name for name in ended if name not in facts or not facts[name]["whole"]]:
            raise UsageError(f"the plugin has not seen all of request {missing[0]!r}; run the same command again")
        return [Finished(self._running.pop(name), output, facts[name]) for name, output in ended.items()]

    @contextmanager
    def aborting(self) -> Iterator[None]:
        """Aborts, at the end, what is still running."""
        try:
            yield
        finally:
            if self._running:
                self._engine.abort_request(list(self._running))
                self._running.clear()
