"""The parts that `gpu.py` measures, in order, and how one of them is run: step by step, within a time."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from lib.gpu.plan import Plan

TOTAL = 480.0  # seconds of all parts together
_FRAMES = 4  # of an error that is recorded


@dataclass(frozen=True)
class Part:
    """A measurement in steps.

    Args:
        name: the generator function of this name yields what each step has measured.
        module: its module beside this one, imported when the part begins: what it cannot import fails it alone.
        seconds: after which no further step begins. A step is not interrupted, because work on a GPU cannot be.
    """

    name: str
    module: str
    seconds: float

    def measure(self, plan: Plan) -> Generator[Any, None, None]:
        """Yields what each step has measured."""
        measure: Callable[[Plan], Iterator[Any]] = getattr(import_module(f"lib.gpu.{self.module}"), self.name)
        yield from measure(plan)


PARTS = (
    Part("attention", "attention", 20),
    Part("kernels", "kernels", 40),
    Part("equality", "equality", 60),
    Part("rounds", "rounds", 150),
    Part("growth", "rounds", 40),
    Part("refills", "rounds", 60),
    Part("samplings", "rounds", 40),
    Part("failure", "failure", 10),
    Part("memory", "memory", 20),
)
OPTIONAL = (Part("waiting", "optional", 20), Part("training", "optional", 120))


def progress(part: Part, plan: Plan, left: float = math.inf) -> Iterator[dict[str, Any]]:
    """Runs a part, and yields its record after every step and at its end.

    Args:
        left: seconds that remain for all parts.

    Yields:
        The same record each time: `rows`, what the steps have measured; `seconds`; `capped`, whether its time was over
        before it said that there are no more steps; `failed`, None or the error that ended it.
    """
    record: dict[str, Any] = {"rows": [], "seconds": 0.0, "capped": False, "failed": None}
    most = min(part.seconds, left) if plan.capped else math.inf
    began = time.perf_counter()
    with closing(part.measure(plan)) as steps:
        while record["seconds"] < most:
            try:
                record["rows"].append(next(steps))
            except StopIteration:
                break
            except Exception as error:  # whatever it is, the other parts are measured
                record["failed"] = _told(error)
                break
            finally:
                record["seconds"] = time.perf_counter() - began
            yield record
        else:
            record["capped"] = True
    yield record


def _told(error: Exception) -> dict[str, Any]:
    """An error's type, message and last frames."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return {"type": type(error).__name__, "message": str(error), "frames": places}
