"""A tiny grammar for sentences that can be said in more than one way.

Knows how to expand `"[First|To begin], {who} has [a lot|plenty]"`: each bracket is one choice, its
alternatives ordered from the one the *target* prefers to the one the *draft* prefers. Knows nothing
of problems or models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Literal

Mix = Literal["target", "draft", "even"]

# The first alternative's weight and so on, for brackets of two and of three alternatives.
# The draft reads them backwards: the two models then disagree on the likeliest word while both know
# every word, which is harmless disagreement of small divergence (js .03 and .07).
_TARGET_WEIGHTS: dict[int, tuple[float, ...]] = {1: (1.0,), 2: (0.62, 0.38), 3: (0.52, 0.28, 0.20)}
_BRACKET = re.compile(r"\[([^\]]*)\]")


@cache
def _parts(template: str) -> tuple[tuple[str, ...], ...]:
    """`"a [b|c] d"` -> `(("a ",), ("b", "c"), (" d",))`."""
    pieces = _BRACKET.split(template)
    return tuple((piece,) if i % 2 == 0 else tuple(piece.split("|")) for i, piece in enumerate(pieces))


@cache
def weights(alternatives: int, mix: Mix) -> tuple[float, ...]:
    """The probability of each of `alternatives` ways to say something, under one model's wording."""
    if mix == "even":
        return (1.0 / alternatives,) * alternatives
    preferred = _TARGET_WEIGHTS[alternatives]
    return preferred if mix == "target" else preferred[::-1]


def say(template: str, rng: Random, names: Mapping[str, object], mix: Mix = "even") -> str:
    """Chooses one alternative in every bracket of `template`, then fills the `{names}` in."""
    chosen = []
    for options in _parts(template):
        if len(options) == 1:
            chosen.append(options[0])
        else:
            chosen.append(rng.choices(options, weights(len(options), mix))[0])
    return "".join(chosen).format_map(names)
