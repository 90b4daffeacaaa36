"""How many beams are kept, and how they are drafted, ended and ranked at last."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from fsd_common.argument_checks import check_count, check_flag, number
from fsd_common.errors import UsageError
from fsd_decoding.config import CallKeywords

CHANCE = 0.7
"""The least chance with which a layer drawn with replacement is to be accepted, as in the published code of DSBD."""

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True)
class BeamSettings:
    """How beams are decoded.

    Args:
        beams: W, the beams of a layer.
        width: pairs of a beam and a token that the draft proposes for a layer, at least W.
        replacement: whether pairs are drawn with replacement; else they are the first W by keyed noise.
        chance: with replacement: the number of beams in a drafted layer is the largest that is accepted with at least
            this chance; at 0 it is W.
        least_beams: with replacement: at least so many, however small the chance.
        length_penalty: a text's score is its log-probability divided by its length to this power.
        early_stopping: when beam search ends, see transformers' `early_stopping`.

    Raises:
        UsageError: a value is out of range.
    """

    beams: int
    width: int
    replacement: bool = False
    chance: float = CHANCE
    least_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        for name in ("beams", "width", "least_beams"):
            check_count(name, getattr(self, name))
        check_flag("replacement", self.replacement)
        if self.width < self.beams:
            raise UsageError(f"width is {self.width}; it must be at least the number of beams, {self.beams}")
        if self.least_beams > self.beams:
            raise UsageError(f"least_beams is {self.least_beams}; it must be at most the number of beams, {self.beams}")
        if not 0.0 <= number("chance", self.chance, "it must be a number from 0 to 1") <= 1.0:
            raise UsageError(f"chance is {self.chance}; it must be a number from 0 to 1")
        number("length_penalty", self.length_penalty, "it must be a number (0 is no penalty)")
        if self.early_stopping not in (False, True, "never"):
            raise UsageError(f"early_stopping is {self.early_stopping!r:.40}; it must be False, True or 'never'")

    def penalised(self, score: float, length: int) -> float:
        """The score of a text of so many new tokens, the one that ends it included, by its log-probability."""
        return score / float(length**self.length_penalty)

    def nodes(self, new_tokens: int, depth: int) -> int:
        """Returns the most tokens of a row's forest: W texts that share nothing, and a round at this depth."""
        return self.beams * (new_tokens + depth + 1) + self.width * depth


class BeamKeywords(CallKeywords, total=False):
    """The fields of `BeamSettings` but the first two, beside those of `DecodingConfig`, as keywords."""

    replacement: bool
    chance: float
    least_beams: int
    length_penalty: float
    early_stopping: EarlyStopping


KEYWORDS = tuple(each.name for each in fields(BeamSettings))[2:]
