"""Problems that cannot be asked are left out and named; references that cannot be met are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsd_calib.calibration.memory import context_of, usable
from fsd_calib.tasks import load_task
from fsd_common.errors import UsageError
from fsd_data import pair_paths
from fsd_decoding.loading import load_tokenizer
from fsd_decoding.model_options import USUAL
from fsd_decoding.text import prompt_tokens

TASK = load_task("arithmetic", limit=20)


@pytest.fixture
def notes() -> list[str]:
    return []


def test_prompts_that_fill_the_context_are_left_out_and_named(notes: list[str]) -> None:
    tokenizer = load_tokenizer(str(pair_paths()[0]))
    lengths = [len(prompt_tokens(tokenizer, problem.prompt)) for problem in TASK.problems]
    context = sorted(lengths)[-3]
    task = replace(TASK, max_new_tokens=1)
    kept = usable(task, tokenizer, context, notes.append)
    left = [problem for problem, length in zip(TASK.problems, lengths, strict=True) if length >= context]
    assert set(TASK.problems) - set(kept.problems) == set(left) != set()
    assert notes == [
        f"{len(left)} of 20 prompts fill the models' context of {context} tokens and are left out (ids "
        f"{', '.join(str(problem.id) for problem in left)})"
    ]
    with pytest.raises(UsageError, match=r"^all prompts of task arithmetic fill the models' context of 3 tokens"):
        usable(TASK, tokenizer, 3, notes.append)


def test_prompts_whose_texts_the_context_may_cut_short_are_named_and_kept(notes: list[str]) -> None:
    tokenizer = load_tokenizer(str(pair_paths()[0]))
    lengths = [len(prompt_tokens(tokenizer, problem.prompt)) for problem in TASK.problems]
    context = max(lengths) + TASK.max_new_tokens - 1
    near = [problem for problem, length in zip(TASK.problems, lengths, strict=True) if length == max(lengths)]
    kept = usable(TASK, tokenizer, context, notes.append)
    assert [(p.id, p.room) for p in kept.problems] == [(p.id, 159 if p in near else None) for p in TASK.problems]
    assert usable(TASK, tokenizer, context + 1, notes.append) == TASK
    assert notes == [
        f"{len(near)} of 20 prompts leave less than 160 tokens of the models' context of {context}, which may cut "
        f"their texts short (ids {', '.join(str(problem.id) for problem in near)})"
    ]


def test_a_prompt_that_its_start_token_makes_fill_the_context_is_left_out(notes: list[str]) -> None:
    class Bytes:
        """A tokenizer of bytes, with a start token before them."""

        bos_token = "<s>"

        def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
            return {"input_ids": [0] * add_special_tokens + list(text.encode())}

    task = replace(TASK, max_new_tokens=1)
    shortest = min(len(problem.prompt.encode()) for problem in task.problems)
    kept = usable(task, Bytes(), shortest + 2, notes.append)
    assert {len(problem.prompt.encode()) for problem in kept.problems} == {shortest}
    with pytest.raises(UsageError, match="all prompts"):
        usable(task, Bytes(), shortest + 1, notes.append)


def test_all_is_kept_where_all_fits(notes: list[str]) -> None:
    target, _ = map(str, pair_paths())
    context = context_of(target, USUAL)
    assert context == 512
    assert usable(TASK, load_tokenizer(target), context, notes.append) == TASK
    assert usable(TASK, None, None, notes.append) == TASK
    assert notes == []


def test_references_that_no_text_meets_are_named_and_kept(notes: list[str]) -> None:
    problems = tuple(replace(p, reference="no number") if i % 3 == 0 else p for i, p in enumerate(TASK.problems))
    task = replace(TASK, problems=problems)
    assert usable(task, None, None, notes.append) == task
    (note,) = notes
    found, _, ids = note.partition(" (ids ")
    assert found == (
        "7 of 20 references are wrong by the task's own grader, so, if they are answers, no text is right there"
    )
    assert ids.startswith(str(problems[0].id))
    assert note.endswith(" and 2 others); fsd-tasks check names them")
    assert usable(replace(task, keys_are_texts=False), None, None, notes.append).problems == problems
    assert len(notes) == 1
