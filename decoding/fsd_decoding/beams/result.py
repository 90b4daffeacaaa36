"""The beams of one prompt, and how they were found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from fsd_decoding.beams.layer import Done, Ending
from fsd_decoding.beams.rounds import BeamRow
from fsd_decoding.text import cut_before


@dataclass(frozen=True)
class Beam:
    """One text."""

    text: str
    tokens: list[int]  # new ones, without EOS
    score: float  # the log-probability by its length, see `BeamSettings.length_penalty`
    log_probability: float  # of the tokens, by the target after its sampling settings
    finish_reason: Ending
    eos: int | None  # the token that ended it; None: another reason

    @classmethod
    def of(cls, done: Done, tokenizer: Any, stop: tuple[str, ...]) -> Self:
        """Returns a text that is done.

        Args:
            done: its tokens and scores.
            tokenizer: decodes its tokens.
            stop: stop strings, before which it is cut.
        """
        text = cut_before(tokenizer, done.tokens, stop if done.reason == "stop" else ())
        return cls(text, done.tokens, done.score, done.log_probability, done.reason, done.eos)


@dataclass(frozen=True)
class BeamResult:
    """The texts of one prompt, with statistics."""

    beams: list[Beam]  # the best score first
    layers: int  # tokens of a text that had not ended
    rounds: int  # forward passes of the target
    drafted: int  # layers
    accepted: int  # of them those that a round went on from
    kept: int  # of these those whose samples are the draft's by D <= T
    rejected: tuple[tuple[int, float], ...]  # layers that the exact rule did not go on from, see `BeamRow`
    slots: int  # the most KV slots behind the prompt that were in use
    interval: tuple[float, float]  # every threshold in [lo, hi) gives these same texts

    @classmethod
    def of(cls, row: BeamRow, tokenizer: Any, stop: tuple[str, ...]) -> Self:
        """Returns the result of a row that is done; arguments as of `Beam.of`."""
        beams = [Beam.of(done, tokenizer, stop) for done in row.texts()]
        return cls(
            beams, row.beams.length, row.rounds, row.drafted, row.accepted, row.kept, tuple(row.rejected), row.slots,
            (row.lo, row.hi),
        )  # fmt: skip

    @property
    def text(self) -> str:
        """The text with the best score."""
        return self.beams[0].text

    @property
    def tokens(self) -> list[int]:
        """The new tokens of the text with the best score, without EOS."""
        return self.beams[0].tokens

    def majority(self, agree: Callable[[str, str], bool]) -> Beam:
        """Returns the best-scored of the texts that most texts agree with.

        Args:
            agree: whether a text has the answer of another; where a text has none, not even with itself.
        """
        votes = [sum(agree(one.text, other.text) for other in self.beams) for one in self.beams]
        return self.beams[votes.index(max(votes))]
