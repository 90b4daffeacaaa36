"""What is attacked: a whole calibration, collection and training, each made once by its command."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from fsd_calib import ThresholdProfile
from fsd_decoding.profile.outcome import FOLLOWED
from lib.attacks.commands import run
from lib.attacks.jobs import Calibration, Collection, Job, Training
from lib.attacks.readers import CACHE, DATABASE, JOURNAL, LEDGER, Asked

_ENDED = "ended.json"
_ASKED = "asked.json"


@dataclass(frozen=True)
class Material:
    """Undisturbed runs in one folder, each made when it is first needed."""

    folder: Path

    def calibration(self) -> Calibration:
        job = Calibration(self.folder / "calibration")
        if not (job.folder / _ENDED).exists():
            finish(job)
            if (outcome := ThresholdProfile.load(job.profile).outcome) not in FOLLOWED:
                raise RuntimeError(
                    f"the calibration to attack ended as {outcome}, without a threshold; give another --scratch"
                )
        return job

    def collection(self) -> Collection:
        job = Collection(self.folder / "collection")
        if not (job.folder / _ENDED).exists():
            finish(job)
        return job

    def training(self) -> Training:
        job = Training(self.folder / "training", self.collection().folder / "out")
        if not (job.folder / _ENDED).exists():
            finish(job)
        return job

    def seconds(self, job: Job) -> float:
        """Returns the seconds that an undisturbed job took."""
        return float(json.loads((job.folder / _ENDED).read_text())["seconds"])

    def subjects(self) -> tuple[Path, Asked]:
        """Returns a folder that holds one of the files of each `readers.Subject`, and what to ask them for."""
        folder = self.folder / "subjects"
        if not (folder / _ASKED).exists():
            _gather(self, folder)
        return folder, json.loads((folder / _ASKED).read_text())


def finish(job: Job) -> None:
    """Runs a job to its end. Raises RuntimeError if it fails."""
    job.folder.mkdir(parents=True, exist_ok=True)
    ended = run(job.name, job.arguments())
    if ended.code or ended.complaint():
        raise RuntimeError(f"fsd-{job.name} ended with {ended.code}: {ended.err[-2000:]}")
    (job.folder / _ENDED).write_text(json.dumps({"seconds": ended.seconds}))


def _gather(material: Material, folder: Path) -> None:
    calibration, predictor = material.calibration(), material.training()
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("traces", "verified-traces"):
        shutil.copytree(material.collection().folder / "out", folder / name)
    shutil.copytree(predictor.folder / "out", folder / "predictor")
    (facts,) = calibration.facts()
    for name, source in {
        "result-cache": calibration.folder / "cache" / CACHE, "facts-of-a-run": facts,
        "journal-of-a-study": calibration.folder / "out" / JOURNAL, "ledger": calibration.folder / "state" / LEDGER,
    }.items():  # fmt: skip
        (folder / name).mkdir()
        shutil.copy(source, folder / name)
    _with_log(folder / "result-cache" / CACHE, folder / "result-cache-with-log")
    study, identity = _as_database(folder / "journal-of-a-study" / JOURNAL, folder / "database-of-a-study")
    asked = {"study": study, "identity": identity, **_in_cache_and_ledger(folder)}
    (folder / _ASKED).write_text(json.dumps(asked))


def _with_log(cache: Path, folder: Path) -> None:
    """Copies a cache as it lies on the disk while a process writes to it: half of its results are in the log."""
    folder.mkdir()
    work = Path(shutil.copy(cache, folder / "work.sqlite"))
    with closing(sqlite3.connect(work, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        rows = connection.execute("SELECT rowid, * FROM decodings").fetchall()
        late = rows[len(rows) // 2 :]
        connection.executemany("DELETE FROM decodings WHERE rowid = ?", [row[:1] for row in late])
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        for row in late:
            connection.execute(f"INSERT INTO decodings VALUES ({', '.join('?' * len(row[1:]))})", row[1:])
        for tail in ("", "-wal"):
            shutil.copy(f"{work}{tail}", folder / f"{CACHE}{tail}")
    for path in folder.glob("work.*"):
        path.unlink()


def _as_database(journal: Path, folder: Path) -> tuple[str, dict[str, str]]:
    """Copies a study from its journal into a database; returns its name and what identifies its search."""
    folder.mkdir()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    source = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    (study,) = optuna.get_all_study_summaries(source)
    optuna.copy_study(
        from_study_name=study.study_name, from_storage=source, to_storage=f"sqlite:///{folder / DATABASE}"
    )
    return study.study_name, {name: value for name, value in study.user_attrs.items() if isinstance(value, str)}


def _in_cache_and_ledger(folder: Path) -> dict[str, Any]:
    keys = "SELECT k.key, d.problem, d.threshold FROM decodings d JOIN keys k ON k.hash = d.key"
    queries = {
        "results": ("result-cache", CACHE, keys),
        "families": ("ledger", LEDGER, "SELECT DISTINCT family FROM attempts"),
        "runs": ("ledger", LEDGER, "SELECT DISTINCT name FROM runs"),
    }
    asked = {}
    for name, (kind, file, query) in queries.items():
        with closing(sqlite3.connect(folder / kind / file)) as connection:
            rows = connection.execute(query).fetchall()
        asked[name] = rows if name == "results" else [value for (value,) in rows]
    return asked
