"""Generated problems: correct answers, GSM8K's format, variety, and disjoint parts."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from random import Random

import pytest

from fsd_data.problems import STORIES, GeneratedProblem, fresh, generate, part_of, say, weights

CALCULATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")


def some(count: int, seed: int = 0, **how: str) -> list[GeneratedProblem]:
    return list(itertools.islice(generate(seed, **how), count))  # type: ignore[arg-type]


@pytest.mark.slow
def test_seeds_have_no_problem_in_common() -> None:
    of_seed = {seed: {p.question for p in itertools.islice(fresh(seed), 3000)} for seed in (0, 1, 4, 10)}
    assert [len(questions) for questions in of_seed.values()] == [3000] * 4
    assert not any(one & other for one, other in itertools.combinations(of_seed.values(), 2))
    assert of_seed[0] == {p.question for p in some(3000)}
    assert any({p.question for p in some(3000, one)} & of_seed[0] for one in (1, 4, 10))  # as streams, they have


def test_every_calculation_is_right_and_leads_to_the_answer() -> None:
    for problem in some(2000):
        *steps, closing, last = problem.answer.split("\n")
        found = [CALCULATION.search(step) for step in steps]
        assert all(found), problem.answer
        results = []
        for a, op, b, result in (match.groups() for match in found if match):
            exact = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / int(b)}[op]
            assert exact == int(result) > 0
            results.append(result)
        assert last == f"#### {results[-1]}"
        assert closing.endswith(f" {results[-1]}.")
        assert problem.steps == len(steps)


def test_every_operand_is_in_the_question_or_an_earlier_result() -> None:
    for problem in some(500):
        known = set(re.findall(r"\d+", problem.question))
        for a, _, b, result in CALCULATION.findall(problem.answer):
            assert {a, b} <= known
            known.add(result)


def test_problems_are_varied() -> None:
    problems = some(3000)
    assert {p.family for p in problems} == {story.name for story in STORIES}
    assert len(STORIES) >= 10
    assert Counter(p.steps for p in problems).keys() == {2, 3, 4, 5}
    assert {op for p in problems for _, op, _, _ in CALCULATION.findall(p.answer)} == set("+-*/")
    assert len({p.question for p in problems}) == len(problems)


def test_the_same_seed_gives_the_same_problems() -> None:
    assert some(50, seed=3) == some(50, seed=3)
    assert not {p.question for p in some(50, seed=3)} & {p.question for p in some(50, seed=4)}


def test_no_question_is_in_both_parts() -> None:
    for part in ("train", "held-out"):
        assert {part_of(p.question) for p in some(300, part=part)} == {part}


@pytest.mark.slow
def test_target_and_draft_prefer_different_words() -> None:
    """Three openers, 52 % and 20 %: over 3,000 solutions the gap is 18 standard errors wide."""
    first = {mix: Counter(p.answer.split(",")[0] for p in some(3000, mix=mix)) for mix in ("target", "draft")}
    assert first["target"].most_common(1)[0][0] == first["draft"].most_common()[-1][0] == "First"
    assert first["target"].keys() == first["draft"].keys()


@pytest.mark.parametrize("alternatives", [1, 2, 3])
def test_weights_are_probabilities_and_reversed_for_the_draft(alternatives: int) -> None:
    target, draft, even = (weights(alternatives, mix) for mix in ("target", "draft", "even"))
    assert sum(target) == pytest.approx(1)
    assert target == draft[::-1]
    assert even == (pytest.approx(1 / alternatives),) * alternatives


def test_brackets_and_names_are_filled_in() -> None:
    said = {say("[One|Two] for {who}", Random(seed), {"who": "Ana"}) for seed in range(20)}
    assert said == {"One for Ana", "Two for Ana"}


def test_the_command_writes_gsm8k_lines() -> None:
    command = [sys.executable, "-m", "fsd_data.problems", "--count", "5", "--seed", "7"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"question": p.question, "answer": p.answer} for p in some(5, 7)]
