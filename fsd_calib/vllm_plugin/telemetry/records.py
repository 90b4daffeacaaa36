"""Records of what is served: finished texts, written as traces beside serving."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, Full, Queue

from fsd_calib.vllm_plugin.telemetry.record_tables import Served, tables_of
from fsd_calib.vllm_plugin.telemetry.texts import Text
from fsd_collectors.manifest import Manifest
from fsd_collectors.store.writing import TraceWriter

_WAITING = 16  # portions that may wait for the disk
_PATIENCE = 30.0  # seconds that the end of serving waits for the disk


class Records:
    """Writes texts to a folder of traces until it has as many as its manifest says.

    A thread of its own owns the folder, so that no disk holds up serving. Whatever goes wrong there is logged once, and
    ends recording only. The folder of an earlier run with the same settings is continued.

    Args:
        folder: the folder.
        manifest: of the run.
        measured: names of the columns that follow the first three facts of a drafted token.
        tokenizer: decodes texts.
        log: receives what users should know.
    """

    def __init__(
        self, folder: str, manifest: Manifest, measured: Sequence[str], tokenizer: object, log: logging.Logger
    ) -> None:
        self._folder, self._manifest, self._measured = folder, manifest, tuple(measured)
        self._tokenizer, self._log = tokenizer, log
        self._held: list[Served] = []
        self._unusable = 0
        self._queue: Queue[list[Served] | None] = Queue(_WAITING)
        self._ended, self._ending = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fsd-records", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether texts are still recorded."""
        return not self._ended.is_set()

    def finished(self, text: Text) -> None:
        if not self.active:
            self._held.clear()
        elif not text.whole:
            self._unusable += 1
        else:
            self._held.append(Served.of(text, self._tokenizer))
            if len(self._held) == self._manifest.portion:
                self._send()

    def close(self) -> None:
        """Writes what is left, and waits for it."""
        if self.active and self._held:
            self._send()
        with suppress(Full):
            if self._thread.is_alive():
                self._queue.put(None, timeout=_PATIENCE)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._end(f"folder {self._folder!r} was not written within {_PATIENCE:.0f} s: its last texts are missing")
        if self._unusable:
            self._log.warning("fsd: %d texts were not recorded: vLLM did not show all of their tokens", self._unusable)
            self._unusable = 0

    def _send(self) -> None:
        portion, self._held = self._held, []
        try:
            self._queue.put_nowait(portion)
        except Full:
            self._end(
                f"folder {self._folder!r} is written slower than texts finish; it keeps what it has, choose one on a "
                "faster disk"
            )

    def _run(self) -> None:
        try:
            with TraceWriter(self._folder, self._manifest, '"records" folder') as writer:
                self._write(writer)
        except Exception as error:  # whatever it is, serving goes on
            self._end(str(error) or repr(error))
        self._ended.set()
        with suppress(Empty):
            while True:
                self._queue.get_nowait()

    def _write(self, writer: TraceWriter) -> None:
        wanted, folder = writer.manifest.task.problems, self._folder
        if writer.problems < wanted:
            self._log.info("fsd: recording texts to folder %r, which has %d of %d", folder, writer.problems, wanted)
        while writer.problems < wanted:
            texts = self._queue.get()
            if texts is None:
                return
            first = writer.problems
            writer.write(writer.finished, tables_of(writer.manifest, self._measured, texts[: wanted - first], first))
        self._log.info("fsd: folder %r has all %d texts; nothing more is recorded", folder, wanted)

    def _end(self, reason: str) -> None:
        """Ends recording because of a failure, of which the first is logged."""
        with self._ending:
            if self.active:
                self._ended.set()
                self._log.warning("fsd: nothing more is recorded, serving goes on: %s", reason)
