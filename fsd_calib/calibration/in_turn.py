"""One setting, certified by several engines in turn, as one frozen sequence."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.engines import check_vllm_installed
from fsd_calib.calibration.recertify import as_recorded
from fsd_calib.certification.engine_sequence import EngineSequence
from fsd_decoding.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile

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
        _of(calibration, engines, place, None)  # before the first runs: the last may be refused
    if "vllm" in engines:
        check_vllm_installed()
    for place in range(len(engines)):
        attempt = one(_of(calibration, engines, place, attempt))
        if attempt is None:
            return list(engines[place + 1 :])
        _free_memory()
    return []


def passed(profile: ThresholdProfile) -> bool:
    """Whether the test was passed, even where the setting is then not chosen, since it is hardly faster than `sd`."""
    found = profile.certificate
    bound = found.lower_bound if found.acc == "retention" else found.accuracy_lower_bound
    return found.certified or (bound is not None and found.wanted is not None and bound >= found.wanted)


def _check_certifies(calibration: Calibration, engines: Sequence[str]) -> None:
    named = " and ".join(engines)
    if calibration.fixed is None:
        raise UsageError(
            f"engines are {named}, which can certify one setting in turn, not search for it; calibrate with one of "
            "them, then certify its profile with both"
        )
    if calibration.goal.guarantee == "none":
        raise UsageError(f"engines are {named}, and --guarantee none certifies nothing; give one engine")


def _of(calibration: Calibration, engines: Sequence[str], place: int, attempt: int | None) -> Calibration:
    """The calibration by the engine at this place."""
    config, engine, sequence = calibration.config, engines[place], None
    arguments = config.engine_args if engine == "vllm" else None
    config = replace(config, engine=engine, engine_args=arguments)  # type: ignore[arg-type]
    if calibration.fixed is not None:
        config = as_recorded(calibration.fixed, config, calibration.target, calibration.draft)
    if len(engines) > 1:
        folder = config.path("out")
        config = replace(config, out=None if folder is None else folder / engine)
        sequence = EngineSequence(_frozen(calibration, engines), place, attempt)
    return replace(calibration, config=config, sequence=sequence)


def _frozen(calibration: Calibration, engines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Names and arguments of all engines."""
    given = json.dumps(dict(calibration.config.engine_args or {}), sort_keys=True)
    return tuple((name, given if name == "vllm" else "{}") for name in engines)


def _free_memory() -> None:
    """Gives back what the engine before held, which vLLM does not look for when it measures what is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
