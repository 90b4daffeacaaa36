"""Facts of a run that a resumed calibration needs to reach the same result: name, costs, attempt number and rival.

They are kept in a small file per run in the output folder, with a digest, and, once an attempt is made, in the ledger
too. A damaged file is set aside, which costs the time of measuring and searching again, unless the ledger has the
facts. Costs are measured once per run, since they decide which settings are tried: measured again they would
differ, and the choice with them. For the same reason the lossless rival is recorded by the first process
that times it.
The pace of decoding, which only the plan rests on, is of a number of processes; with another number it is measured
again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock
from pydantic import AwareDatetime, ValidationError

from fsd_calib.certification.attempt_ledger import Run
from fsd_calib.certification.holdout import Holdout
from fsd_collectors.replay.cost import CostModel
from fsd_common.files import atomic_write, naming, set_aside
from fsd_common.progress.base import Progress, Silent, Waiting
from fsd_common.strict_json import parse
from fsd_decoding.profile.fields import Rounds
from fsd_decoding.profile.parts import Amount, Natural, Part
from fsd_decoding.profile.setting import Setting

_LARGEST = 1 << 20  # bytes of a file


@dataclass(frozen=True)
class Pace:
    """Mean seconds of a decoding in the calibration's own batches, by all processes that decode together.

    Attributes:
        lossless, target: under the lossless rule, and of the target alone.
        workers: how many processes.
        capture: seconds of making the graph of one shape of rounds, which each process makes for itself.
    """

    lossless: Amount
    target: Amount
    workers: Natural = 1
    capture: Amount = 0.0


@dataclass(frozen=True)
class Timings:
    """Timings that a run takes at its beginning.

    Attributes:
        costs: of a round at --serve-batch, one cost model per draft.
        compile: how rounds are called, in these timings and in the whole run.
        prefill: seconds of a prompt at --serve-batch; 0: not known.
    """

    costs: tuple[CostModel, ...]
    pace: Pace
    compile: Rounds = "off"
    prefill: Amount = 0.0


class RunFacts(Part):
    """What is recorded of a run.

    Attributes:
        asked: a hash of what was asked for, whatever the problems.
        attempt: the number that an attempt on the certification part would have had when the run began.
        rival: the lossless setting that everything is compared with; None: none has been timed.
        extends: the place in the ledger of the attempt that it goes on from; None: it searches.
        design: certification problems and seeds of each, where a plan chose them.
    """

    name: str
    asked: str
    started: AwareDatetime
    attempt: Natural
    timings: Timings
    rival: Setting | None = None
    extends: Natural | None = None
    design: tuple[Natural, Natural] | None = None

    def pace_of(self, workers: int) -> Pace | None:
        """Returns the pace of so many processes; None: it is not recorded."""
        return self.timings.pace if self.timings.pace.workers == workers else None

    @property
    def run(self) -> Run:
        """The run as the ledger records it."""
        return Run(self.name, self.model_dump_json())


def begin_or_resume(
    folder: Path | None, name: str, asked: str, holdout: Holdout, measure: Callable[[], Timings],
    progress: Progress | None = None, extends: int | None = None, design: tuple[int, int] | None = None,
) -> RunFacts:  # fmt: skip
    """Returns the facts of the run `name`: from the folder, else from the ledger, else of a run that begins now.

    Args:
        folder: the output folder; None: nothing is written.
        asked, extends, design: see `RunFacts`.
        measure: takes the timings of a new run.
        progress: receives a note where another process takes them for long.
    """

    def resume_or_begin() -> RunFacts:
        if (recorded := _in_ledger(holdout, name)) is not None:
            return recorded
        started, timings = datetime.now(UTC), measure()
        return RunFacts(
            name=name, asked=asked, started=started, attempt=holdout.next_attempt, timings=timings, extends=extends,
            design=design,
        )  # fmt: skip

    if folder is None:
        return resume_or_begin()
    path = _path(folder, name)
    with _locked(path, progress):
        return _read(path, name) or _write(path, resume_or_begin())


def forget(folder: Path, name: str) -> None:
    """Removes the facts of a run that ends before its long work, so that the next one measures its costs anew."""
    _path(folder, name).unlink(missing_ok=True)


def first_rival(
    folder: Path | None, facts: RunFacts, choose: Callable[[], Setting], progress: Progress | None = None
) -> Setting:
    """Returns the lossless setting that the first process of a run chose; `choose` is called where there is none."""
    if facts.rival is not None or folder is None:
        return facts.rival or choose()
    path, own = _path(folder, facts.name), choose()  # others need not wait for the clock
    with _locked(path, progress):
        found = _read(path, facts.name) or facts
        written = found if found.rival is not None else _write(path, found.model_copy(update={"rival": own}))
    return written.rival or own


def asked_of(facts: str) -> str | None:
    """Returns what was asked for by the run of which the ledger has these facts; None: they are of another version."""
    try:
        return RunFacts.model_validate_json(facts).asked
    except ValidationError:
        return None


def known_facts(folder: Path | None, name: str, holdout: Holdout, progress: Progress | None = None) -> RunFacts | None:
    """Returns the facts of the run `name`; None: it has not begun. See `begin_or_resume`."""
    facts = None
    if folder is not None and (path := _path(folder, name)).exists():
        with _locked(path, progress):
            facts = _read(path, name)
    return facts or _in_ledger(holdout, name)


def _path(folder: Path, name: str) -> Path:
    return folder / f"run-{name}.json"


@contextmanager
def _locked(path: Path, progress: Progress | None) -> Iterator[None]:
    waiting = Waiting(progress or Silent(), "measures the costs of this run")  # of several, one does it for all
    with naming("the run's file", path), waiting.holding(FileLock(path.with_suffix(".lock"))):
        yield


def _in_ledger(holdout: Holdout, name: str) -> RunFacts | None:
    facts = holdout.facts_of(name)
    if facts is None:
        return None
    try:
        return RunFacts.model_validate_json(facts)
    except ValidationError as error:
        warnings.warn(
            f"the ledger's facts of the run {name} are of another version ({str(error).splitlines()[0]}); costs are "
            "measured again, so this may count as another attempt",
            stacklevel=2,
        )
        return None


def _write(path: Path, facts: RunFacts) -> RunFacts:
    content = {**facts.model_dump(mode="json"), "digest": _digest(facts)}
    with atomic_write(path) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")
    return facts


def _read(path: Path, name: str) -> RunFacts | None:
    """Returns the facts in a file; None where there is none, or where it was damaged and is set aside."""
    if not path.exists():
        return None
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:  # reading it may never end
            raise ValueError(f"it is not a regular file of at most {_LARGEST:,} bytes")
        return _verified(path.read_text(encoding="utf-8"), name)
    except ValueError as error:
        aside = set_aside(path)
        warnings.warn(
            f"{str(path)!r} is damaged ({str(error).splitlines()[0]}); it is set aside as {aside.name}, and the run "
            "starts again with what the ledger and the cache hold",
            stacklevel=2,
        )
        return None


def _verified(text: str, name: str) -> RunFacts:
    """Returns the facts. ValueError: they are not what was written of this run."""
    content = parse(text)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    digest = content.pop("digest", None)
    facts = RunFacts.model_validate(content)
    if digest != _digest(facts):
        raise ValueError("its digest is not that of its values" if digest else "it has no digest")
    if facts.name != name:
        raise ValueError(f"it is of the run {facts.name:.40}")
    return facts


def _digest(facts: RunFacts) -> str:
    return hashlib.blake2b(facts.model_dump_json().encode(), digest_size=16).hexdigest()
