"""A server at a value of its knob, or at its lossless reference: which requests are decoded so."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from fsd_calib.options.server import Body, ServerDescription, plain, with_value
from fsd_calib.servers.client import Client
from fsd_calib.servers.process import ServerProcess
from fsd_common.errors import UsageError
from fsd_common.progress.base import Progress


class Way(NamedTuple):
    """How requests are decoded under a setting: by which server they are, and the fields that they have."""

    client: Client
    fields: Body


class Served:
    """A described server, ready to decode. Use it as a context manager: it ends what it starts.

    Args:
        log: Where a server that is started here writes.
    """

    def __init__(self, server: ServerDescription, log: Path, progress: Progress) -> None:
        self.description, self._log, self._progress = server, log, progress
        self._set: float | None = None  # the value of a knob that holds for all requests
        self._touched = False  # a live one

    def __enter__(self) -> Self:
        server, knob = self.description, self.description.knob
        with ExitStack() as opened:
            self.client = opened.enter_context(Client(server))
            reference = server.reference
            other = None if reference is None else reference.url
            self.lossless = self.client
            if other is not None:
                self.lossless = opened.enter_context(Client(server, other, self.client.runner))
            self._process = None
            if knob is not None and knob.restart is not None:
                started = knob.restart.health, knob.restart.seconds
                self._process = ServerProcess(*started, self.client, self._log, self._progress)
                opened.callback(self._process.stop)
                self._turn_to(knob.ladder[0])
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        knob, reference = self.description.knob, self.description.reference
        with self._opened:
            if knob is not None and knob.live is not None and self._touched:  # others are served with it
                value = None if reference is None else reference.value
                try:
                    self._turn_to(knob.ladder[0] if value is None else value)
                except UsageError as left:
                    self._progress.note(f"the knob may still be at a lossy value: {left}")

    @property
    def is_switched(self) -> bool:
        """Whether another value holds for all requests, so that settings cannot be asked for side by side."""
        return self.description.knob is not None and self.description.knob.way != "request"

    @property
    def is_started(self) -> bool:
        """Whether the server is started for each value, which takes long."""
        return self._process is not None

    def at(self, value: float | None) -> Way:
        """Returns how requests are decoded at a value of the knob; None: losslessly. Sets the knob where it is one of
        the server's.

        Raises:
            UsageError: The server does not take the value.
        """
        knob, reference = self.description.knob, self.description.reference
        if value is None:
            assert reference is not None
            if reference.value is None:
                return Way(self.lossless, reference.request or {})
            value = reference.value
        assert knob is not None
        if knob.request is not None:
            return Way(self.client, with_value(knob.request, value))
        self._turn_to(value)
        return Way(self.client, {})

    def _turn_to(self, value: float) -> None:
        knob = self.description.knob
        assert knob is not None
        if self._process is not None and value == self._set:
            return
        self._set = None  # until it is known to hold
        if self._process is not None:
            assert knob.restart is not None
            self._process.start(with_value(knob.restart.command, value), f"{knob.name} = {plain(value)}")
        elif knob.live is not None:  # told each time: the server may have been started anew
            self._touched = True
            said = self.client.run(self.client.send(knob.live.url, with_value(knob.live.body, value)))
            told = [said.get("updated"), said.get("success")] if isinstance(said, dict) else said
            if isinstance(told, list) and False in told:  # SGLang's is a list, of one for each of its processes
                raise UsageError(f"the server did not take {knob.name} {plain(value)}: it says {str(said)[:200]}")
        self._set = value
