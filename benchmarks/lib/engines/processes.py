"""Engines in processes of their own, all on one core, which decode one at a time."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from lib.engines.work import Decoded, Engine, Work

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's work is this process's, whose CPU seconds are counted
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it stays on the core that it is started on
    "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip


class Settings(Protocol):
    """Builds an engine; it is sent to another process."""

    def build(self) -> Engine: ...


class Served:
    """An engine in another process, seen from here."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def decode(self, work: Work, way: str = "") -> Decoded:
        """Decodes work. Raises RuntimeError with what the process wrote if decoding failed."""
        self._pipe.send((work, way))
        decoded = self._answer()
        assert decoded is not None
        return decoded

    def wait(self) -> None:
        """Waits until the engine is built. Raises RuntimeError as `decode` does."""
        self._answer()

    def _answer(self) -> Decoded | None:
        answer: Decoded | str | None = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"an engine failed in its process:\n{answer}")
        return answer


def pin(core: int | None) -> int:
    """Leaves this process, and those that it starts, one core and one thread each; returns the core.

    Intel's OpenMP, which vLLM recommends on x86, is loaded by all engines where the environment has it.
    """
    chosen = max(os.sched_getaffinity(0)) if core is None else core
    os.sched_setaffinity(0, {chosen})
    os.environ.update(_ENVIRONMENT)
    if library := openmp():
        os.environ["LD_PRELOAD"] = str(library)
    return chosen


def openmp() -> Path | None:
    """Intel's OpenMP in this environment."""
    library = Path(sys.prefix, "lib", "libiomp5.so")
    return library if library.exists() else None


@contextmanager
def serve(settings: Mapping[str, Settings]) -> Iterator[dict[str, Served]]:
    """Starts an engine each, one after the other, and ends them at the end."""
    with ExitStack() as running:
        served: dict[str, Served] = {}
        for name, each in settings.items():
            print(f"starting {name}", flush=True)
            served[name] = running.enter_context(_started(each))
        yield served


@contextmanager
def _started(settings: Settings) -> Iterator[Served]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, settings), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process ends the pipe
    try:
        served = Served(ours)
        served.wait()
        yield served
    finally:
        ours.close()
        process.join(30)
        process.kill()


def _serve(pipe: Any, settings: Settings) -> None:
    """Builds an engine, says so by None, and answers work until the pipe ends; an error's traceback is an answer."""
    try:
        engine = settings.build()
        pipe.send(None)
        while True:
            pipe.send(engine.decode(*pipe.recv()))
    except EOFError:
        return
    except Exception:
        pipe.send(traceback.format_exc())
