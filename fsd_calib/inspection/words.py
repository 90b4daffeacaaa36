"""What is said of tokens and texts: the meaning of a source, one token in a line, a text in numbers."""

from __future__ import annotations

from fsd_calib.inspection.inspected import InspectedText
from fsd_common.formatting import NONE, pace, percent, threshold
from fsd_decoding.observers.token_sources import SourcedToken, TokenSource

MEANINGS = {
    TokenSource.EXACT: "drafted; the exact rule accepts it too",
    TokenSource.FUZZY: "drafted, and accepted only because of T; the exact rule would have rejected it",
    TokenSource.FALLBACK: "emitted in place of a rejected drafted token",
    TokenSource.BONUS: "added by the target after a wholly accepted draft",
    TokenSource.TARGET: "emitted by the target in a round without a draft",
}
TREE_WORDS = "what was accepted is marked"
WITHOUT_TEXT = "no text of its own: part of a character, or the end of the text"
_SEEN = str.maketrans({"\n": "⏎", "\t": "⇥", " ": "␣", "\r": "␍"})


def name_of(name: str) -> str:
    """Returns a token's name with visible spaces and line ends."""
    return name.translate(_SEEN)


def token_line(token: SourcedToken) -> str:
    """Returns what is known of a token, in one line."""
    parts = [f"{name_of(token.name)}: {token.source}"]
    if token.alternative_name is not None:
        relation = "instead of" if token.source is TokenSource.FUZZY else "the draft had"
        parts.append(f"{relation} {name_of(token.alternative_name)}")
    if token.divergence is not None:
        parts.append(f"D = {threshold(token.divergence)}{_compared(token)}")
    return " · ".join([*parts, f"round {token.round + 1}"])


def _compared(token: SourcedToken) -> str:
    if token.threshold is None or token.divergence is None:
        return ""
    return f" {'≤' if token.divergence <= token.threshold else '>'} T = {threshold(token.threshold)}"


def token_cells(token: SourcedToken) -> tuple[str, ...]:
    """Returns a token as a row of a table with `HEADINGS`."""
    return (
        f"{token.position + 1}", f"{token.round + 1}", name_of(token.name), str(token.source),
        threshold(token.divergence), threshold(token.threshold),
        NONE if token.alternative_name is None else name_of(token.alternative_name),
    )  # fmt: skip


HEADINGS = ("token", "round", "text", "source", "D", "T", "in place of")
NUMBERS = (0, 1, 4, 5)
"""The columns of `token_cells` that are aligned to the right."""


def counts_line(text: InspectedText) -> str:
    """Returns a text's tokens and rounds in words."""
    tokens, rounds = len(text.tokens), text.rounds
    each = pace(tokens / rounds, 2)
    return f"{tokens} token{'s' * (tokens != 1)} in {rounds} round{'s' * (rounds != 1)}, {each} per round"


def shares_line(text: InspectedText) -> str:
    """Returns the share of each source in words."""
    return ", ".join(f"{source} {percent(share)}" for source, share in text.shares.items())


def difference_line(at: int | None) -> str:
    """Returns where two texts part, in words. `at`: see `first_difference`."""
    return "Both texts are the same." if at is None else f"The texts part at token {at + 1}."
