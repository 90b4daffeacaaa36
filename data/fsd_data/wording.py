"""A small template language for sentences with alternative wordings.

In `"[First|To begin], {who} has [a lot|plenty]"` each bracket is one choice. Its alternatives are ordered from the one
that the target prefers to the one that the draft prefers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Literal

Mix = Literal["target", "draft", "even"]

# Weights of the alternatives, by their number. The draft's are in reverse order: the two models then disagree on the
# most likely word though both know every word, a harmless disagreement of small divergence (js .03 and .07).
_TARGET_WEIGHTS: dict[int, tuple[float, ...]] = {1: (1.0,), 2: (0.62, 0.38), 3: (0.52, 0.28, 0.20)}
_BRACKET = re.compile(r"\[([^\]]*)\]")


@cache
def _parts(template: str) -> tuple[tuple[str, ...], ...]:
    """`"a [b|c] d"` -> `(("a ",), ("b", "c"), (" d",))`."""
    pieces = _BRACKET.split(template)
    return tuple((piece,) if i % 2 == 0 else tuple(piece.split("|")) for i, piece in enumerate(pieces))


@cache
def weights(alternatives: int, mix: Mix) -> tuple[float, ...]:
    """Returns the probability of each alternative of a bracket under one model's wording."""
    if mix == "even":
        return (1.0 / alternatives,) * alternatives
    preferred = _TARGET_WEIGHTS[alternatives]
    return preferred if mix == "target" else preferred[::-1]


def say(template: str, rng: Random, names: Mapping[str, object], mix: Mix = "even") -> str:
    """Chooses one alternative in every bracket of `template`, then fills in the `{names}`."""
    chosen = []
    for options in _parts(template):
        if len(options) == 1:
            chosen.append(options[0])
        else:
            chosen.append(rng.choices(options, weights(len(options), mix))[0])
    return "".join(chosen).format_map(names)
