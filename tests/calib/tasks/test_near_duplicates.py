"""Near-duplicates: the same story with other names and numbers is found, the same subject is not."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_calib.tasks.base import Example
from fsd_calib.tasks.split import BOUND, Parts, near_duplicates, parts_of
from fsd_collectors.split import content_key
from support.calibration.task_files import task_of
from support.paths import GSM8K

STORY = (
    "{0} bought {1} packages of cat food and {2} packages of dog food for the shelter. Each package of cat food held "
    "{3} tins, and each package of dog food held half as many. How many tins did {0} bring to the shelter altogether?"
)
KIM, CHAD = STORY.format("Kimberly", 8, 6, 12), STORY.format("Chad", 5, 2, 18)
CATS = "Kimberly has two cats and a dog. The dog eats twice what a cat eats. How many tins does she need in a week?"
WORDS = ["".join(Random(i).choices("abdefgiklmnoprstu", k=5)) for i in range(500)]
FILL = [" ".join(Random(i).choices(WORDS, k=30)) for i in range(600)]  # texts that share words, but nothing else


def test_other_names_and_numbers_are_a_near_duplicate() -> None:
    found = near_duplicates([CATS, KIM, *FILL[:5]], [CHAD, *FILL[300:]])
    assert found is not None
    assert found.closest == (KIM, CHAD)
    assert BOUND <= found.similarity < 1
    assert found.count == 1


def test_the_same_subject_is_not_a_near_duplicate() -> None:
    assert near_duplicates([CATS], [CHAD, *FILL[300:]]) is None


def test_all_texts_are_compared_across_chunks() -> None:
    texts = [*FILL[:299], KIM]
    found = near_duplicates(texts, [CHAD, CATS])
    assert found is not None
    assert (found.count, found.closest) == (1, (KIM, CHAD))


@settings(max_examples=25)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.data())
def test_equal_texts_of_any_length_are_near_duplicates(texts: list[str], data: st.DataObject) -> None:
    found = near_duplicates([data.draw(st.sampled_from(texts))], texts)
    assert found is not None
    assert found.similarity == pytest.approx(1)


def test_case_does_not_matter() -> None:
    found = near_duplicates([KIM.upper()], [KIM, *FILL[:5]])
    assert found is not None
    assert found.similarity == pytest.approx(1)


def test_empty_sets_have_no_near_duplicates() -> None:
    assert near_duplicates([], [KIM]) is near_duplicates([KIM], []) is near_duplicates([KIM], ["2³?"]) is None


def test_near_duplicates_between_given_parts_are_noted() -> None:
    tuning, certification = [CHAD, *FILL[:30]], [KIM, *FILL[30:60]]
    examples = [Example(question, "#### 1", "tuning") for question in tuning]
    examples += [Example(question, "#### 1", "certification") for question in certification]
    (note,) = _parts(examples).notes
    assert "1 of 31 certification problems closely resemble" in note
    assert KIM[:40] in note
    assert CHAD[:40] in note
    assert "\n" not in note


def test_near_duplicates_between_hashed_parts_are_not_noted() -> None:
    stories = [STORY.format(name, 8, 6, 12) for name in ("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal")]
    drawn = _parts([Example(question, "#### 1") for question in (*stories, *FILL[:50])])
    (note,) = drawn.notes
    assert "closely resemble another" in note  # within the certification part
    examples = [Example(p.question, p.reference, "tuning") for p in drawn.tuning]
    examples += [Example(p.question, p.reference, "certification") for p in drawn.certification]
    assert any("closely resemble a tuning problem" in note for note in _parts(examples).notes)  # given by the source


def _parts(examples: list[Example]) -> Parts:
    return parts_of(task_of(examples))


@pytest.mark.slow
def test_gsm8k_has_three_near_duplicates() -> None:
    """Each is one story with other names and numbers; see `BOUND`."""
    if not GSM8K.exists():
        pytest.skip("GSM8K's files are not beside the checkout")
    train, test = (
        [content_key(json.loads(line)["question"]) for line in (GSM8K / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "test")
    )
    found = near_duplicates(test, train)
    assert found is not None
    assert (found.count, round(found.similarity, 2)) == (3, 0.87)
    assert [text.partition(" bought stamps")[0] for text in found.closest] == ["Max", "Bella"]
