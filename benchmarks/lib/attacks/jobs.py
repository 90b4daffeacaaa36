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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fsd_calib import ThresholdProfile, load_traces
from fsd_collectors.store.verifying import verify
from fsd_predictors.predictor import Predictor

_TIMED = {"created", "speed", "effort", "digest"}  # what differs from run to run by nature, and the digest of it
_LOGS = ("-wal", "-journal")
_ROUNDING = 1e-4  # of D, by what else is in a batch: at most 1.2e-4 sqrt(D) for js (fsd_calib/engines/configuration.py)
_ALONE = ("--device", "cpu", "--workers", "1")  # a kill hits the process that decodes
PROBLEMS, COLLECTED = 80, 160


class Job(Protocol):
    """A command with its folders."""

    @property
    def name(self) -> str:
        """The command, as `commands.run` takes it."""

    @property
    def folder(self) -> Path: ...

    def arguments(self) -> list[str | Path]: ...

    def saved(self) -> Counter[Any]:
        """Returns what it saved so far, with the number of times that it did."""

    def faults(self, reference: Job) -> Iterator[str]:
        """Yields how the finished job differs from an undisturbed one, timings and dates excepted."""


@dataclass(frozen=True)
class Calibration:
    """`fsd-calibrate` on the bundled pair."""

    folder: Path
    name: str = "calibrate"

    def arguments(self) -> list[str | Path]:
        goal = ["--task", "arithmetic", *_ALONE, "--min-acc", "0.8", "--limit", str(PROBLEMS), "--timing", "none"]
        folders = [part for name in ("out", "cache", "state") for part in (f"--{name}", self.folder / name)]
        return [*goal, "--divergence", "js", "--draft-length", "10", *folders]

    @property
    def profile(self) -> Path:
        return self.folder / "out" / "profile.json"

    def facts(self) -> list[Path]:
        return sorted((self.folder / "out").glob("run-*.json"))

    def take_facts(self, reference: Calibration) -> None:
        """Copies the costs of the undisturbed run: they decide what the search tries."""
        (self.folder / "out").mkdir(parents=True, exist_ok=True)
        for path in reference.facts():
            shutil.copy(path, self.folder / "out")

    def saved(self) -> Counter[Any]:
        query = "SELECT hex(key), problem, hex(prompt), threshold, lo, hi, text, rounds FROM decodings"
        return Counter(_rows(self.folder / "cache" / "decodings.sqlite", query))

    def faults(self, reference: Job) -> Iterator[str]:
        assert isinstance(reference, Calibration)
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
class Collection:
    """`fsd-collect` on the bundled pair."""

    folder: Path
    problems: int = COLLECTED
    name: str = "collect"

    def arguments(self) -> list[str | Path]:
        size = ["--task", "arithmetic", *_ALONE, "--limit", str(self.problems), "--batch-size", "8"]
        return [*size, "--out", self.folder / "out"]

    def saved(self) -> Counter[Any]:
        listing = self.folder / "out" / "shards.jsonl"
        return Counter(listing.read_bytes().splitlines(keepends=True)[:-1] if listing.exists() else [])

    def faults(self, reference: Job) -> Iterator[str]:
        yield from verify(self.folder / "out")
        mine, theirs = (load_traces(job.folder / "out") for job in (self, reference))
        if mine.manifest != theirs.manifest:
            yield "the manifest differs"
        for table in ("tokens", "completions"):
            if not getattr(mine, table).to_table().equals(getattr(theirs, table).to_table()):
                yield f"the table {table} differs"


@dataclass(frozen=True)
class Training:
    """`fsd-train-predictor` on collected traces."""

    folder: Path
    traces: Path
    kind: str = "boosted"
    name: str = "train"

    def arguments(self) -> list[str | Path]:
        return ["--traces", self.traces, "--out", self.folder / "out", "--kind", self.kind, "--trials", "1"]

    def saved(self) -> Counter[Any]:
        return Counter()  # a predictor is whole or not there

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


def litter(job: Job, reference: Job) -> list[str]:
    """Returns files that the undisturbed job did not leave."""
    mine, theirs = (
        {path.relative_to(one.folder).as_posix() for path in one.folder.rglob("*") if path.is_file()}
        for one in (job, reference)
    )
    return sorted(name for name in mine - theirs if not name.endswith(".lock"))


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
