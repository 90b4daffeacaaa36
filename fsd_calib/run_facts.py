"""What an interrupted calibration must find again to come to the same end: its name, its costs, its attempt.

Knows one small file a run, in the output folder. Timings are measured once a run, since they decide which
configurations are tried; measured again after a crash they would differ, and with them the choice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock
from pydantic import AwareDatetime, ValidationError

from fsd_collectors.replay.cost import CostModel
from fsd_decoding.profile_parts import Amount, Natural, Part


class Costs(Part):
    """Seconds with one draft, as `CostModel` has them."""

    draft_step: Amount
    verify: Amount
    position: Amount

    @property
    def model(self) -> CostModel:
        return CostModel(self.draft_step, self.verify, self.position)


class Timings(NamedTuple):
    """What was timed: the costs of a round where speed is asked for, and a decoding's share of a calibration batch."""

    costs: tuple[CostModel, ...]
    seconds_each: float


class RunFacts(Part):
    """`attempt`: the number that the attempt on the certification part had when the run began."""

    name: str
    started: AwareDatetime
    costs: tuple[Costs, ...]
    seconds_each: Amount
    attempt: Natural


def begun(folder: Path | None, name: str, measure: Callable[[], Timings], attempt: int) -> RunFacts:
    """Of the run `name` in this folder; where it is new there, it begins now."""
    if folder is None:
        return _measured(name, measure, attempt)
    path = folder / f"run-{name}.json"
    with FileLock(path.with_suffix(".lock")):  # of several processes one measures for all
        return _read(path) or _kept(path, _measured(name, measure, attempt))


def _measured(name: str, measure: Callable[[], Timings], attempt: int) -> RunFacts:
    started, (costs, seconds_each) = datetime.now(UTC), measure()
    return RunFacts(
        name=name, started=started, costs=tuple(Costs(**asdict(one)) for one in costs), seconds_each=seconds_each,
        attempt=attempt,
    )  # fmt: skip


def _kept(path: Path, facts: RunFacts) -> RunFacts:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(facts.model_dump_json(indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)
    return facts


def _read(path: Path) -> RunFacts | None:
    try:
        return RunFacts.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError) as error:
        aside = path.with_suffix(".damaged")
        path.replace(aside)
        warnings.warn(
            f"{str(path)!r} is damaged ({str(error).splitlines()[0]}); it is set aside as {aside.name}, and the run "
            "begins anew with what the cache holds",
            stacklevel=2,
        )
        return None
