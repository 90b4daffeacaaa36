"""One table of all files that commands read: how they are made, who reads them, and what guards them.

What makes files in a folder returns what to ask them for, which is given to the reader. That returns the content of the
folder's files as parts, by name, so that what was read can be compared with what was written. It uses what it has read
as far as commands do.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import optuna
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fsd_calib import ThresholdProfile, load_task, load_traces
from fsd_calib.calibration.run_facts import Timings, begin_or_resume
from fsd_calib.calibration.run_file import read_run_file
from fsd_calib.certification.attempt_ledger import LedgerFile
from fsd_calib.certification.holdout import Holdout
from fsd_calib.cli.prompting import gathered
from fsd_calib.engines.base import KeyedPrompt
from fsd_calib.engines.cache_key import CacheKey
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.report.console import print_details, print_report
from fsd_calib.report.page import run_page
from fsd_calib.report.run_folder import load_run
from fsd_calib.search.sampler import Workers, history_of
from fsd_calib.search.study_storage import open_study
from fsd_calib.tasks.rows import read_rows
from fsd_collectors.store.verifying import notes, verify
from fsd_common.errors import UsageError
from fsd_common.pages.markdown import markdown
from fsd_data import pair_paths
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.loading import load_model, load_tokenizer
from fsd_decoding.profile.io import FIELD, digest_of
from fsd_decoding.profile.setting import Setting
from fsd_predictors.heads.folder import HeadFolder
from fsd_predictors.predictor import Predictor
from lib.attacks.cases import Stage
from lib.attacks.jobs import PROBLEMS, calibration, collection, training

Content = dict[str, Any]
Asked = dict[str, Any]
CACHE, JOURNAL, DATABASE, LEDGER = "decodings.sqlite", "study.log", "study.sqlite", "ledger.sqlite"
PROFILE, RECORD, TASK = "profile.json", "run.json", "task.yaml"
HEAD_FACTS = {"target": "pair", "recipe": {"epochs": 4, "seed": 0}}


_ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n), "level": n % 3} for n in range(20)]
_LINES = "".join(f"{json.dumps(row)}\n" for row in _ROWS)
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
class Subject:
    """Files of one kind, in a folder of their own.

    Attributes:
        make: Makes them in a folder that is not there yet, and returns what to ask for, as JSON can hold it.
        read: Returns their content.
        guarded: Whether a digest or a rule tells every change; if not, what a changed file says counts.
        forgets: Whether less than was written may be returned without a word: so may a cache.
        deletable: Whether to delete files too. Without the ledger's nothing remains that could miss it.
        forged: The file whose digest is made anew after damage to its values, as a forger does. "": none.
        by_hand: Whether no command has to make them.
    """

    name: str
    make: Callable[[Stage, Path], Asked]
    read: Callable[[Path, Asked], Content]
    guarded: bool = True
    forgets: bool = False
    deletable: bool = True
    forged: str = ""
    by_hand: bool = False

    def made(self, stage: Stage) -> tuple[Path, Asked]:
        """Returns the folder that holds the files, and what to ask for; they are made when they are first needed."""
        folder = stage.folder("material/subjects") / self.name.replace(" ", "-")
        asked = folder.with_suffix(".json")
        if not asked.exists():
            shutil.rmtree(folder, ignore_errors=True)
            asked.write_text(json.dumps(self.make(stage, folder)))
        return folder, json.loads(asked.read_text())


def copied(source: Callable[[Stage], Path], *names: str) -> Callable[[Stage, Path], Asked]:
    """Copies a folder, or files of it. A record is asked for where it is among them."""

    def make(stage: Stage, folder: Path) -> Asked:
        if not names:
            shutil.copytree(source(stage), folder)
            return {}
        folder.mkdir()
        for name in names:
            shutil.copy(source(stage) / name, folder)
        return {"record": True} if RECORD in names else {}

    return make


def _out(stage: Stage) -> Path:
    return calibration(stage).folder / "out"


def _traces(stage: Stage) -> Path:
    return collection(stage).folder / "out"


# --- profiles and run files -------------------------------------------------------------------------------


def forge(path: Path) -> None:
    """Writes the digest that a file's content has, unless it is no JSON any more."""
    try:
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, FIELD: digest_of(content)}, indent=1))
    except (ValueError, TypeError, RecursionError):
        return


def read_profile(folder: Path, asked: Asked) -> Content:
    """Returns what `fsd-profile` and `fsd-report` make of a profile and its record, in words."""
    profile = ThresholdProfile.load(folder)
    print_report(profile)
    print_details(profile)
    content: Content = {"profile": profile.model_dump_json()}
    if "record" in asked:
        run = load_run(folder)
        if run.lacks:
            warnings.warn(run.lacks, stacklevel=1)
        else:
            content["record"] = cast(Any, run.record).model_dump_json()
        markdown(run_page(run), lambda chart: f"{chart.name}.svg")
    return content


def read_run(folder: Path, asked: Asked) -> Content:
    return {"run": read_run_file(folder).model_dump_json()}


def _task(stage: Stage, folder: Path) -> Asked:
    folder.mkdir()
    (folder / TASK).write_text(_YAML)
    (folder / "rows.jsonl").write_text(_LINES)
    return {}


def read_task(folder: Path, asked: Asked) -> Content:
    """Returns the problems of a task in YAML, with its reference's grade."""
    task = load_task(str(folder / TASK))
    return {"problems": [(p.prompt, p.reference, task.grade(p, p.reference)) for p in task.problems]}


def _data(stage: Stage, folder: Path) -> Asked:
    folder.mkdir()
    (folder / "rows.json").write_text(json.dumps(_ROWS))
    (folder / "rows.jsonl").write_text(_LINES)
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(_LINES.encode()))
    (folder / "rows.csv").write_text(
        "".join(f"{','.join(map(str, row))}\n" for row in (_ROWS[0], *map(dict.values, _ROWS)))
    )
    pq.write_table(pa.Table.from_pylist(_ROWS), folder / "rows.parquet")
    return {"names": sorted(path.name for path in folder.iterdir())}


def read_data(folder: Path, asked: Asked) -> Content:
    """Returns the rows of the data files of all formats."""
    return {name: [dict(row.columns) for row in read_rows(folder / name)] for name in asked["names"]}


def _prompts(stage: Stage, folder: Path) -> Asked:
    folder.mkdir()
    (folder / "prompts.txt").write_text("".join(f"{row['question']}\n" for row in _ROWS))
    (folder / "prompts.jsonl").write_text(_LINES)
    return {"names": ["prompts.txt", "prompts.jsonl"]}


def read_prompts(folder: Path, asked: Asked) -> Content:
    return {name: [each.text for each in gathered([], folder / name)] for name in asked["names"]}


@lru_cache(maxsize=1)
def _target() -> Any:
    return load_model(str(pair_paths()[0]), "cpu", None)


def read_head(folder: Path, asked: Asked) -> Content:
    return {"head": repr(Eagle(folder).load(_target()))}


def _training(stage: Stage, folder: Path) -> Asked:
    training = HeadFolder(folder, HEAD_FACTS)
    with training.held():
        training.add([([n, 1, 2], [3, n]) for n in range(20)])
        training.keep({"weights": torch.arange(300.0), "epoch": 2})
    return {}


def read_training(folder: Path, asked: Asked) -> Content:
    """Returns the texts and the state that a head's training continues with."""
    training = HeadFolder(folder, HEAD_FACTS)
    with training.held():
        texts, state = training.texts(), training.checkpoint()
    known: Content = {f"text {number}": text for number, text in enumerate(texts)}
    return known | ({} if state is None else {"weights": state["weights"].tolist()})


def read_model(folder: Path, asked: Asked) -> Content:
    """Returns a model's configuration and a text's tokens; whoever decodes with it looks at its weights."""
    model, tokenizer = load_model(str(folder), "cpu", None), load_tokenizer(str(folder))
    return {"model": model.config.to_dict(), "tokens": tokenizer("Ann has 3 boxes.")["input_ids"]}


def read_traces(folder: Path, asked: Asked) -> Content:
    """Returns the traces' rows by table and portion, and their manifest.

    Raises:
        UsageError: `verify` finds a fault that reading does not.
    """
    traces = load_traces(folder)
    content: Content = {"manifest": traces.manifest.model_dump_json()}
    for table in ("tokens", "completions"):
        for number, rows in enumerate(traces.batches(table=table)):
            hashes = pd.util.hash_pandas_object(rows.to_pandas().astype(str), index=False)
            content[f"{table} {number}"] = hashes.to_numpy().tobytes()
    for note in () if traces.complete else notes(folder):
        warnings.warn(note, stacklevel=1)
    return content


def verify_traces(folder: Path, asked: Asked) -> Content:
    """Returns what `read_traces` does where `fsd-traces verify` finds no fault."""
    if faults := verify(folder):
        raise UsageError(" ".join(faults))
    return read_traces(folder, asked)


# --- caches, studies and the ledger -----------------------------------------------------------------------


def _cache(stage: Stage, folder: Path) -> Asked:
    folder.mkdir()
    shutil.copy(calibration(stage).folder / "cache" / CACHE, folder)
    keys = "SELECT k.key, d.problem, d.threshold FROM decodings d JOIN keys k ON k.hash = d.key"
    return {"results": _rows(folder / CACHE, keys)}


def _cache_with_log(stage: Stage, folder: Path) -> Asked:
    asked = _cache(stage, folder)
    whole = folder.with_name("whole.sqlite")
    shutil.move(folder / CACHE, whole)
    folder.rmdir()
    _with_log(whole, folder)
    whole.unlink()
    return asked


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


def read_cache(folder: Path, asked: Asked) -> Content:
    """Returns all results that were written, looked up as a calibration does."""
    prompts = {problem.id: problem.prompt for problem in load_task("arithmetic", limit=PROBLEMS).problems}
    content: Content = {}
    with ResultCache(folder / CACHE) as cache:
        for text, problem, threshold in asked["results"]:
            values = json.loads(text)
            key = CacheKey(**values | {"setting": Setting.of(values["setting"])})
            found = cache.find(key, [KeyedPrompt(problem, prompts[problem])], threshold)
            content |= {f"{text} {problem} {threshold}": each for each in found.values()}
    return content


def study_in(storage: str) -> Asked:
    """Returns what to ask the only study of a journal or a database for."""
    study, *_ = optuna.get_all_study_summaries(_opened(storage))  # the others have its records
    identity = {name: value for name, value in study.user_attrs.items() if isinstance(value, str)}
    return {"study": study.study_name, "identity": identity}


def _opened(storage: str) -> Any:
    if "://" in storage:
        return storage
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(storage))


def _journal(stage: Stage, folder: Path) -> Asked:
    folder.mkdir()
    return study_in(str(shutil.copy(calibration(stage).folder / "out" / JOURNAL, folder)))


def _database(stage: Stage, folder: Path) -> Asked:
    """Copies a study from its journal into a database."""
    asked = _journal(stage, folder)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    source = _opened(str(folder / JOURNAL))
    optuna.copy_study(from_study_name=asked["study"], from_storage=source, to_storage=f"sqlite:///{folder / DATABASE}")
    (folder / JOURNAL).unlink()
    return asked


def read_journal(folder: Path, asked: Asked) -> Content:
    return read_study(str(folder / JOURNAL), asked)


def read_study_database(folder: Path, asked: Asked) -> Content:
    return read_study(f"sqlite:///{folder / DATABASE}", asked)


def read_study(storage: str, asked: Asked) -> Content:
    """Returns the finished trials of a study, as the search reads them."""
    with open_study(storage, asked["study"], asked["identity"], cast(Any, None)) as study:
        finished = history_of(study.get_trials(), Workers()).trials
        return {f"trial {trial.setting} on {trial.problems}": asdict(trial) for trial in finished}


def _ledger(stage: Stage, folder: Path) -> Asked:
    folder.mkdir()
    shutil.copy(calibration(stage).folder / "state" / LEDGER, folder)
    queries = {"families": "SELECT DISTINCT family FROM attempts", "runs": "SELECT DISTINCT name FROM runs"}
    return {name: [value for (value,) in _rows(folder / LEDGER, query)] for name, query in queries.items()}


def read_ledger(folder: Path, asked: Asked) -> Content:
    with closing(LedgerFile(folder / LEDGER)) as ledger, ledger.naming_errors():
        tuned = {f"tuned {family}": np.unique(ledger.tuned(family), axis=0).tobytes() for family in asked["families"]}
        attempts = {f"attempts {one}": [e.stored() for e in ledger.attempts(one)] for one in asked["families"]}
        return {**tuned, **attempts, **{f"run {name}": ledger.runs(name) for name in asked["runs"]}}


def _facts(stage: Stage, folder: Path) -> Asked:
    folder.mkdir()
    (facts,) = calibration(stage).facts()
    shutil.copy(facts, folder)
    return {"runs": [facts.stem.removeprefix("run-")]}


class NoLedger:
    """A certification part whose ledger knows no run."""

    next_attempt = 1

    def facts_of(self, run: str) -> str | None:
        return None


class _MeasuredAgainError(Exception):
    """The reader has no costs and wants to measure them."""


def read_facts(folder: Path, asked: Asked) -> Content:
    """Returns the facts of a run; none if they would be measured again."""

    def measure() -> Timings:
        raise _MeasuredAgainError

    try:
        facts = begin_or_resume(folder, asked["runs"][0], "asked", cast(Holdout, NoLedger()), measure)
    except _MeasuredAgainError:
        return {}
    return facts.model_dump(mode="json")


def read_predictor(folder: Path, asked: Asked) -> Content:
    predictor = Predictor.load(folder)
    return {"fingerprint": predictor.fingerprint, "facts": predictor.facts.model_dump_json()}


def _rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


SUBJECTS = (
    Subject("task file", _task, read_task, guarded=False, by_hand=True),
    Subject("data files", _data, read_data, guarded=False, by_hand=True),
    Subject("prompts", _prompts, read_prompts, guarded=False, by_hand=True),
    Subject("model", copied(lambda stage: pair_paths()[1]), read_model, guarded=False, by_hand=True),
    Subject("head", copied(lambda stage: pair_paths()[1].with_name("head")), read_head, guarded=False, by_hand=True),
    Subject("head in training", _training, read_training, forgets=True, by_hand=True),
    Subject("run file", copied(_out, "run.yaml"), read_run, guarded=False),
    Subject("profile", copied(_out, PROFILE), read_profile),
    Subject("forged profile", copied(_out, PROFILE), read_profile, guarded=False, forged=PROFILE),
    Subject("record of a run", copied(_out, PROFILE, RECORD), read_profile),
    Subject("forged record of a run", copied(_out, PROFILE, RECORD), read_profile, guarded=False, forged=RECORD),
    Subject("traces", copied(_traces), read_traces),
    Subject("verified traces", copied(_traces), verify_traces),
    Subject("result cache", _cache, read_cache, forgets=True),
    Subject("result cache with log", _cache_with_log, read_cache, forgets=True),
    Subject("journal of a study", _journal, read_journal, forgets=True),
    Subject("database of a study", _database, read_study_database, forgets=True),
    Subject("ledger", _ledger, read_ledger, deletable=False),
    Subject("facts of a run", _facts, read_facts, forgets=True),
    Subject("predictor", copied(lambda stage: training(stage).folder / "out"), read_predictor),
)
