"""Progress as a bar below a notebook's cell; once the work is done, how long it took stays there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from threading import Event, Lock, Thread

from fsd_common.progress.drawn import Drawn, Seen
from fsd_common.terminal import visible

_PAUSE = 0.5  # seconds between two drawings


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook; IPython on a terminal is none."""
    module = sys.modules.get("IPython")
    return module is not None and getattr(module.get_ipython(), "kernel", None) is not None


class NotebookBar(Drawn):
    """Shows the bar, the best result so far and the innermost step; notes stay as lines of text."""

    def __init__(self) -> None:
        super().__init__()
        self._inside, self._lock = 0, Lock()  # of two threads that show progress, either may end first
        self._end: Callable[[], None] | None = None

    def note(self, line: str) -> None:
        print(visible(" ".join(line.split())), flush=True)

    @contextmanager
    def _display(self) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._end = self._begin()
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0 and self._end is not None:
                    self._end()

    def _begin(self) -> Callable[[], None]:
        """Begins to draw, and returns what ends it; a notebook that has gone stops no work and hides no error."""
        from IPython.display import HTML, display  # a notebook has it

        handle, ended = display(HTML(self._html()), display_id=True), Event()

        def draw() -> None:
            while not ended.wait(_PAUSE):
                with suppress(Exception):
                    handle.update(HTML(self._html()))

        drawing = Thread(target=draw, daemon=True)
        drawing.start()

        def end() -> None:
            ended.set()
            drawing.join()
            with suppress(Exception):
                handle.update(HTML(""))

        return end

    def _html(self) -> str:
        seen = self.seen()
        return "" if seen is None else _block(seen)


def _block(seen: Seen) -> str:
    value = "" if seen.share is None else f' value="{seen.share:.3f}"'
    share = "" if seen.share is None else f"{seen.share:.0%}, "
    bar = f'<progress max="1"{value} style="width: 16em; vertical-align: middle"></progress>'
    left = f", {seen.left}" if seen.left else ""
    first = f"<strong>{_text(seen.title)}</strong> {bar} {share}{_text(seen.gone)} gone{_text(left)}"
    return "<br>".join([first, *(_text(line) for line in (seen.best, seen.step) if line)])


def _text(text: str) -> str:
    return escape(visible(text))
