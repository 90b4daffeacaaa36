"""What a calibration must find again to come to the same end: its name, its costs, the level of its attempt.

It lies in the output folder, one small file a run, and from the attempt on in the ledger too. Timings are measured once
a run, since they decide which configurations are tried; measured again they would differ, and with them the choice.
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

from fsd_calib.certification.attempt_ledger import attempt_level
from fsd_calib.certification.holdout import Holdout
from fsd_calib.certification.ledger_file import Run
from fsd_collectors.replay.cost import CostModel
from fsd_decoding.profile.parts import Amount, Natural, Part


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
    """`attempt`: the number that an attempt on the certification part would have had when the run began."""

    name: str
    started: AwareDatetime
    costs: tuple[Costs, ...]
    seconds_each: Amount
    attempt: Natural

    def level(self, confidence: float) -> float:
        """That the attempt was going to be tested at."""
        return attempt_level(confidence, self.attempt)

    @property
    def run(self) -> Run:
        """As the ledger remembers it."""
        return Run(self.name, self.model_dump_json())


def begun(folder: Path | None, name: str, holdout: Holdout, measure: Callable[[], Timings]) -> RunFacts:
    """Of the run `name`, as this folder has it, else as the ledger has it; where neither knows it, it begins now."""

    def found() -> RunFacts:
        return _remembered(holdout, name) or _measured(name, measure, holdout.next_attempt)

    if folder is None:
        return found()
    path = folder / f"run-{name}.json"
    with FileLock(path.with_suffix(".lock")):  # of several processes one measures for all
        return _read(path) or _kept(path, found())


def _measured(name: str, measure: Callable[[], Timings], attempt: int) -> RunFacts:
    started, (costs, seconds_each) = datetime.now(UTC), measure()
    return RunFacts(
        name=name, started=started, costs=tuple(Costs(**asdict(one)) for one in costs), seconds_each=seconds_each,
        attempt=attempt,
    )  # fmt: skip


def _remembered(holdout: Holdout, name: str) -> RunFacts | None:
    facts = holdout.facts_of(name)
    if facts is None:
        return None
    try:
        return RunFacts.model_validate_json(facts)
    except ValidationError as error:
        warnings.warn(
            f"the ledger's facts of the run {name} are of another version ({str(error).splitlines()[0]}); costs are "
            "measured anew, so that this may be another attempt",
            stacklevel=2,
        )
        return None


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
