"""Storage of a search: journals and databases, several processes, killed processes, damage, URLs without passwords."""

from __future__ import annotations

import os
import random
import sqlite3
import string
import time
import warnings
from collections.abc import Iterator
from dataclasses import astuple, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsd_calib.search.space import Space
from fsd_calib.search.storage_url import check_storage, is_url, reason, without_password
from fsd_calib.search.study_storage import first_recorded, open_journal, open_storage
from fsd_calib.search.trials import SearchResult, freeze, record_recounts, search, setting_attributes
from fsd_common.progress.base import Silent
from fsd_decoding.adaptive import Schedule
from fsd_decoding.profile.setting import Setting
from lib.common.forked_programs import ForkedProgram
from support.calibration.search_worker import GOAL, SPACE, run_search, world
from support.calibration.simulated_worlds import TARGET, Formula, World
from support.child_processes import start_process
from support.messages import usage_error, usage_error_of
from support.paths import ROOT
from support.postgres import Postgres, start_postgres

WORKER = ROOT / "tests" / "support" / "calibration" / "search_worker.py"
PLACES = ["journal", "sqlite"]
MOVED = Schedule(0.25, 1.0, over=8).identity


def place(kind: str, folder: Path) -> str:
    return str(folder / "study.log") if kind == "journal" else f"sqlite:///{folder}/study.db"


def start(storage: str, seconds: float, *slowness: float) -> ForkedProgram:
    return ForkedProgram(WORKER, storage, str(seconds), *map(str, slowness))


@pytest.fixture(scope="module")
def alone() -> SearchResult:
    return run_search(None, world())


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_finished_trials_are_not_repeated(kind: str, tmp_path: Path, alone: SearchResult) -> None:
    storage = place(kind, tmp_path)
    assert len(run_search(storage, world(), trials=3).trials) == 3
    again = world()
    assert run_search(storage, again) == alone
    assert len(again.calls) == len(alone.trials) - 3
    finished = world()
    assert run_search(storage, finished) == alone
    assert finished.calls == []


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[optuna.Study, SearchResult]:
    url = place("sqlite", tmp_path_factory.mktemp("study"))
    found = run_search(url, world(), trials=8)
    return optuna.load_study(study_name="study", storage=url), found


def test_the_study_holds_parameters_values_and_constraints(recorded: tuple[optuna.Study, SearchResult]) -> None:
    study, found = recorded
    assert [t.value for t in study.trials] == [t.value for t in found.trials]
    for trial, expected in zip(study.trials, found.trials, strict=True):
        named = ["rule", "score", "draft_length", "policy", "draft", "tree", "width", "logit_share"]
        assert list(trial.params) == named
        assert trial.constraints["shortfall"] == expected.shortfall


def test_a_trial_has_attributes_of_its_setting_and_its_result(recorded: tuple[optuna.Study, SearchResult]) -> None:
    study, found = recorded
    for trial, expected in zip(study.trials, found.trials, strict=True):
        shown, fuzzy = trial.user_attrs, expected.setting
        assert (shown["rule"], shown["score"], shown["draft_length"]) == astuple(fuzzy)[:3]
        assert (shown["threshold"], shown["problems"]) == (fuzzy.threshold, expected.problems)
        assert (shown["tokens_per_second"], shown["retention"]) == (expected.tokens_per_second, expected.retention)
        assert {"policy", "draft"}.isdisjoint(shown)  # the space has one of each
        target, kept = (world().correct(c)[: expected.problems] for c in (TARGET, fuzzy))
        assert expected.lost == shown["lost"] == pytest.approx((target & ~kept).mean())
        assert expected.gained == shown["gained"] == pytest.approx((kept & ~target).mean())
        assert shown["churn"] == pytest.approx((target != kept).mean())
    assert any(t.lost > 0 for t in found.trials)


@pytest.mark.slow
def test_the_best_trial_is_feasible(tmp_path: Path) -> None:
    """Even where an infeasible one is faster."""
    url, of = place("sqlite", tmp_path), World(count=600, seed=1)
    expected = search(of.evaluator(), of.target(), Formula(), SPACE, GOAL, url, "study", 12, Silent()).trials
    best = max((t for t in expected if t.feasible), key=lambda t: t.value)
    assert max(t.value for t in expected) > best.value
    assert optuna.load_study(study_name="study", storage=url).best_trial.value == best.value


def test_dashboards_find_which_trials_are_infeasible(recorded: tuple[optuna.Study, SearchResult]) -> None:
    """optuna-dashboard 0.21 reads the list that samplers of Optuna 4 wrote: _serializer.py, CONSTRAINTS_KEY."""
    study, found = recorded
    read = [trial.system_attrs.get("constraints", []) for trial in study.trials]
    assert [all(value <= 0 for value in values) for values in read] == [t.feasible for t in found.trials]
    assert not all(t.feasible for t in found.trials)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("kind", PLACES)
def test_the_study_records_what_freezing_measured(kind: str, tmp_path: Path) -> None:
    storage, of = place(kind, tmp_path), World(count=600, seed=1)
    evaluator, target, forecast = of.evaluator(), of.target(), Formula()
    found = search(evaluator, target, forecast, SPACE, GOAL, storage, "study", 12, Silent())
    frozen = freeze(found, SPACE, evaluator, target, forecast, GOAL)
    record_recounts(found, evaluator, target, forecast, storage, "study")
    backend = storage if kind == "sqlite" else journal(storage)
    study = optuna.load_study(study_name="study", storage=backend)
    whole = [t.user_attrs for t in study.trials if t.user_attrs["problems"] == of.count]
    recounted = [values for name, values in study.user_attrs.items() if name.startswith("recounted ")]
    assert all(one["problems"] == of.count for one in recounted)
    assert recounted
    for setting in frozen:
        (one,) = [a for a in whole + recounted if _is_of(a, setting)]
        assert one["tokens_per_second"] == forecast.measured(evaluator.measure(setting))


def _is_of(attributes: dict[str, Any], setting: Setting) -> bool:
    return setting_attributes(setting).items() <= attributes.items()


def journal(path: str) -> optuna.storages.JournalStorage:
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(path))


def share_the_work(storage: str, alone: SearchResult) -> None:
    """Runs two processes: each evaluates some trials, none twice, and the winner is as good."""
    workers = [start(storage, 0.4) for _ in range(2)]
    said = [worker.stdout.read().splitlines() for worker in workers]
    assert [worker.wait() for worker in workers] == [0, 0]
    decoded = [[line for line in of if not line.startswith("done")] for of in said]
    assert all(decoded)
    both = decoded[0] + decoded[1]
    assert len(set(both)) == len(both)
    assert said[0][-1] == said[1][-1] == f"done {len(both)}"
    together = run_search(storage, world())
    assert len(together.trials) == len(both)

    def fastest(of: SearchResult) -> float:
        return max(t.tokens_per_second for t in of.trials if t.feasible)

    assert fastest(together) >= 0.99 * fastest(alone)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_two_processes_share_one_study(kind: str, tmp_path: Path, alone: SearchResult) -> None:
    share_the_work(place(kind, tmp_path), alone)


def end_with_the_same_trials(storage: str, trials: int = 4) -> None:
    """Slow processes, of which each looks at the study while another one is between two of its writes."""
    workers = [start(storage, 0.02, 1.0, seed, trials) for seed in range(3)]
    said = [worker.stdout.read().splitlines() for worker in workers]
    assert [worker.wait() for worker in workers] == [0] * 3
    ended = [[line for line in of if line.startswith("ended with")] for of in said]
    assert ended[0] == ended[1] == ended[2] != []
    later = run_search(storage, world(), trials).trials
    assert [f"ended with {trial.setting}" for trial in later] == ended[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_slow_processes_of_one_study_end_with_the_same_trials(kind: str, tmp_path: Path) -> None:
    end_with_the_same_trials(place(kind, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_a_trial_that_finishes_after_the_search_has_ended_does_not_count(
    kind: str, tmp_path: Path, alone: SearchResult
) -> None:
    """Its process was taken for dead, say because its machine slept."""
    storage = place(kind, tmp_path)
    assert run_search(storage, world()) == alone
    study = optuna.load_study(study_name="study", storage=storage if kind == "sqlite" else open_journal(Path(storage)))
    study.add_trial(study.trials[-1])
    again = world()
    assert run_search(storage, again) == alone
    assert again.calls == []


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("kind", PLACES)
def test_of_several_values_the_first_recorded_stands(kind: str, tmp_path: Path) -> None:
    """Processes that record at the same moment."""
    storage = place(kind, tmp_path)
    run_search(storage, world(), trials=1)
    children = [start_process(record, storage, float(n)) for n in range(4)]
    for _, pipe in children:
        pipe.recv()  # it has opened the study
    for _, pipe in children:
        pipe.send("go")
    returned = [pipe.recv() for _, pipe in children]
    assert all(values == returned[0] for values in returned)
    for process, _ in children:
        process.join()


def record(pipe: Connection, storage: str, value: float) -> None:
    with open_storage(storage) as backend:
        study = optuna.load_study(study_name="study", storage=backend)
        pipe.send("ready")
        pipe.recv()
        pipe.send([first_recorded(study, f"key {n}", value) for n in range(20)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_a_killed_search_resumes_and_repeats_only_unfinished_trials(
    kind: str, tmp_path: Path, alone: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, wait = place(kind, tmp_path), random.Random(kind)
    began: list[str] = []
    for _ in range(3):
        process = start(storage, 0.1)
        began.append(process.stdout.readline())
        time.sleep(wait.uniform(0, 0.3))
        process.kill()
        process.wait()
        began += process.stdout.read().splitlines()
    again, slept, sleep = world(), list[float](), time.sleep

    def counted(seconds: float) -> None:
        slept.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", counted)
    assert run_search(storage, again) == alone
    assert sum(slept) < 20  # dead workers are not waited for
    assert len(began) + len(again.calls) <= len(alone.trials) + 3


@pytest.mark.slow
def test_a_trial_of_a_killed_process_is_failed_and_repeated(tmp_path: Path, alone: SearchResult) -> None:
    storage = place("journal", tmp_path)
    process = start(storage, 60)
    process.stdout.readline()  # it has begun to decode
    process.kill()
    process.wait()
    assert run_search(storage, world()) == alone
    states = [t.state.name for t in optuna.load_study(study_name="study", storage=journal(storage)).trials]
    assert states == ["FAIL"] + ["COMPLETE"] * len(alone.trials)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "garbled", "emptied of a line's end", "other bytes"])
def test_a_damaged_journal_is_renamed_and_begun_anew(damage: str, tmp_path: Path, alone: SearchResult) -> None:
    path = tmp_path / "study.log"
    run_search(str(path), world())
    content = path.read_bytes()
    middle = len(content) // 2
    spoilt = {
        "truncated": content[: middle + 7].rstrip(b"\n"),
        "garbled": content[:middle] + b"\x00\xff{}" + content[middle + 4 :],
        "emptied of a line's end": content.replace(b"\n", b"", 1),
        "other bytes": b"SQLite format 3\x00" * 20,
    }[damage]
    assert spoilt != content
    path.write_bytes(spoilt)
    again = world()
    with pytest.warns(UserWarning, match=r"study\.log is damaged; it is now .*study\.log\.damaged-1"):
        assert run_search(str(path), again) == alone
    assert (tmp_path / "study.log.damaged-1").read_bytes() == spoilt
    assert len(again.calls) == len(alone.trials)
    assert run_search(str(path), world()) == alone


def test_a_journal_within_a_file_is_refused_before_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = usage_error(lambda: check_storage(str(tmp_path / "file" / "study.log")))
    assert f"cannot be used: Not a directory ('{tmp_path / 'file'}')" in message


@pytest.mark.slow
def test_a_database_that_goes_away_during_a_search_is_named(tmp_path: Path) -> None:
    """Then optuna can neither store a trial's result nor read its state."""
    of = world()

    def drop(setting: Setting) -> None:
        if len(of.calls) == 2:
            with sqlite3.connect(tmp_path / "study.db") as database:
                database.execute("DROP TABLE trials")

    of.before = drop
    message = usage_error(lambda: run_search(place("sqlite", tmp_path), of))
    assert message.endswith("no such table: trials); free or repair it, and the same command resumes")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite+pysqlite:///"])
def test_memory_of_sqlite_is_refused(url: str) -> None:
    assert usage_error(lambda: check_storage(url)).startswith(f"the study's storage {url} is SQLite's memory")


@pytest.mark.slow
def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    """Nothing writes to it, so reading it would wait for ever."""
    os.mkfifo(tmp_path / "ff")
    opening = (
        "from pathlib import Path\n"
        "from fsd_calib.search.study_storage import open_journal\n"
        "open_journal(Path(sys.argv[1]))"
    )
    assert "cannot be used: it is not a regular file" in usage_error_of(opening, tmp_path / "ff")


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("other", [replace(SPACE, draft_lengths=(2, 6)), replace(SPACE, policies=(None, MOVED))])
def test_a_study_of_another_search_is_refused_by_name(other: Space, tmp_path: Path) -> None:
    storage = place("sqlite", tmp_path)
    run_search(storage, world(), trials=1)
    of = world()
    said = usage_error(
        lambda: search(of.evaluator(), of.target(), Formula(), other, GOAL, storage, "study", 5, Silent())
    )
    assert "the study 'study' in sqlite:///" in said
    assert "another space" in said
    assert "give another study name or storage" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("storage", "why"),
    [
        ("nosuch://somewhere/x", "cannot be opened"),
        ("sqlite:////nowhere/at/all/study.db", "unable to open database file"),
        ("/proc/nowhere/study.log", "cannot be used"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_named(storage: str, why: str) -> None:
    said = usage_error(lambda: run_search(storage, world()))
    assert storage in said
    assert why in said


@pytest.mark.slow
def test_a_password_is_not_shown() -> None:
    assert "secret" not in usage_error(lambda: run_search("nosuch://me:secret@somewhere/x", world()))


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    with start_postgres(tmp_path) as server:
        yield server


@pytest.mark.slow
def test_two_processes_share_one_study_in_postgresql(postgres: Postgres, alone: SearchResult) -> None:
    share_the_work(postgres.url, alone)


@pytest.mark.slow
def test_slow_processes_end_with_the_same_trials_in_postgresql(postgres: Postgres) -> None:
    end_with_the_same_trials(postgres.url)


@pytest.mark.slow
def test_a_killed_search_resumes_in_postgresql(postgres: Postgres, alone: SearchResult) -> None:
    process = start(postgres.url, 60)
    process.stdout.readline()
    process.kill()
    process.wait()
    assert run_search(postgres.url, world()) == alone


def test_the_space_is_the_workers(alone: SearchResult) -> None:
    assert {t.setting.score for t in alone.trials} == set(SPACE.scores)


TRIALS = 4


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("finished") / "study.sqlite"
    run_search(f"sqlite:///{path}", world(), TRIALS)
    return path.read_bytes()


@pytest.fixture
def database(finished: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "study.sqlite"
    path.write_bytes(finished)
    return path


def change(database: Path, statement: str, *values: Any) -> str:
    """Returns what a search with the changed study ends with."""
    with sqlite3.connect(database) as file:
        assert file.execute(statement, values).rowcount > 0
    return usage_error(lambda: run_search(f"sqlite:///{database}", world(), TRIALS))


@pytest.mark.thinned(every=5)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trial_values SET value = value + 1 WHERE trial_id = 2",
        "UPDATE trial_params SET param_value = param_value + 0.01 WHERE trial_id = 2 AND param_name = 'logit_share'",
        "UPDATE trial_user_attributes SET value_json = '0.5' WHERE trial_id = 2 AND key = 'retention'",
        "DELETE FROM trial_user_attributes WHERE trial_id = 2 AND key = 'churn'",
        "DELETE FROM trial_system_attributes WHERE trial_id = 2 AND key = 'digest'",
    ],
)
def test_a_changed_trial_ends_the_search(statement: str, database: Path) -> None:
    said = change(database, statement)
    assert said.startswith("trial 1 in the study's storage does not match its digest")
    assert "give another one" in said


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trials SET state = 'FAIL' WHERE trial_id = 2",
        "UPDATE trials SET state = 'WAITING' WHERE trial_id = 2",
        "DELETE FROM trials WHERE trial_id = 2",
    ],
)
def test_a_trial_that_is_gone_ends_the_search(statement: str, database: Path) -> None:
    assert "one of the trials 0, 1, 2, 3" in change(database, statement)


@pytest.mark.thinned(every=6)
@pytest.mark.parametrize(
    "record", ["null", '"x"', "[1]", '{"value": []}', '{"value": [0], "digest": "0"}', '{"value": [0], "digest": 1}']
)
def test_a_damaged_record_ends_the_search(record: str, database: Path) -> None:
    said = change(database, "UPDATE trial_user_attributes SET value_json = ? WHERE key LIKE 'ended%'", record)
    assert said.startswith("the record 'ended with at most 4 trials' in the study's storage does not match its digest")


@pytest.mark.thinned(every=5)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trial_user_attributes SET value_json = '{' WHERE trial_id = 2",
        "UPDATE trial_user_attributes SET value_json = '{' WHERE key LIKE 'ended%'",
        "UPDATE trials SET state = 'NONE' WHERE trial_id = 2",
        "UPDATE trial_params SET distribution_json = '{}' WHERE trial_id = 2",
        "UPDATE trial_params SET distribution_json = '[' WHERE trial_id = 2",
    ],
)
def test_a_row_that_cannot_be_read_is_an_error_in_one_line(statement: str, database: Path) -> None:
    said = change(database, statement)
    assert str(database) in said
    assert "failed" in said


SHAPES = [
    "postgresql://user:{}@host/db", "postgresql:/user:{}@host/db", "postgres//user:{}@host/db",
    "postgresql:user:{}@host/db", "postgres://user:{}@host:5432/db", "mysql+foo://u:{}@h/x", "mysql+://u:{}@h/x",
    "sqlite:///u:{}@h/x", "sqlite:///u:{}@h",
    "sqlite+pysqlite:////u:{}@h", "sqlite://u:{}@h/x", "sqlite:/u:{}@h/x", "user:{}@host/db", "//user:{}@host/db",
    "postgresql://user:{}", "postgresql://user:{}/db", "postgresql://:{}@host/db", "postgresql://{}@host/db",
    "postgresql://user:{}@host:port/db", "postgresql://user:{}@[::1]/db", "postgresql://user:{}@[::1/db",
    "postgresql://user:{}@host/db?sslmode=x", "postgresql://host/db?user=u&password={}",
    " postgresql://user:{}@host/db", "postgresql ://user:{}@host/db", "nosuch://user:{}@host/db",
    "://user:{}@host/db", "user:{}@host", "oracle:thin:user/{}@host", "postgresql://user:{} @host/db",
    "redis:{}@host", "a b://user:{}@host", "mysql+pymysql:user:{}@host/db", "POSTGRESQL:/user:{}@HOST/DB",
    "host=h user=u password={}", "Driver=x;Pwd={};", "x PASSWORD = {}",
]  # fmt: skip
PASSWORDS = st.text(string.ascii_letters + string.digits + "@:/?#%&[]+= éß\\'\"!$*", min_size=1, max_size=12)


def secret(middle: str) -> str:
    """A password that no message holds by chance; its parts are marked, so that a half shown is found, too."""
    return f"Zq7{middle}9Xk"


@pytest.mark.thinned(every=12)
@pytest.mark.parametrize("shape", SHAPES)
@given(middle=PASSWORDS)
@example(middle="@")
@example(middle="/")
@example(middle="%40")
@example(middle="://")
@settings(max_examples=60, deadline=None)
def test_a_password_is_never_shown(shape: str, middle: str) -> None:
    url = shape.format(secret(middle))
    assert is_url(url)
    for shown in (without_password(url), reason(url, ValueError(f"cannot connect to {url!r} by {secret(middle)}"))):
        assert "Zq7" not in shown
        assert "9Xk" not in shown


@pytest.mark.thinned(every=11)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("password", ["Zq79Xk", "Zq7@9Xk"])
def test_a_search_refuses_a_bad_url_without_the_password(
    shape: str, password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fsd_calib.search.study_storage._TRIES", 1)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = usage_error(lambda: run_search(shape.format(password), world(), trials=1))
    assert "Zq7" not in said
    assert "9Xk" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "path",
    ["study.log", "/data/study.log", "./user:pw@host/study.log", "C:/data/me@home/study.log", "C:\\data\\study.log",
     "~/a:b@c", "./a://b", "runs@home/study.log", "12:30/study.log", "sqlite.log", "postgresql/study.log"],
)  # fmt: skip
def test_a_path_is_no_url(path: str) -> None:
    assert not is_url(path)
    assert without_password(path) == path


def test_what_may_be_shown_is_shown() -> None:
    assert without_password("sqlite:////data/study.db") == "sqlite:////data/study.db"
    assert without_password("postgresql://me:secret@host/db").startswith("postgresql URL (not shown")
    refused = OSError('connection to "host" failed: password authentication failed for user "me"\nmore')
    said = reason("postgresql://me:secret@host/db", refused)
    assert said == 'connection to "***" failed: password authentication failed for user "***"'


@pytest.mark.parametrize("storage", ["sqlite:////data/study.db", "postgresql://me:secret@host/db"])
def test_bytes_that_a_driver_quotes_do_not_act_on_a_terminal(storage: str) -> None:
    damaged = ValueError('malformed schema: unrecognized token: "\x1a\x1b[2J"')
    assert reason(storage, damaged) == r'malformed schema: unrecognized token: "\x1a\x1b[2J"'
