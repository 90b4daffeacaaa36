"""Studies whose database was changed or damaged: the search says so, and never goes by what it holds."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from support.calibration.search_worker import run_search, world
from support.messages import usage_error

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
