"""A text with the source of every token, and where two such texts part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsd_common.formatting import threshold as shown

if TYPE_CHECKING:
    from fsd_decoding.decoder import SpeculativeDecoder
    from fsd_decoding.observers.token_sources import DraftedTree, SourcedToken, TokenSource
    from fsd_decoding.requests import Prompt


@dataclass(frozen=True)
class InspectedText:
    """A text as its tokens, and the setting that it was decoded with.

    Args:
        title: what tells it from another text: its T, or its rule if that has none.
        setting: rule, divergence, draft length and sampling in one line.
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
        return {source: counts[source] / len(self.tokens) for source in _order(counts)}


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
    from fsd_decoding.acceptance import RULES

    _, moving = decoder.policies()
    if moving is not None:
        return f"T moved by {type(moving).__name__}"
    return f"T = {shown(decoder.threshold)}" if RULES[decoder.rule].fuzzy else f"Rule {decoder.rule}"


def _setting(decoder: SpeculativeDecoder) -> str:
    from fsd_decoding.acceptance import RULES

    rule = RULES[decoder.rule]
    parts = [rule.name]
    if rule.fuzzy and not rule.bounds_divergence:
        parts.append("T is on its own scale and bounds no D")
    if rule.drafts:
        parts += [f"D is {decoder.divergence}", f"L = {decoder.draft_length}"]
        parts += [] if decoder.tree is None else [f"trees of {decoder.tree}"]
    sampling = decoder.sampling
    if sampling.temperature:
        parts += [f"temperature {sampling.temperature:g}", f"seed {decoder.seed}"]
        parts += [f"top-{name} {value:g}" for name, value in (("k", sampling.top_k), ("p", sampling.top_p)) if value]
    ending, _ = decoder.policies()
    if ending is not None:
        parts.append(f"drafts ended early by {type(ending).__name__}")
    return ", ".join(parts)


def _order(counts: Counter[TokenSource]) -> list[TokenSource]:
    from fsd_decoding.observers.token_sources import TokenSource

    return [source for source in TokenSource if counts[source]]
