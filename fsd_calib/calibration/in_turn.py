"""One setting, certified by several engines in turn, as one frozen sequence."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fsd_calib.calibration.api import Calibration
from fsd_calib.certification.engine_sequence import EngineSequence
from fsd_decoding.errors import UsageError

One = Callable[[Calibration], int | None]
"""Plans or runs the calibration of one engine; returns the number of its attempt, None where the sequence ends."""


def in_turn(calibration: Calibration, engines: Sequence[str], one: One) -> list[str]:
    """Hands out the calibrations of all engines, one after the other; returns the engines that were not reached.

    A single engine's is `calibration` itself. Of several each has the folder of its name in the output folder.

    Args:
        calibration: Has the engine's arguments where vLLM is among the engines.

    Raises:
        UsageError: There are several engines, and a setting has still to be searched for.
    """
    if len(engines) == 1:
        one(calibration)
        return []
    if calibration.fixed is None:
        raise UsageError(
            f"engines are {' and '.join(engines)}, which can certify one setting in turn, not search for it; calibrate "
            "with one of them, then certify its profile with both"
        )
    attempt: int | None = None
    for place in range(len(engines)):
        _of(calibration, engines, place, None)  # before the first runs: the last may be refused
    for place in range(len(engines)):
        attempt = one(_of(calibration, engines, place, attempt))
        if attempt is None:
            return list(engines[place + 1 :])
        _free_memory()
    return []


def _of(calibration: Calibration, engines: Sequence[str], place: int, attempt: int | None) -> Calibration:
    """The calibration by the engine at this place."""
    config, folder, engine = calibration.config, calibration.config.path("out"), engines[place]
    arguments = json.dumps(dict(config.engine_args or {}), sort_keys=True)
    frozen = tuple((name, arguments if name == "vllm" else "{}") for name in engines)
    changed = replace(
        config, engine=engine, engine_args=config.engine_args if engine == "vllm" else None,  # type: ignore[arg-type]
        out=None if folder is None else folder / engine,
    )  # fmt: skip
    return replace(calibration, config=changed, sequence=EngineSequence(frozen, place, attempt))


def _free_memory() -> None:
    """Gives back what the engine before held, which vLLM does not look for when it measures what is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
