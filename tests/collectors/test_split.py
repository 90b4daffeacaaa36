"""The split: the same problem is always in the same part."""

from __future__ import annotations

import itertools
import math
import unicodedata
from dataclasses import dataclass
from random import Random
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_collectors.split import CERTIFICATION_SHARE, content_key, row_hash, tuning_and_certification


@dataclass(frozen=True)
class Asked:
    question: str
    part: Literal["tuning", "certification"] | None = None


@dataclass(frozen=True)
class Choosing(Asked):
    choices: tuple[str, ...] = ()


PARTS = st.sampled_from(["tuning", "certification", None])
PROBLEMS = st.lists(st.builds(Asked, st.text(), PARTS), unique_by=lambda problem: content_key(problem.question))
MANY = [Asked(f"How many apples are {i} apples?") for i in range(20_000)]


@given(PROBLEMS, st.randoms(use_true_random=False))
def test_the_split_does_not_depend_on_order_or_other_problems(problems: list[Asked], random: Random) -> None:
    tuning, certification = tuning_and_certification(problems)
    some = random.sample(problems, len(problems) // 2)
    tuning_of_some, certification_of_some = tuning_and_certification(some)
    assert set(tuning_of_some) == set(tuning) & set(some)
    assert set(certification_of_some) == set(certification) & set(some)


@given(PROBLEMS, st.randoms(use_true_random=False))
def test_every_problem_is_in_one_part_ordered_by_hash(problems: list[Asked], random: Random) -> None:
    tuning, certification = tuning_and_certification(problems)
    assert not set(tuning) & set(certification)
    assert len(tuning) + len(certification) == len(problems)
    shuffled = random.sample(problems, len(problems))
    assert tuning_and_certification(shuffled) == (tuning, certification)


@given(PROBLEMS, st.sampled_from(["{} ", "\n {}", "\xa0{}\t\t"]))
def test_white_space_and_unicode_form_do_not_change_the_part(problems: list[Asked], form: str) -> None:
    decomposed = [Asked(form.format(unicodedata.normalize("NFD", p.question)), p.part) for p in problems]
    sides, others = (
        [[content_key(problem.question) for problem in part] for part in tuning_and_certification(asked)]
        for asked in (problems, decomposed)
    )
    assert sides == others


def test_choices_are_part_of_the_key() -> None:
    """All in one part would have probability .8^64 = 6e-7."""
    problems = [Choosing("Which?", None, ("yes", f"no {i}")) for i in range(64)]
    tuning, certification = tuning_and_certification(problems)
    assert tuning
    assert certification


@given(PROBLEMS)
def test_parts_named_by_the_source_are_kept(problems: list[Asked]) -> None:
    tuning, certification = tuning_and_certification(problems)
    assert all(problem.part != "certification" for problem in tuning)
    assert all(problem.part != "tuning" for problem in certification)


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("share", [CERTIFICATION_SHARE, 0.5, 0.05])
def test_the_certification_share_is_met(share: float) -> None:
    """Five standard deviations of a fair draw: another salt would fail with probability 6e-7."""
    _, certification = tuning_and_certification(MANY, share)
    allowed = 5 * math.sqrt(share * (1 - share) * len(MANY))
    assert abs(len(certification) - share * len(MANY)) < allowed


@pytest.mark.parametrize(("share", "certified"), [(0.0, 0), (1.0, 100)])
def test_shares_of_zero_and_one(share: float, certified: int) -> None:
    assert len(tuning_and_certification(MANY[:100], share)[1]) == certified


def test_the_split_equals_that_of_earlier_versions() -> None:
    """A changed split would let a later run search on what an earlier one certified with."""
    _, certification = tuning_and_certification(MANY[:16])
    assert sorted(MANY.index(problem) for problem in certification) == [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14]


@dataclass(frozen=True)
class Grouped(Asked):
    group: int | None = None


@given(st.lists(st.tuples(st.text(max_size=9), st.integers(0, 9)), unique_by=lambda one: content_key(one[0])))
def test_problems_of_a_group_are_in_one_part_side_by_side(drawn: list[tuple[str, int]]) -> None:
    parts = tuning_and_certification([Grouped(question, None, group) for question, group in drawn])
    found = [[problem.group for problem in part] for part in parts]
    assert not {*found[0]} & {*found[1]}
    for groups in found:
        assert len(list(itertools.groupby(groups))) == len({*groups})


@pytest.mark.parametrize(("in_json", "elsewhere"), [
    ({"flag": True}, {"flag": "True"}), ({"flag": True}, {"flag": "true"}),
    ({"choices": [1, 2.5]}, {"choices": [1.0, 2.5]}),  # Parquet has one type a column
    ({"choices": ["1", "é"]}, {"choices": '["1", "é"]'}),  # CSV has texts
    ({"of": {"a": 1}}, {"of": {"a": 1.0, "b": None}}),  # Parquet has all fields in all rows
    ({"of": {}, "listed": []}, {"of": {"a": None}, "listed": ""}),
    ({"code": "[x] and {y}"}, {"code": " [x] and  {y}"}),
])  # fmt: skip
def test_a_row_is_the_same_in_all_formats(in_json: dict[str, object], elsewhere: dict[str, object]) -> None:
    asked = {"question": "Which?"}
    assert row_hash(asked | in_json) == row_hash(asked | elsewhere)


@pytest.mark.parametrize(("one", "other"), [
    ({"choices": ["a", "b"]}, {"choices": ["b", "a"]}), ({"choices": ["a", "b"]}, {"choices": ["a b"]}),
    ({"of": {"a": 1}}, {"of": {"b": 1}}), ({"flag": True}, {"flag": False}), ({"flag": True}, {"flag": 1}),
    ({"name": "007"}, {"name": 7}), ({"a": "x"}, {"b": "x"}),
])  # fmt: skip
def test_other_values_are_another_row(one: dict[str, object], other: dict[str, object]) -> None:
    assert row_hash(one) != row_hash(other)
