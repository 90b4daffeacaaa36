"""The three commands that write much, at a small size: what they saved, and how two of their results differ.

The folders of a job are `out`, `cache` and `state` within one folder.
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from fsd_calib import ThresholdProfile, load_traces
from fsd_collectors.store.verifying import verify
from fsd_common.errors import UsageError
from fsd_decoding.profile.fields import FOLLOWED
from fsd_predictors.predictor import Predictor
from lib.attacks.cases import Stage, Verdict
from lib.attacks.commands import Ended, run

_TIMED = {"created", "speed", "effort", "digest"}  # what differs from run to run by nature, and the digest of it
_LOGS = ("-wal", "-journal")
_ROUNDING = 1e-4  # of D, by what else is in a batch: at most 1.2e-4 sqrt(D) for js (fsd_calib/engines/configuration.py)
_ALONE = ("--device", "cpu", "--workers", "1")  # a kill hits the process that decodes
PROBLEMS, _COLLECTED = 80, 160
_FEW = 16  # problems of a quick run's collection
_ENDED = "ended"


@dataclass(frozen=True)
class Job:
    """A command that writes much, with its folders `out`, `cache` and `state` in one folder."""

    folder: Path
    name: ClassVar[str]  # as `commands.run` takes it

    def arguments(self) -> list[str | Path]:
        raise NotImplementedError

    def prepare(self, reference: Any) -> None:
        """Makes the job comparable with an undisturbed one."""

    def saved(self) -> Counter[Any]:
        """Returns what it saved so far, with the number of times that it did."""
        return Counter()

    def faults(self, reference: Any) -> Iterator[str]:
        """Yields how the finished job differs from an undisturbed one, timings and dates excepted."""
        raise NotImplementedError

    def check(self) -> tuple[str, list[str | Path]] | None:
        """The command that checks what it left."""
        return None

    @property
    def took(self) -> float | None:
        """The seconds that it took, if `finish` has let it come to its end."""
        path = self.folder / _ENDED
        return float(path.read_text()) if path.exists() else None

    def finish(self) -> Self:
        """Runs the job to its end, unless it has been. Raises RuntimeError if it fails."""
        if self.took is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            ended = run(self.name, self.arguments())
            if ended.code or ended.complaint():
                raise RuntimeError(f"fsd-{self.name} ended with {ended.code}: {ended.err[-2000:]}")
            (self.folder / _ENDED).write_text(str(ended.seconds))
        return self


@dataclass(frozen=True)
class Calibration(Job):
    """`fsd-calibrate` on the bundled pair."""

    name = "calibrate"

    def arguments(self) -> list[str | Path]:
        goal = ["--task", "arithmetic", *_ALONE, "--min-acc", "0.8", "--limit", str(PROBLEMS), "--timing", "none"]
        folders = [part for name in ("out", "cache", "state") for part in (f"--{name}", self.folder / name)]
        return [*goal, "--score", "js", "--draft-length", "10", *folders]

    @property
    def profile(self) -> Path:
        return self.folder / "out" / "profile.json"

    def facts(self) -> list[Path]:
        return sorted((self.folder / "out").glob("run-*.json"))

    def prepare(self, reference: Calibration) -> None:
        """Copies the costs of the undisturbed run: they decide what the search tries."""
        (self.folder / "out").mkdir(parents=True, exist_ok=True)
        for path in reference.facts():
            shutil.copy(path, self.folder / "out")

    def saved(self) -> Counter[Any]:
        query = "SELECT hex(key), problem, hex(prompt), threshold, lo, hi, text, rounds FROM decodings"
        return Counter(_rows(self.folder / "cache" / "decodings.sqlite", query))

    def check(self) -> tuple[str, list[str | Path]]:
        return "profile", ["validate", self.profile]

    def faults(self, reference: Calibration) -> Iterator[str]:
        yield from self.other_results(reference)
        yield from self._other_decodings(reference)
        for traces in sorted((self.folder / "cache" / "traces").glob("*/manifest.json")):
            yield from verify(traces.parent)

    def _other_decodings(self, reference: Calibration) -> Iterator[str]:
        """Yields what was decoded twice, or otherwise than in an undisturbed run."""
        mine, theirs = self._intervals(), reference._intervals()
        if again := self.saved().total() - len(mine):
            yield f"{again} results were decoded again"
        for what, rows in (("more", mine.keys() - theirs.keys()), ("fewer", theirs.keys() - mine.keys())):
            if rows:
                yield f"{len(rows)} results {what} were decoded, such as {next(iter(rows))!s:.300}"
        ends = [(end, other) for row in mine.keys() & theirs for end, other in zip(mine[row], theirs[row], strict=True)]
        if moved := [pair for pair in ends if not math.isclose(*pair, rel_tol=0, abs_tol=_ROUNDING)]:
            yield f"{len(moved)} ends of intervals differ, such as {moved[0]}"

    def _intervals(self) -> dict[Any, tuple[float, float]]:
        """The interval of T for which each result holds, by the columns that rounding does not change."""
        return {(*row[:4], *row[6:]): row[4:6] for row in self.saved()}

    def other_results(self, reference: Calibration) -> Iterator[str]:
        """Yields how profile and ledger differ from those of an undisturbed run."""
        yield from different(_content(reference.profile), _content(self.profile))
        for table in ("attempts", "tuned"):
            mine, theirs = (_ledger(job.folder / "state" / "ledger.sqlite", table) for job in (self, reference))
            if mine != theirs:
                yield f"the ledger's table {table} differs: {mine}, should be {theirs}"


@dataclass(frozen=True)
class Collection(Job):
    """`fsd-collect` on the bundled pair."""

    problems: int = _COLLECTED
    name = "collect"

    def arguments(self) -> list[str | Path]:
        size = ["--task", "arithmetic", *_ALONE, "--limit", str(self.problems), "--batch-size", "8"]
        return [*size, "--out", self.folder / "out"]

    def saved(self) -> Counter[Any]:
        listing = self.folder / "out" / "shards.jsonl"
        return Counter(listing.read_bytes().splitlines(keepends=True)[:-1] if listing.exists() else [])

    def check(self) -> tuple[str, list[str | Path]]:
        return "traces", ["verify", self.folder / "out"]

    def faults(self, reference: Job) -> Iterator[str]:
        yield from verify(self.folder / "out")
        mine, theirs = (load_traces(job.folder / "out") for job in (self, reference))
        if mine.manifest != theirs.manifest:
            yield "the manifest differs"
        for table in ("tokens", "completions"):
            if not getattr(mine, table).to_table().equals(getattr(theirs, table).to_table()):
                yield f"the table {table} differs"


@dataclass(frozen=True)
class Training(Job):
    """`fsd-train-predictor` on collected traces."""

    traces: Path
    name = "train_predictor"

    def arguments(self) -> list[str | Path]:
        return ["--traces", self.traces, "--out", self.folder / "out", "--kind", "boosted", "--trials", "1"]

    def faults(self, reference: Job) -> Iterator[str]:
        Predictor.load(self.folder / "out")
        mine, theirs = (_models(job.folder / "out") for job in (self, reference))
        yield from different(theirs, mine)


def saved_so_far(job: Job) -> Counter[Any]:
    """Returns what a job saved; nothing if its files cannot be read, which the comparison at its end finds."""
    try:
        return job.saved()
    except sqlite3.DatabaseError:
        return Counter()


def judge_end(ended: Ended, job: Job, reference: Job) -> Verdict:
    """Returns the verdict on a disturbed command that was run to its end."""
    if (complaint := ended.complaint()) is not None:
        return complaint
    if ended.code:
        return "lost", f"it does not finish: exit code {ended.code}: {ended.last_line}"
    try:
        found = list(job.faults(reference))
    except (UsageError, OSError, sqlite3.DatabaseError) as error:
        return "lost", f"what it left cannot be read: {error}"
    if found:
        return "lost", "; ".join(found)
    mine, theirs = (
        {path.relative_to(one.folder).as_posix() for path in one.folder.rglob("*") if path.is_file()}
        for one in (job, reference)
    )
    left = sorted(name for name in mine - theirs if not name.endswith(".lock"))
    return ("lost", f"files are left: {', '.join(left)}") if left else ("resumed", "")


# --- undisturbed jobs -------------------------------------------------------------------------------------


def calibration(stage: Stage) -> Calibration:
    job = Calibration(stage.scratch / "material" / "calibration").finish()
    if (outcome := ThresholdProfile.load(job.profile).outcome) not in FOLLOWED:
        raise RuntimeError(f"the calibration to attack ended as {outcome}, without a threshold; give another --scratch")
    return job


def collection(stage: Stage) -> Collection:
    """A small one for a quick run."""
    return Collection(stage.scratch / "material" / "collection", _FEW if stage.quick else _COLLECTED).finish()


def training(stage: Stage) -> Training:
    return Training(stage.scratch / "material" / "training", collection(stage).folder / "out").finish()


UNDISTURBED: dict[str, Callable[[Stage], Job]] = {
    "calibrate": calibration,
    "collect": collection,
    "train_predictor": training,
}
"""Each made when it is first needed."""


# --- what differs -----------------------------------------------------------------------------------------


def different(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of values that differ."""
    for name in one.keys() | other.keys():
        if one.get(name) != other.get(name):
            yield f"{name} differs: {str(other.get(name))[:80]}, should be {str(one.get(name))[:80]}"


def _models(predictor: Path) -> dict[str, Any]:
    """Returns what a predictor predicts by: its models' files, their calibration and the scale of T."""
    files = {path.name: path.read_bytes() for path in (*predictor.glob("accepting.*"), *predictor.glob("next.*"))}
    description = json.loads((predictor / "predictor.json").read_text())
    return {**files, "models": description["models"], "scale": description["scale"]}


def _content(profile: Path) -> dict[str, Any]:
    return dict(json.loads(ThresholdProfile.load(profile).model_dump_json(exclude=_TIMED)))


def _ledger(path: Path, table: str) -> list[str]:
    """Returns the rows of a table of the ledger, shortened, without their digests and the problems' numbers."""
    columns = "number, verdict, length(problems)" if table == "attempts" else "length(problems)"
    return [str(row)[:200] for row in _rows(path, f"SELECT {columns} FROM {table}")]


def _rows(path: Path, query: str) -> list[Any]:
    """Returns the rows of a query on a copy of the file, so that its state is not changed by looking at it."""
    if not path.exists():
        return []
    with tempfile.TemporaryDirectory() as folder:
        for tail in ("", *_LOGS):
            if (source := Path(f"{path}{tail}")).exists():
                shutil.copy(source, folder)
        connection = sqlite3.connect(Path(folder) / path.name)
        try:
            return sorted(connection.execute(query).fetchall(), key=str)
        finally:
            connection.close()
