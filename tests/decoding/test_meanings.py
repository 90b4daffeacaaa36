"""What is told of rules and scores: all of them, with every symbol explained."""

from __future__ import annotations

import pytest

from fsd_decoding.meanings import LEARNED, RULE_MEANINGS, SCORE_MEANINGS, score_meaning
from fsd_decoding.rules import RULES
from fsd_decoding.scores import FAMILIES


def test_every_rule_and_score_has_a_meaning() -> None:
    assert set(RULE_MEANINGS) == set(RULES)
    assert set(SCORE_MEANINGS) == {*FAMILIES, LEARNED}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "margin@10",
            "1 - p(x) / p1, among the target's k likeliest (p of the target, x the drafted token, p1 the largest p)",
        ),
        ("kl_qp@50", "KL(q‖p) (p of the target, q of the draft)"),
        ("gated-kl_qp@50@0.7", "KL(q‖p) (p of the target, q of the draft) where the target is unsure"),
        ("fly@2@3", SCORE_MEANINGS["fly"]),
        ("judge@0123", "P(the token changes the outcome), as a learned judge has it"),
        ("mine:Mine", ""),
    ],
)
def test_symbols_are_explained_where_they_are(name: str, says: str) -> None:
    assert score_meaning(name) == says
