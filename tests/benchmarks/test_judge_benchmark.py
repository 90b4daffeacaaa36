"""The benchmark of judges: rounds of a perfect judge, what a budget pays for, claims and tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import judge as benchmark
from fsd_common.errors import UsageError
from fsd_decoding.judging.features import FEATURES
from fsd_decoding.sampling import Sampling
from fsd_predictors.judging.training import Origin
from lib.common.timing import Ratio
from lib.judge.across import across
from lib.judge.designs import Made, made
from lib.judge.labels import within
from lib.judge.pair import forgetful
from lib.judge.perfect import perfect, rounds_of
from lib.judge.shown import table
from lib.rules.curves import Found


def counted(tokens: int, rejected: set[int], draft_length: int) -> int:
    """The rounds, token by token."""
    rounds, left = 0, 0
    for position in range(tokens):
        if left == 0:
            rounds, left = rounds + 1, draft_length + 1
        left = 0 if position in rejected and left > 1 else left - 1  # the last of a round is the target's own
    return rounds


@given(tokens=st.integers(0, 60), rejected=st.sets(st.integers(0, 59)), draft_length=st.integers(1, 9))
def test_rounds_of_a_text_end_where_a_token_is_rejected(tokens: int, rejected: set[int], draft_length: int) -> None:
    assert rounds_of(tokens, list(rejected), draft_length) == counted(tokens, rejected, draft_length)


def test_a_perfect_judge_rejects_what_is_harmful_alone() -> None:
    labels = pd.DataFrame({"problem": [1, 1, 2, 5], "position": [3, 5, 0, 1], "harmful": [False, True, True, True],
                           "probability": [1.0, 1.0, 1.0, 0.5]})  # fmt: skip
    texts = pd.DataFrame({"problem": [1, 2, 3, 5], "emitted": [9, 9, 9, 9], "correct": [True, True, False, True]})
    # with L = 8: [0..5] [6..8]; [0] [1..8]; [0..8] of the wrong one; of the last not all mismatches have a label
    every, half, none = perfect(labels, texts, 8, (1.0, 0.5, 0.0))
    assert every.value == pytest.approx(27 / 5)
    assert half.value == pytest.approx(27 / 4)
    assert none.value == pytest.approx(27 / 3)


def test_a_perfect_judge_gives_up_the_answers_that_cost_most() -> None:
    labels = pd.DataFrame({"problem": [1, 2, 2, 2], "position": [1, 1, 3, 5], "harmful": True, "probability": 1.0})
    texts = pd.DataFrame({"problem": [1, 2], "emitted": [9, 9], "correct": True})
    assert [found.value for found in perfect(labels, texts, 8, (1.0, 0.5))] == pytest.approx([18 / 6, 18 / 3])


def test_shares_are_of_what_a_perfect_judge_gains() -> None:
    shares = benchmark.shares_of(found(5.5, 1.0), {0.97: Found(7.0, 7.0, 7.0), 0.98: Found(6.0, 6.0, 6.0)})
    assert shares == {"js": {0.97: pytest.approx(1 / 3), 0.98: 0.5}, "judge@1": {0.97: 0.5, 0.98: 0.75}}


def test_a_forgetful_draft_learns_sums_without_what_is_carried() -> None:
    pieces = list("0123456789+-*= .")
    said = "9+29=38 60-13=47 17+13=30 95+15=110 5+6=11 3*9=27 47-9=38 12+13=25"
    wanted = torch.tensor([pieces.index(each) for each in said])
    learned = "".join(pieces[token] for token in forgetful(wanted, pieces).tolist())
    assert learned == "9+29=28 60-13=57 17+13=20 95+15=100 5+6=11 3*9=27 47-9=48 12+13=25"


def test_judges_of_some_stories_are_compared_on_the_others() -> None:
    random = np.random.default_rng(0)
    made = pd.DataFrame({name: random.normal(size=600) for name in FEATURES})
    made = made.assign(problem=random.integers(0, 40, 600), probability=1.0)
    told = made["problem"] % 2 == 0
    harmful = np.where(told, made["js"] > 1, made["js"] < -1)  # of one story what is the opposite of the other's
    stories = {problem: "even" if problem % 2 == 0 else "odd" for problem in range(40)}
    origin = Origin("t", "d", "k", Sampling(), "made up", torch.zeros(9, dtype=torch.uint8))
    for each in across(made.assign(harmful=harmful), stories, origin, trials=0):
        assert each["of_these"] > 0.9 > 0.4 > each["of_other_stories"]


def test_a_budget_pays_for_whole_problems_in_the_order_of_the_sample() -> None:
    labels = pd.DataFrame({"problem": np.repeat([5, 3, 9, 4], 10), "position": np.tile(np.arange(10), 4)})
    for budget in (10, 25, 40):
        chosen = within(labels, budget, seed=1)
        assert len(chosen) == budget
        sizes = chosen.groupby("problem", sort=False).size().tolist()
        assert sizes == [10] * (budget // 10) + [budget % 10] * bool(budget % 10)
    orders = {tuple(within(labels, 40, seed)["problem"].unique()) for seed in range(5)}
    assert len(orders) > 1


def test_a_budget_beyond_the_labels_is_refused() -> None:
    labels = pd.DataFrame({"problem": [1] * 30})
    with pytest.raises(UsageError, match="there are 30 labels, and a budget is 40; label more, or give smaller"):
        next(made(labels, decoder=None, quick=False, budgets=[20, 40]))  # type: ignore[arg-type]


MADE = Made("context", 2000, 0, "judge@1", "boosted", 9, 0.9, 0.91)


def found(tokens: float, slower: float) -> dict[str, Any]:
    def level(rule: str, wanted: float, value: float) -> dict[str, Any]:
        return {"rule": rule, "wanted": wanted, "tokens_per_round": Found(value, value, value),
                "gain": Found(1.2, 1.1, 1.3), "setting": "T = 1"}  # fmt: skip

    levels = [level(*each) for wanted in (0.97, 0.98, 0.99)
              for each in (("js", wanted, 5.0), ("judge@1", wanted, tokens))]  # fmt: skip
    return {
        "levels": levels, "slower": {"js": Ratio(1.0, 1.0, 1.0), "judge@1": Ratio(slower, slower, slower)},
        "lossless": [{"rule": "coupled", "tokens_per_round": Found(4.0, 3.9, 4.1)}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "slower", "reached"), [(5.6, 1.02, [True, True]), (5.4, 1.02, [False, True]), (5.6, 1.2, [True, False])]
)
def test_claims(tokens: float, slower: float, reached: list[bool]) -> None:
    assert [claim.reached for claim in benchmark.claims_of(found(tokens, slower), [MADE])] == reached


def test_the_table_names_judges_by_what_they_are() -> None:
    best = dict.fromkeys((0.97, 0.98, 0.99), Found(6.0, 5.9, 6.1))
    elsewhere = {"labels": 50, "of_these": 0.9, "of_other_stories": 0.8, "best": "doubt", "of_the_best": 0.7}
    about = {**found(5.6, 1.02), "judges": [MADE], "auc_of_scores": {"js": 0.4}, "across_stories": [elsewhere]}
    shares = benchmark.shares_of(about, best)
    text = table({**about, "perfect_tokens_per_round": best, "shares_of_perfect": shares})
    assert "| judge of context, 2,000 labels, sample 0 | 5.60 (5.60 to 5.60), 1.20x, 80%" in text
    assert "| a perfect judge | 6.00" in text
    assert "| 50 | 0.900 | 0.800 | 0.700 (doubt) |" in text
    assert "judge@1" not in text
