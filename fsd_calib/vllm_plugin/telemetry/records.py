"""Records of what is served: finished texts, written as traces beside serving."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import Any

from fsd_calib.vllm_plugin.telemetry.record_tables import Served, tables_of
from fsd_calib.vllm_plugin.telemetry.texts import ServedText
from fsd_collectors.manifest import Manifest
from fsd_collectors.store.writing import TraceWriter

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
        waiting: number of texts that may wait for the disk.
        longest: seconds after which a text is written, in a smaller portion if need be: vLLM may kill its workers.
    """

    def __init__(
        self, folder: str, manifest: Manifest, measured: Sequence[str], tokenizer: Any, log: logging.Logger,
        waiting: int = 800, longest: float = 30.0,
    ) -> None:  # fmt: skip
        self._folder, self._manifest, self._measured = folder, manifest, tuple(measured)
        self._tokenizer, self._log, self._longest = tokenizer, log, longest
        self._unusable = 0
        self._queue: Queue[Served | None] = Queue(waiting)  # None: there are no more
        self._ended, self._ending = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fsd-records", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether texts are still recorded."""
        return not self._ended.is_set()

    def finished(self, text: ServedText) -> None:
        if not self.active:
            return
        if not text.whole:
            self._unusable += 1
            return
        try:
            self._queue.put_nowait(Served.of(text, self._tokenizer))
        except Full:
            self._end(
                f"folder {self._folder!r} is written slower than texts finish; it keeps what it has, choose one on a "
                "faster disk"
            )

    def close(self) -> None:
        """Writes what is left, and waits for it."""
        with suppress(Full):
            if self._thread.is_alive():
                self._queue.put(None, timeout=_PATIENCE)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._end(f"folder {self._folder!r} was not written within {_PATIENCE:.0f} s: its last texts are missing")
        if self._unusable:
            self._log.warning("fsd: %d texts were not recorded: vLLM did not show all of their tokens", self._unusable)
            self._unusable = 0

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
        portions = self._portions(writer.manifest.portion)
        while writer.problems < wanted:
            first, texts = writer.problems, next(portions, None)
            if texts is None:
                return
            writer.write(writer.finished, tables_of(writer.manifest, self._measured, texts[: wanted - first], first))
        self._log.info("fsd: folder %r has all %d texts; nothing more is recorded", folder, wanted)

    def _portions(self, most: int) -> Iterator[list[Served]]:
        """Yields `most` texts at a time, or as many as there are when one has waited for long, or at the end."""
        while True:
            text, deadline = self._queue.get(), time.monotonic() + self._longest
            texts: list[Served] = []
            while text is not None:
                texts.append(text)
                left = deadline - time.monotonic()
                if len(texts) == most or left <= 0:
                    break
                try:
                    text = self._queue.get(timeout=left)
                except Empty:
                    break
            if texts:
                yield texts
            if text is None:
                return

    def _end(self, reason: str) -> None:
        """Ends recording because of a failure, of which the first is logged."""
        with self._ending:
            if self.active:
                self._ended.set()
                self._log.warning("fsd: nothing more is recorded, serving goes on: %s", reason)
