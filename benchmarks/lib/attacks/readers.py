"""One table of all files that commands read: who reads them, and what guards them.

A reader returns the content of a folder's files as parts, by name, so that what was read can be compared with what was
written. Its second argument says what to ask for. It uses what it has read as far as commands do.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

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
from fsd_calib.search.study import open_study
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
from lib.attacks.jobs import PROBLEMS

Content = dict[str, Any]
Asked = dict[str, Any]
CACHE, JOURNAL, DATABASE, LEDGER = "decodings.sqlite", "study.log", "study.sqlite", "ledger.sqlite"
PROFILE, RECORD, TASK = "profile.json", "run.json", "task.yaml"
HEAD_FACTS = {"target": "pair", "recipe": {"epochs": 4, "seed": 0}}


@dataclass(frozen=True)
class Subject:
    """Files of one kind, in a folder of their own.

    Attributes:
        read: Returns their content.
        guarded: Whether a digest or a rule tells every change; if not, what a changed file says counts.
        forgets: Whether less than was written may be returned without a word: so may a cache.
        deletable: Whether to delete files too. Without the ledger's nothing remains that could miss it.
        forged: The file whose digest is made anew after damage to its values, as a forger does. "": none.
    """

    name: str
    read: Callable[[Path, Asked], Content]
    guarded: bool = True
    forgets: bool = False
    deletable: bool = True
    forged: str = ""

    @property
    def folder(self) -> str:
        return self.name.replace(" ", "-")


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


def read_task(folder: Path, asked: Asked) -> Content:
    """Returns the problems of a task in YAML, with its reference's grade."""
    task = load_task(str(folder / TASK))
    return {"problems": [(p.prompt, p.reference, task.grade(p, p.reference)) for p in task.problems]}


def read_data(folder: Path, asked: Asked) -> Content:
    """Returns the rows of the data files of all formats."""
    return {name: [dict(row.columns) for row in read_rows(folder / name)] for name in asked["names"]}


def read_prompts(folder: Path, asked: Asked) -> Content:
    return {name: gathered([], folder / name) for name in asked["names"]}


@lru_cache(maxsize=1)
def _target() -> Any:
    return load_model(str(pair_paths()[0]), "cpu", None)


def read_head(folder: Path, asked: Asked) -> Content:
    return {"head": repr(Eagle(folder).load(_target()))}


def read_training(folder: Path, asked: Asked) -> Content:
    """Returns the texts and the state that a head's training continues with."""
    training = HeadFolder(folder, HEAD_FACTS)
    with training.held():
        texts = training.texts()
        with training.reading("checkpoint.pt"):
            state = training.checkpoint()
            weights = None if state is None else state["weights"].tolist()
    known = {f"text {number}": text for number, text in enumerate(texts)}
    return known | ({} if weights is None else {"weights": weights})


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


def read_journal(folder: Path, asked: Asked) -> Content:
    return _read_study(str(folder / JOURNAL), asked)


def read_study_database(folder: Path, asked: Asked) -> Content:
    return _read_study(f"sqlite:///{folder / DATABASE}", asked)


def _read_study(storage: str, asked: Asked) -> Content:
    """Returns the finished trials of a study, as the search reads them."""
    with open_study(storage, asked["study"], asked["identity"], cast(Any, None)) as study:
        finished = history_of(study.get_trials(), Workers()).trials
        return {f"trial {trial.setting} on {trial.problems}": asdict(trial) for trial in finished}


def read_ledger(folder: Path, asked: Asked) -> Content:
    with closing(LedgerFile(folder / LEDGER)) as ledger, ledger.naming_errors():
        tuned = {f"tuned {family}": np.unique(ledger.tuned(family), axis=0).tobytes() for family in asked["families"]}
        attempts = {f"attempts {one}": [e.stored() for e in ledger.attempts(one)] for one in asked["families"]}
        return {**tuned, **attempts, **{f"run {name}": ledger.runs(name) for name in asked["runs"]}}


class _NoLedger:
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
        facts = begin_or_resume(folder, asked["runs"][0], cast(Holdout, _NoLedger()), measure)
    except _MeasuredAgainError:
        return {}
    return facts.model_dump(mode="json")


def read_predictor(folder: Path, asked: Asked) -> Content:
    predictor = Predictor.load(folder)
    return {"fingerprint": predictor.fingerprint, "facts": predictor.facts.model_dump_json()}


SUBJECTS = (
    Subject("task file", read_task, guarded=False),
    Subject("data files", read_data, guarded=False),
    Subject("prompts", read_prompts, guarded=False),
    Subject("model", read_model, guarded=False),
    Subject("head", read_head, guarded=False),
    Subject("head in training", read_training, forgets=True),
    Subject("run file", read_run, guarded=False),
    Subject("profile", read_profile),
    Subject("forged profile", read_profile, guarded=False, forged=PROFILE),
    Subject("record of a run", read_profile),
    Subject("forged record of a run", read_profile, guarded=False, forged=RECORD),
    Subject("traces", read_traces),
    Subject("verified traces", verify_traces),
    Subject("result cache", read_cache, forgets=True),
    Subject("result cache with log", read_cache, forgets=True),
    Subject("journal of a study", read_journal, forgets=True),
    Subject("database of a study", read_study_database, forgets=True),
    Subject("ledger", read_ledger, deletable=False),
    Subject("facts of a run", read_facts, forgets=True),
    Subject("predictor", read_predictor),
)
BY_HAND = SUBJECTS[:6]  # which no command has to make
