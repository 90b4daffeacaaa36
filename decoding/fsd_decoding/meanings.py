"""What rules do and scores are, in a line each for people; without torch, so that a profile can be shown at once."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SYMBOLS = {"p": "p of the target", "q": "q of the draft", "x": "x the drafted token", "p1": "p1 the largest p",
            "u": "u of the exact test", "m": "m = (p + q) / 2", "H": "H the entropy"}  # fmt: skip

LEARNED = "judge"
"""The score that is learned; a number follows its name, by which its model is found."""

RULE_MEANINGS: Mapping[str, str] = {
    "target": "the target alone",
    "sd": "exact speculative decoding",
    "sd-block": "exact speculative decoding that tests the tokens of a draft together",
    "coupled": "exact speculative decoding that writes the target's own text",
    "fsd": "keeps a drafted token whose score is at most T",
    "fsd-sd": "keeps a drafted token that exact speculative decoding keeps, or whose score is at most T",
    "fsd-coupled": "keeps a drafted token that the target chose itself, or whose score is at most T",
    "ensemble": "speculative decoding of a mixture of target and draft, in which the draft has the share T",
}

SCORE_MEANINGS: Mapping[str, str] = {
    "js": "(KL(p‖m) + KL(q‖m)) / 2",
    "ag": "(KL(m‖p) + KL(m‖q)) / 2",
    "kl_qp": "KL(q‖p)",
    "kl_pq": "KL(p‖q)",
    "tv": "half the sum of |p - q|",
    "hellinger": "the root of half the sum of (√p - √q)²",
    "doubt": "JS(p, q) plus the draft's excess entropy, (H(q) - H(p))+",
    "margin": "1 - p(x) / p1",
    "relaxed": "p1 - p(x)",
    "fly": "what the target's entropy lacks to its largest, where the exact rule keeps what was drafted next",
    "cactus": "(u q(x) - p(x))+² / (2 p(x) (1 - p(x)))",
    "accept-threshold": "1 - p(x), or 0 where a u < p(x) for the number a of its name",
    "typical": "1 - max(p(x), (p(x) exp H)²)",
    "posterior": "0 where u q(x) exp(-alpha H) <= p(x), else 1 - p(x) / (u q(x))",
    "ensemble": "the least share of the draft in a mixture that keeps the token",
    LEARNED: "P(the token changes the outcome), as a learned judge has it",
}
"""By the names without numbers (`margin` of "margin@10"); `fsd_decoding.scores` computes them."""


_AMONG_TOP = ("margin", "relaxed")


def score_meaning(name: str) -> str:
    """Returns what a score is, with the symbols explained; "" of one that is not of this package."""
    family, numbers, _ = name.removeprefix("gated-").partition("@")
    formula = SCORE_MEANINGS.get(family, "")
    if numbers and family in _AMONG_TOP:
        formula += ", among the target's k likeliest"
    read = ", ".join(words for symbol, words in _SYMBOLS.items() if re.search(rf"\b{symbol}\b", formula))
    gate = " where the target is unsure" if name.startswith("gated-") else ""
    return formula and f"{formula}{read and f' ({read})'}{gate}"


def family_of(score: str) -> str:
    """Returns the name of a score, or of an add-on, without its numbers and the gate of a divergence."""
    return re.sub(r"(@[0-9.]+)*$", "", score).removeprefix("gated-")
