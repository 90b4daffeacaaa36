"""How many beams are kept, and how they are drafted, ended and ranked at last."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from fsd_common.argument_checks import check_count, check_flag, number
from fsd_common.errors import UsageError
from fsd_decoding.config import CallKeywords

LARGEST_PENALTY = 32
"""Of a length penalty: longer texts than there are, to this power, do not overflow."""

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True)
class BeamSettings:
    """How beams are decoded.

    Args:
        beams: W, the beams of a layer.
        width: pairs of a beam and a token that the draft proposes for a layer, at least W.
        replacement: whether pairs are drawn with replacement; else they are the first W by keyed noise.
        chance: with replacement: above 0 the width is dynamic: the number of beams in a drafted layer is the largest
            that is accepted with at least this chance (.7 in DSBD's published code). Then layers are narrower than the
            target's own, and texts have another law, under every rule that drafts. At 0 there are W.
        least_beams: with a dynamic width: at least so many, however small the chance.
        length_penalty: a text's score is its log-probability divided by its length to this power.
        early_stopping: when beam search ends, see transformers' `early_stopping`.

    Raises:
        UsageError: a value is out of range.
    """

    beams: int
    width: int
    replacement: bool = False
    chance: float = 0.0
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
        if self.chance and not self.replacement:
            raise UsageError(f"chance is {self.chance} without replacement; give replacement=True, or leave chance out")
        if self.least_beams > 1 and not self.chance:
            raise UsageError(
                f"least_beams is {self.least_beams}, and the width is not dynamic; give a chance above 0, or leave "
                "least_beams out"
            )
        rule = f"it must be a number from -{LARGEST_PENALTY} to {LARGEST_PENALTY} (0 is no penalty)"
        if abs(number("length_penalty", self.length_penalty, rule)) > LARGEST_PENALTY:
            raise UsageError(f"length_penalty is {self.length_penalty}; {rule}")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise UsageError(f"early_stopping is {self.early_stopping!r:.40}; it must be False, True or 'never'")

    @classmethod
    def over(cls, usual: BeamSettings | None, beams: int | None, width: int | None, **given: Any) -> BeamSettings:
        """Returns settings with the number of beams, the width and the replacement of `usual` where they are not given.

        Raises:
            UsageError: the number is nowhere given, or a value is out of range.
        """
        number = usual.beams if beams is None and usual is not None else beams
        if number is None:
            raise UsageError("beams is not given, and no profile of beams is followed; say how many, such as beams=4")
        own = usual.width if usual is not None and usual.beams == number else 2 * number
        drawn = {} if usual is None else {"replacement": usual.replacement}
        return cls(number, own if width is None else width, **(drawn | given))

    @property
    def narrows(self) -> bool:
        """Whether the width is dynamic, so that no rule that drafts is lossless."""
        return self.chance > 0.0

    def penalised(self, score: float, length: int) -> float:
        """The score of a text of so many new tokens, the one that ends it included, by its log-probability."""
        return score / float(length**self.length_penalty)

    def nodes(self, new_tokens: int, depth: int) -> int:
        """Returns the most tokens of a row's forest: W texts that share nothing, and a round at this depth."""
        return self.beams * new_tokens + self._round(depth)

    def shared(self, new_tokens: int, depth: int) -> int:
        """Returns the tokens of a row's forest whose texts share all but a round."""
        return new_tokens + self._round(depth)

    def _round(self, depth: int) -> int:
        return self.beams * (depth + 1) + self.width * depth


class BeamKeywords(CallKeywords, total=False):
    """The fields of `BeamSettings` but the first two, beside those of `DecodingConfig`, as keywords."""

    replacement: bool
    chance: float
    least_beams: int
    length_penalty: float
    early_stopping: EarlyStopping


KEYWORDS = tuple(each.name for each in fields(BeamSettings))[2:]
