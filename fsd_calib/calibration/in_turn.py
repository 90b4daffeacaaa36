"""One setting, certified by several engines in turn, as one frozen sequence."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.engines import check_vllm_installed
from fsd_calib.calibration.output_folder import check_own
from fsd_calib.calibration.recertify import as_recorded
from fsd_calib.certification.holdout import EngineSequence
from fsd_calib.options.run_config import RunConfig
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError

One = Callable[[Calibration], int | None]
"""Plans or runs the calibration of one engine; returns the number of its attempt, None where the sequence ends."""


def in_turn(calibration: Calibration, engines: Sequence[str], one: One) -> list[str]:
    """Hands out the calibrations of all engines, one after the other; returns the engines that were not reached.

    Of several each has the folder of its name in the output folder.

    Args:
        calibration: Has the engine's arguments where vLLM is among the engines.

    Raises:
        UsageError: There are several engines, and nothing is certified, or its setting has still to be searched for; or
            an engine cannot do what is asked of it.
    """
    if len(engines) > 1:
        _check_certifies(calibration, engines)
    attempt: int | None = None
    for place in range(len(engines)):
        one_of_them = _of(calibration, engines, place, None)  # before the first runs: the last may be refused
        if (out := one_of_them.config.path("out")) is not None:
            check_own(out, one_of_them)
    if "vllm" in engines:
        check_vllm_installed()
    for place in range(len(engines)):
        attempt = one(_of(calibration, engines, place, attempt))
        if attempt is None:
            return list(engines[place + 1 :])
        _free_memory()
    return []


def _check_certifies(calibration: Calibration, engines: Sequence[str]) -> None:
    both = " and ".join(engines)
    if calibration.fixed is None:
        raise UsageError(
            f"engines are {both}, which can certify one setting in turn, not search for it; calibrate with one of "
            "them, then certify its profile with both"
        )
    if calibration.goal.explore:
        raise UsageError(f"engines are {both}, and {named('explore')} certifies nothing; give one engine")


def _of(calibration: Calibration, engines: Sequence[str], place: int, attempt: int | None) -> Calibration:
    """The calibration by the engine at this place."""
    config, sequence = _config(calibration, engines[place]), None
    if len(engines) > 1:
        folder = config.path("out")
        config = config.changed(out=None if folder is None else folder / engines[place])
        sequence = EngineSequence(_frozen(calibration, engines), place, attempt)
    return replace(calibration, config=config, sequence=sequence)


def _config(calibration: Calibration, engine: str) -> RunConfig:
    """How an engine runs; of a profile's setting also as the profile recorded it."""
    config = calibration.config
    arguments = config.engine_args if engine == "vllm" else None
    config = config.changed(engine=engine, engine_args=arguments)
    return config if calibration.fixed is None else as_recorded(calibration.fixed, config, calibration.models)


def _frozen(calibration: Calibration, engines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Names of all engines, and the arguments that their texts depend on."""
    from fsd_calib.engines.vllm.loading import EngineArguments

    arguments = [EngineArguments.of(_config(calibration, name).engine_args or {}).decisive for name in engines]
    return tuple((name, json.dumps(given, sort_keys=True)) for name, given in zip(engines, arguments, strict=True))


def _free_memory() -> None:
    """Gives back what the engine before held, which vLLM does not look for when it measures what is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
