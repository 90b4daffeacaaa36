"""A text with the source of every token, where two such texts part, and what is said of them in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsd_common.formatting import NONE, pace, percent, threshold
from fsd_decoding.observers.token_sources import SourcedToken, TokenSource, name_of

if TYPE_CHECKING:
    from fsd_decoding.decoder import SpeculativeDecoder
    from fsd_decoding.observers.token_sources import DraftedTree
    from fsd_decoding.requests import Prompt


@dataclass(frozen=True)
class InspectedText:
    """A text as its tokens, and the setting that it was decoded with.

    Args:
        title: what tells it from another text: its T, or its rule if that has none.
        setting: rule, score, draft length and sampling in one line.
        tokens: all tokens, that of the end of text included.
        rounds: number of rounds.
        trees: what was drafted in each round, where trees were.
    """

    title: str
    setting: str
    tokens: tuple[SourcedToken, ...]
    rounds: int
    trees: tuple[DraftedTree, ...] = ()

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def shares(self) -> dict[TokenSource, float]:
        """The share of the tokens that each source has, of those that occur, in the order of `TokenSource`."""
        counts = Counter(token.source for token in self.tokens)
        return {source: counts[source] / len(self.tokens) for source in TokenSource if counts[source]}


def inspect_text(
    decoder: SpeculativeDecoder, prompt: Prompt, max_new_tokens: int = 256, stop: Sequence[str] = ()
) -> InspectedText:
    """Decodes one prompt and returns the text with the source of every token. The arguments are those of `generate`."""
    from fsd_decoding.observers.round_record import together
    from fsd_decoding.observers.token_sources import DraftedTrees, TokenSources

    sources, trees = TokenSources(decoder.tokenizer), DraftedTrees(decoder.tokenizer)
    (result,) = decoder.generate([prompt], max_new_tokens, stop=stop, observer=together(sources, trees))
    tokens = tuple(sources.tokens(result))
    return InspectedText(_title(decoder), _setting(decoder), tokens, result.rounds, tuple(trees.trees()))


def first_difference(one: Sequence[SourcedToken], other: Sequence[SourcedToken]) -> int | None:
    """Returns the position of the first token in which two texts differ; None: they are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    at = next((i for i, (a, b) in pairs if a.token != b.token), shorter)
    return None if at == len(one) == len(other) else at


def _title(decoder: SpeculativeDecoder) -> str:
    from fsd_decoding.rules import rule_named

    if (moving := decoder.threshold_policy) is not None:
        return f"T moved by {type(moving).__name__}"
    return f"T = {threshold(decoder.threshold)}" if rule_named(decoder.rule).fuzzy else f"Rule {decoder.rule}"


def _setting(decoder: SpeculativeDecoder) -> str:
    from fsd_decoding.rules import rule_named

    rule = rule_named(decoder.rule)
    parts = [rule.name]
    if rule.fuzzy and not rule.bounds_score:
        parts.append("T is on its own scale and bounds no D")
    if rule.drafts:
        parts += [f"D is {decoder.score}", f"L = {decoder.draft_length}"]
        parts += [] if decoder.tree is None else [f"trees of {decoder.tree}"]
    sampling = decoder.sampling
    if sampling.temperature:
        parts += [f"temperature {sampling.temperature:g}", f"seed {decoder.seed}"]
        parts += [f"top-{name} {value:g}" for name, value in (("k", sampling.top_k), ("p", sampling.top_p)) if value]
    if (ending := decoder.stop_policy) is not None:
        parts.append(f"drafts ended early by {type(ending).__name__}")
    return ", ".join(parts)


MEANINGS = {
    TokenSource.EXACT: "drafted; the exact rule accepts it too",
    TokenSource.FUZZY: "drafted, and accepted only because of T; the exact rule would have rejected it",
    TokenSource.FALLBACK: "emitted in place of a rejected drafted token",
    TokenSource.BONUS: "added by the target after a wholly accepted draft",
    TokenSource.TARGET: "emitted by the target in a round without a draft",
}
TREE_WORDS = "what was accepted is marked"
WITHOUT_TEXT = "no text of its own: part of a character, or the end of the text"


def token_cells(token: SourcedToken) -> tuple[str, ...]:
    """Returns a token as a row of a table with `HEADINGS`."""
    return (
        f"{token.position + 1}", f"{token.round + 1}", name_of(token.name), str(token.source),
        threshold(token.score), threshold(token.threshold),
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
