"""What is attacked: a whole calibration, collection and training, each made once by its command, and files by hand."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fsd_calib import ThresholdProfile
from fsd_data import pair_paths
from fsd_decoding.profile.content import FOLLOWED
from fsd_predictors.heads.folder import HeadFolder
from lib.attacks.commands import run
from lib.attacks.jobs import COLLECTED, Calibration, Collection, Job, Training
from lib.attacks.readers import (
    CACHE,
    DATABASE,
    HEAD_FACTS,
    JOURNAL,
    LEDGER,
    PROFILE,
    RECORD,
    TASK,
    Asked,
    Subject,
)  # fmt: skip

_ENDED = "ended.json"
_FEW = 16  # problems of a quick run
_ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n), "level": n % 3} for n in range(20)]
_YAML = """\
data: rows.jsonl
prompt: "Question: {{ question }}\\nAnswer:"
instruction: Answer with a number.
examples:
  - {question: "What is 100 + 1?", answer: "101"}
stop: ["\\nQuestion:"]
max_new_tokens: 64
extract: 'answer is (\\d+)'
grader: numeric
tolerance: 0.01
"""


@dataclass(frozen=True)
class Material:
    """Undisturbed runs in one folder, each made when it is first needed. quick: a small collection."""

    folder: Path
    quick: bool = False

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
        job = Collection(self.folder / "collection", _FEW if self.quick else COLLECTED)
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

    def subject(self, subject: Subject) -> tuple[Path, Asked]:
        """Returns a folder that holds a subject's files, and what to ask them for."""
        folder = self.folder / "subjects" / subject.folder
        asked = folder.with_suffix(".json")
        if not asked.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            asked.write_text(json.dumps(_MAKERS[subject.name](self, folder)))
        return folder, json.loads(asked.read_text())


def finish(job: Job) -> None:
    """Runs a job to its end. Raises RuntimeError if it fails."""
    job.folder.mkdir(parents=True, exist_ok=True)
    ended = run(job.name, job.arguments())
    if ended.code or ended.complaint():
        raise RuntimeError(f"fsd-{job.name} ended with {ended.code}: {ended.err[-2000:]}")
    (job.folder / _ENDED).write_text(json.dumps({"seconds": ended.seconds}))


# --- files that no command has to make ---------------------------------------------------------------------


def _task(material: Material, folder: Path) -> Asked:
    folder.mkdir()
    (folder / TASK).write_text(_YAML)
    (folder / "rows.jsonl").write_text(_lines())
    return {}


def _data(material: Material, folder: Path) -> Asked:
    folder.mkdir()
    (folder / "rows.json").write_text(json.dumps(_ROWS))
    (folder / "rows.jsonl").write_text(_lines())
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(_lines().encode()))
    (folder / "rows.csv").write_text(
        "".join(f"{','.join(map(str, row))}\n" for row in (_ROWS[0], *map(dict.values, _ROWS)))
    )
    pq.write_table(pa.Table.from_pylist(_ROWS), folder / "rows.parquet")
    return {"names": sorted(path.name for path in folder.iterdir())}


def _prompts(material: Material, folder: Path) -> Asked:
    folder.mkdir()
    (folder / "prompts.txt").write_text("".join(f"{row['question']}\n" for row in _ROWS))
    (folder / "prompts.jsonl").write_text(_lines())
    return {"names": ["prompts.txt", "prompts.jsonl"]}


def _lines() -> str:
    return "".join(f"{json.dumps(row)}\n" for row in _ROWS)


def _training(material: Material, folder: Path) -> Asked:
    training = HeadFolder(folder, HEAD_FACTS)
    with training.held():
        training.add([([n, 1, 2], [3, n]) for n in range(20)])
        training.keep({"weights": torch.arange(300.0), "epoch": 2})
    return {}


def _copied(source: Callable[[Material], Path], *names: str) -> Callable[[Material, Path], Asked]:
    """Copies a folder, or files of it. A record is asked for where it is among them."""

    def make(material: Material, folder: Path) -> Asked:
        if not names:
            shutil.copytree(source(material), folder)
            return {}
        folder.mkdir()
        for name in names:
            shutil.copy(source(material) / name, folder)
        return {"record": True} if RECORD in names else {}

    return make


# --- files of commands -------------------------------------------------------------------------------------


def _cache(material: Material, folder: Path) -> Asked:
    folder.mkdir()
    shutil.copy(material.calibration().folder / "cache" / CACHE, folder)
    keys = "SELECT k.key, d.problem, d.threshold FROM decodings d JOIN keys k ON k.hash = d.key"
    return {"results": _rows(folder / CACHE, keys)}


def _cache_with_log(material: Material, folder: Path) -> Asked:
    asked = _cache(material, folder)
    whole = folder.with_name("whole.sqlite")
    shutil.move(folder / CACHE, whole)
    folder.rmdir()
    _with_log(whole, folder)
    whole.unlink()
    return asked


def _journal(material: Material, folder: Path) -> Asked:
    folder.mkdir()
    journal = Path(shutil.copy(material.calibration().folder / "out" / JOURNAL, folder))
    (study,) = optuna.get_all_study_summaries(_storage(journal))
    identity = {name: value for name, value in study.user_attrs.items() if isinstance(value, str)}
    return {"study": study.study_name, "identity": identity}


def _database(material: Material, folder: Path) -> Asked:
    """Copies a study from its journal into a database."""
    asked = _journal(material, folder)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.copy_study(
        from_study_name=asked["study"], from_storage=_storage(folder / JOURNAL),
        to_storage=f"sqlite:///{folder / DATABASE}",
    )  # fmt: skip
    (folder / JOURNAL).unlink()
    return asked


def _storage(journal: Path) -> Any:
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))


def _ledger(material: Material, folder: Path) -> Asked:
    folder.mkdir()
    shutil.copy(material.calibration().folder / "state" / LEDGER, folder)
    queries = {"families": "SELECT DISTINCT family FROM attempts", "runs": "SELECT DISTINCT name FROM runs"}
    return {name: [value for (value,) in _rows(folder / LEDGER, query)] for name, query in queries.items()}


def _facts(material: Material, folder: Path) -> Asked:
    folder.mkdir()
    (facts,) = material.calibration().facts()
    shutil.copy(facts, folder)
    return {"runs": [facts.stem.removeprefix("run-")]}


def _rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


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


def _out(material: Material) -> Path:
    return material.calibration().folder / "out"


def _traces(material: Material) -> Path:
    return material.collection().folder / "out"


_MAKERS: dict[str, Callable[[Material, Path], Asked]] = {
    "task file": _task,
    "data files": _data,
    "prompts": _prompts,
    "run file": _copied(_out, "run.yaml"),
    "model": _copied(lambda material: pair_paths()[1]),
    "head": _copied(lambda material: pair_paths()[1].with_name("head")),
    "head in training": _training,
    "profile": _copied(_out, PROFILE),
    "forged profile": _copied(_out, PROFILE),
    "record of a run": _copied(_out, PROFILE, RECORD),
    "forged record of a run": _copied(_out, PROFILE, RECORD),
    "traces": _copied(_traces),
    "verified traces": _copied(_traces),
    "result cache": _cache,
    "result cache with log": _cache_with_log,
    "journal of a study": _journal,
    "database of a study": _database,
    "ledger": _ledger,
    "facts of a run": _facts,
    "predictor": _copied(lambda material: material.training().folder / "out"),
}
