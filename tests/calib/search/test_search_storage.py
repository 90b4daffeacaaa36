"""Where a search is written down: journals and databases, several processes, processes that are killed, damage."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import optuna
import pytest

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.progress import Silent
from fsd_calib.search.search import Searched, freeze, search, tell_recounted
from fsd_calib.search.space import Space
from fsd_calib.search.trial import setting
from support.messages import usage_error
from support.paths import ROOT
from support.postgres import Postgres, start_postgres
from support.search_worker import GOAL, SPACE, run_search, world
from support.simulated_worlds import Formula, World

WORKER = ROOT / "tests" / "support" / "search_worker.py"
PLACES = ["journal", "sqlite"]


def place(kind: str, folder: Path) -> str:
    return str(folder / "study.log") if kind == "journal" else f"sqlite:///{folder}/study.db"


def start(storage: str, seconds: float) -> subprocess.Popen[str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, str(WORKER), storage, str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )


def lines(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


@pytest.fixture(scope="module")
def alone() -> Searched:
    return run_search(None, world())


@pytest.mark.parametrize("kind", PLACES)
def test_finished_trials_are_not_repeated(kind: str, tmp_path: Path, alone: Searched) -> None:
    storage = place(kind, tmp_path)
    assert len(run_search(storage, world(), trials=3).tried) == 3
    again = world()
    assert run_search(storage, again) == alone
    assert len(again.calls) == len(alone.tried) - 3
    finished = world()
    assert run_search(storage, finished) == alone
    assert finished.calls == []


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> optuna.Study:
    url = place("sqlite", tmp_path_factory.mktemp("study"))
    run_search(url, world())
    return optuna.load_study(study_name="study", storage=url)


def test_the_study_holds_parameters_values_and_constraints(study: optuna.Study, alone: Searched) -> None:
    assert [t.value for t in study.trials] == [t.value for t in alone.tried]
    for trial, tried in zip(study.trials, alone.tried, strict=True):
        assert list(trial.params) == ["rule", "divergence", "draft_length", "policy", "draft", "logit_share"]
        assert trial.constraints["shortfall"] == tried.shortfall


def test_a_trial_says_in_attributes_what_was_tried_and_what_came_of_it(study: optuna.Study, alone: Searched) -> None:
    for trial, tried in zip(study.trials, alone.tried, strict=True):
        said, of = trial.user_attrs, tried.configuration
        assert (said["rule"], said["divergence"], said["draft_length"]) == (of.rule, of.divergence, of.draft_length)
        assert (said["threshold"], said["problems"]) == (of.threshold, tried.problems)
        assert (said["tokens_per_second"], said["retention"]) == (tried.tokens_per_second, tried.retention)
        assert {"policy", "draft"}.isdisjoint(said)  # there is one of each
        target, fuzzy = world().target().correct[: tried.problems], world().correct(of)[: tried.problems, None]
        assert tried.lost == said["lost"] == pytest.approx((target & ~fuzzy).mean())
        assert tried.gained == said["gained"] == pytest.approx((fuzzy & ~target).mean())
        assert said["churn"] == pytest.approx((target != fuzzy).mean())
    assert any(t.lost > 0 for t in alone.tried)


def test_the_best_trial_is_feasible(tmp_path: Path) -> None:
    """Though an infeasible one is faster."""
    url, of = place("sqlite", tmp_path), World(count=600, seed=1)
    tried = search(of.evaluator(), of.target(), Formula(), SPACE, GOAL, url, "study", 12, Silent()).tried
    best = max((t for t in tried if t.feasible), key=lambda t: t.value)
    assert max(t.value for t in tried) > best.value
    assert optuna.load_study(study_name="study", storage=url).best_trial.value == best.value


def test_dashboards_find_which_trials_are_infeasible(study: optuna.Study, alone: Searched) -> None:
    """optuna-dashboard 0.21 reads the list that samplers of Optuna 4 wrote: _serializer.py, CONSTRAINTS_KEY."""
    read = [trial.system_attrs.get("constraints", []) for trial in study.trials]
    assert [all(value <= 0 for value in values) for values in read] == [t.feasible for t in alone.tried]
    assert not all(t.feasible for t in alone.tried)


@pytest.mark.parametrize("kind", PLACES)
def test_the_study_says_what_freezing_counted_on_more_problems(kind: str, tmp_path: Path) -> None:
    storage, of = place(kind, tmp_path), World(count=600, seed=1)
    evaluator, target, forecast = of.evaluator(), of.target(), Formula()
    found = search(evaluator, target, forecast, SPACE, GOAL, storage, "study", 12, Silent())
    frozen = freeze(found, SPACE, evaluator, target, forecast, GOAL)
    tell_recounted(found, evaluator, target, forecast, storage, "study")
    opened = storage if kind == "sqlite" else journal(storage)
    said = optuna.load_study(study_name="study", storage=opened)
    whole = [t.user_attrs for t in said.trials if t.user_attrs["problems"] == of.count]
    more = [attributes for name, attributes in said.user_attrs.items() if name.startswith("recounted ")]
    assert all(one["problems"] == of.count for one in more)
    assert more
    for configuration in frozen:
        (one,) = [a for a in whole + more if _is_of(a, configuration)]
        assert one["tokens_per_second"] == forecast.measured(evaluator.measure(configuration))


def _is_of(attributes: dict[str, Any], configuration: Configuration) -> bool:
    return setting(configuration).items() <= attributes.items()


def journal(path: str) -> optuna.storages.JournalStorage:
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(path))


def share_the_work(storage: str, alone: Searched) -> None:
    """Two processes; each takes some trials, none is done twice, and the winner is as good."""
    workers = [start(storage, 0.4) for _ in range(2)]
    said = [lines(worker).read().splitlines() for worker in workers]
    assert [worker.wait() for worker in workers] == [0, 0]
    decoded = [[line for line in of if not line.startswith("done")] for of in said]
    assert all(decoded)
    both = decoded[0] + decoded[1]
    assert len(set(both)) == len(both)
    assert said[0][-1] == said[1][-1] == f"done {len(both)}"
    together = run_search(storage, world())
    assert len(together.tried) == len(both)

    def fastest(of: Searched) -> float:
        return max(t.tokens_per_second for t in of.tried if t.feasible)

    assert fastest(together) >= 0.99 * fastest(alone)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_two_processes_share_one_study(kind: str, tmp_path: Path, alone: Searched) -> None:
    share_the_work(place(kind, tmp_path), alone)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_a_killed_search_goes_on_and_repeats_only_what_was_not_finished(
    kind: str, tmp_path: Path, alone: Searched
) -> None:
    storage, wait = place(kind, tmp_path), random.Random(kind)
    began: list[str] = []
    for _ in range(3):
        process = start(storage, 0.1)
        began.append(lines(process).readline())
        time.sleep(wait.uniform(0, 0.3))
        process.kill()
        process.wait()
        began += lines(process).read().splitlines()
    again, at = world(), time.monotonic()
    assert run_search(storage, again) == alone
    assert time.monotonic() - at < 20  # nobody waits for the dead
    assert len(began) + len(again.calls) <= len(alone.tried) + 3


def test_a_trial_of_a_killed_process_is_failed_and_tried_anew(tmp_path: Path, alone: Searched) -> None:
    storage = place("journal", tmp_path)
    process = start(storage, 60)
    lines(process).readline()  # it decodes
    process.kill()
    process.wait()
    assert run_search(storage, world()) == alone
    states = [t.state.name for t in optuna.load_study(study_name="study", storage=journal(storage)).trials]
    assert states == ["FAIL"] + ["COMPLETE"] * len(alone.tried)


@pytest.mark.parametrize("damage", ["truncated", "garbled", "emptied of a line's end", "other bytes", "a digit"])
def test_a_damaged_journal_is_named_set_aside_and_begun_anew(damage: str, tmp_path: Path, alone: Searched) -> None:
    path = tmp_path / "study.log"
    run_search(str(path), world())
    content = path.read_bytes()
    middle = len(content) // 2
    spoilt = {
        "truncated": content[: middle + 7].rstrip(b"\n"),
        "garbled": content[:middle] + b"\x00\xff{}" + content[middle + 4 :],
        "emptied of a line's end": content.replace(b"\n", b"", 1),
        "other bytes": b"SQLite format 3\x00" * 20,
        "a digit": content.replace(b'"problems":128', b'"problems":129', 1),
    }[damage]
    assert spoilt != content
    path.write_bytes(spoilt)
    again = world()
    with pytest.warns(UserWarning, match=r"study\.log is damaged; it is now .*study\.log\.damaged-1"):
        assert run_search(str(path), again) == alone
    assert (tmp_path / "study.log.damaged-1").read_bytes() == spoilt
    assert len(again.calls) == len(alone.tried)
    assert run_search(str(path), world()) == alone


@pytest.mark.parametrize("other", [replace(SPACE, draft_lengths=(2, 6)), replace(SPACE, policies=(None, "{}"))])
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


def test_a_password_is_not_shown() -> None:
    assert "secret" not in usage_error(lambda: run_search("nosuch://me:secret@somewhere/x", world()))


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    with start_postgres(tmp_path) as server:
        yield server


@pytest.mark.slow
def test_two_processes_share_one_study_in_postgresql(postgres: Postgres, alone: Searched) -> None:
    share_the_work(postgres.url, alone)


@pytest.mark.slow
def test_a_killed_search_goes_on_in_postgresql(postgres: Postgres, alone: Searched) -> None:
    process = start(postgres.url, 60)
    lines(process).readline()
    process.kill()
    process.wait()
    assert run_search(postgres.url, world()) == alone


def test_the_space_is_the_workers(alone: Searched) -> None:
    assert {t.configuration.divergence for t in alone.tried} == set(SPACE.divergences)
