"""What was looked at outside of a calibration certifies nothing afterwards, however it is asked then."""

from __future__ import annotations

from pathlib import Path

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.marking import LEDGER, Asked, mark
from fsd_calib.tasks.base import Example, Problem, problem_of
from fsd_decoding.models.fingerprint import family_id
from support.models.tiny_models import llama

ROW = {"question": "How many apples?", "answer": "#### 4", "id": 7}


def usable(target: object, folder: Path, *problems: Problem) -> list[bool]:
    with AttemptLedger(folder / LEDGER) as ledger:
        return [bool(free) for free in ledger.usable(family_id(target), problems, "run")]


def asked(text: str, row: dict[str, object] | None = None) -> Problem:
    return problem_of(Example(text, "#### 4", source=row), text)


def test_a_text_and_a_row_that_were_looked_at_certify_nothing(tmp_path: Path) -> None:
    target = llama(seed=1)
    mark(target, [Asked("How many  pears?"), Asked("Say how many apples there are.", ROW)], tmp_path)
    free = usable(
        target, tmp_path, asked("How many pears?"), asked("How many pears\n ?"), asked("How many apples?", ROW),
        asked("Apples, how many?", ROW), asked("How many apples?", ROW | {"id": 8}),
    )  # fmt: skip
    assert free == [False, True, False, False, True]
    assert usable(llama(seed=2), tmp_path, asked("How many pears?")) == [True]  # another target


def test_what_was_asked_is_not_kept(tmp_path: Path) -> None:
    mark(llama(seed=1), [Asked("My secret.", {"question": "My secret."})], tmp_path)
    with AttemptLedger(tmp_path / LEDGER) as ledger:
        assert ledger.other_questions(family_id(llama(seed=1)), []) == []
    assert b"secret" not in (tmp_path / LEDGER).read_bytes()
