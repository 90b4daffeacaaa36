"""What a manifest says: of which content the traces are, and of which models."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.tasks.base import Example, Problem, Task
from fsd_collectors.collection.run import collect_traces
from fsd_collectors.manifest import Manifest
from fsd_collectors.split import content_key
from support.calibration.task_files import task_of
from support.models import tiny_calibration
from support.models.tiny_pair import saved

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SPACES = st.text(" \t\n\r\v\f\x85\xa0\u2003\u3000", min_size=1)


@given(TEXTS)
def test_normalising_a_key_changes_nothing(text: str) -> None:
    assert content_key(content_key(text)) == content_key(text)


@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_unicode_form_does_not_matter(question: str, choices: list[str]) -> None:
    decomposed = [unicodedata.normalize("NFD", text) for text in (question, *choices)]
    assert content_key(decomposed[0], decomposed[1:]) == content_key(question, choices)


@given(st.lists(TEXTS), SPACES, SPACES, SPACES)
def test_white_space_does_not_matter(words: list[str], before: str, between: str, after: str) -> None:
    assert content_key(before + between.join(words) + after) == content_key(" ".join(words))


def test_other_texts_have_other_keys() -> None:
    asked: list[tuple[str, list[str]]] = [
        ("What is 2³?", []), ("What is 23?", []), ("what is 2³?", []), ("What is 2 ³?", []),
        ("Which?", ["ab", "c"]), ("Which?", ["a", "bc"]), ("Which?", ["c", "ab"]), ("Which?", ["ab c"]),
        ("Which?", ["ab", "c", ""]), ("Which?", [""]), ("Which?", []), ("Which? ab c", []), ("Which?\nab\nc", []),
    ]  # fmt: skip
    keys = [content_key(question, choices) for question, choices in asked]
    # The last is the last but one: a line break is white space in a question, and a border between choices.
    assert len(set(keys)) == len(keys) - 1


@given(TEXTS, st.lists(TEXTS), TEXTS, st.lists(TEXTS))
def test_equal_keys_mean_equal_texts(question: str, choices: list[str], other: str, others: list[str]) -> None:
    texts, more = ([content_key(text) for text in (q, *c)] for q, c in ((question, choices), (other, others)))
    assert (content_key(question, choices) == content_key(other, others)) == (texts == more)


@given(TEXTS)
def test_the_key_of_a_normalised_question_is_its_id(text: str) -> None:
    problem = _problem(content_key(text))
    assert problem.key == problem.id == _problem(text).key


def test_choices_are_in_id_and_key() -> None:
    problems = [_problem("Which?", *choices) for choices in [(), ("ab", "c"), ("a", "bc"), ("c", "ab")]]
    assert len({problem.id for problem in problems}) == len({problem.key for problem in problems}) == 4
    assert _problem("Which?", " ab", "c").id != problems[1].id
    assert _problem("Which?", " ab", "c").key == problems[1].key


def test_a_tasks_fingerprint_covers_choices() -> None:
    assert len({_task("Which?", *choices).fingerprint for choices in [(), ("ab", "c"), ("a", "bc"), ("c", "ab")]}) == 4


def _problem(question: str, *choices: str) -> Problem:
    return _task(question, *choices).problems[0]


def _task(question: str, *choices: str) -> Task:
    return task_of([Example(question, "#### 1", None, choices)])


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("traces")
    target, draft = saved(folder)
    return collect_traces(
        tiny_calibration.task(8), target=target, draft=draft, out=folder / "out", device="cpu",
        model_kwargs={"attn": "eager"}, draft_model_kwargs={"attn": "sdpa"},
    ).manifest  # fmt: skip


def changed(manifest: Manifest, attention: str) -> Manifest:
    """The manifest with another kind of attention in the target."""
    content = json.loads(manifest.model_dump_json())
    content["target"]["attention"] = attention
    return Manifest.model_validate_json(json.dumps(content))


def test_another_kind_of_attention_is_another_run(manifest: Manifest) -> None:
    assert (manifest.target.attention, manifest.draft.attention) == ("eager", "sdpa")
    assert manifest.difference(changed(manifest, "eager")) is None
    assert manifest.difference(changed(manifest, "sdpa")) == "target.attention 'sdpa', not 'eager'"
