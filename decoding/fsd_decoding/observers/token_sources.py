"""Observers that keep tokens: `TokenSources` which decision emitted each token, `DraftedTrees` drafted trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fsd_common.errors import UsageError
from fsd_common.formatting import threshold
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.text import text_pieces, token_name


class TokenSource(StrEnum):
    """Where a token of a text comes from."""

    EXACT = "exact"
    """Drafted, and accepted as the exact rule would have done."""
    FUZZY = "fuzzy"
    """Drafted, and accepted only because of T: the exact rule would have rejected it."""
    FALLBACK = "fallback"
    """Emitted in place of the first rejected token of a draft."""
    BONUS = "bonus"
    """Added by the target after a wholly accepted draft."""
    TARGET = "target"
    """The target's own, in a round without a draft."""


@dataclass(frozen=True)
class SourcedToken:
    """One token of a text, with where it comes from.

    Args:
        token: its id.
        text: its part of the text. Empty where it has none of its own: of a character that several tokens make up, the
            last one has all; special tokens and what lies behind a stop string have none.
        name: the token alone: as text, or if that is no whole character, as it is in the vocabulary.
        position: its place among the text's new tokens, from 0.
        round: the number of its round in the text, from 0.
        source: where it comes from.
        score: D at its position, in the score's unit; None: nothing was drafted there.
        threshold: the T that D was compared with; None: nothing was drafted there, or the rule bounds no score.
        alternative: the id of the token that it displaced. Of a fuzzy token that is what the exact rule would have
            emitted, of a fallback token the rejected one; None: of others.
        alternative_name: that token alone, as `name`.
    """

    token: int
    text: str
    name: str
    position: int
    round: int
    source: TokenSource
    score: float | None = None
    threshold: float | None = None
    alternative: int | None = None
    alternative_name: str | None = None


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
    if token.score is not None:
        parts.append(f"D = {threshold(token.score)}")
        if token.threshold is not None:
            parts[-1] += f" {'≤' if token.score <= token.threshold else '>'} T = {threshold(token.threshold)}"
    return " · ".join([*parts, f"round {token.round + 1}"])


class FinishedText(Protocol):
    """What `TokenSources` needs of a `Result`."""

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def emitted(self) -> int: ...


class _Round(NamedTuple):
    """A round of B rows and L drafted tokens each, without its logits."""

    prompts: list[int | None]  # by row: the index of its prompt; None: the row is empty
    emitted: Tensor  # (B, L + 1)
    drafted: Tensor  # (B,)
    accepted: Tensor  # (B,)
    exact: Tensor  # (B, L) bool: the exact rule accepts the drafted token
    scores: Tensor  # (B, L)
    thresholds: Tensor | None  # (B, L)
    proposed: Tensor  # (B, L) drafted tokens
    preferred: Tensor  # (B, L) what the exact rule emits where it rejects


class TokenSources:
    """Keeps the source of every token: pass it to one call of `generate` as `observer`, then call `tokens`.

    On the device it keeps six numbers for each drafted token. Where the rule does not use D, D is computed for this;
    where the rule is fuzzy, its exact rule judges every round too.

    Args:
        tokenizer: the decoder's.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._rounds: list[_Round] = []

    def __call__(self, record: RoundRecord) -> None:
        proposal = record.proposal
        self._rounds.append(
            _Round(
                [request.index if request else None for request in record.requests],
                record.emitted,
                record.drafted,
                record.accepted,
                record.exact_verdict.accepted,
                proposal.scores,
                record.thresholds.clone() if record.rule.bounds_score else None,  # the engine reuses it
                proposal.drafted,
                record.exact_verdict.fallback,
            )
        )

    def tokens(self, result: FinishedText, prompt: int = 0) -> list[SourcedToken]:
        """Returns the tokens of a text with their sources, the EOS that ended it included. Waits for the device.

        The joined `text` of the tokens is the result's.

        Args:
            result: one that the observed call returned.
            prompt: the index of its prompt in that call.

        Raises:
            UsageError: the result is of another prompt or call.
        """
        decided = list(islice(self._decided(prompt), result.emitted))
        ids = [each.token for each in decided]
        if len(ids) != result.emitted or ids[: len(result.tokens)] != result.tokens:
            raise UsageError(
                f"prompt is {prompt}, whose observed tokens are not those of the result; give a result of the one call "
                "that was observed, and the index of its prompt in it"
            )
        texts, name = text_pieces(self._tokenizer, ids, result.text), partial(token_name, self._tokenizer)
        return [
            replace(each, text=text, name=name(each.token), position=i,
                    alternative_name=None if each.alternative is None else name(each.alternative))
            for i, (each, text) in enumerate(zip(decided, texts, strict=True))
        ]  # fmt: skip

    def _decided(self, prompt: int) -> Iterator[SourcedToken]:
        """Yields what the rounds of a prompt emitted, beyond the end of its text too, without texts and positions."""
        number = 0
        for round in self._rounds:
            if prompt in round.prompts:
                yield from _row(round, round.prompts.index(prompt), number)
                number += 1


def _row(round: _Round, row: int, number: int) -> Iterator[SourcedToken]:
    """Yields what a round emitted in one row."""
    decided = partial(SourcedToken, text="", name="", position=0, round=number)
    emitted, exact, scores, proposed, preferred = (
        column[row].tolist() for column in (round.emitted, round.exact, round.scores, round.proposed, round.preferred)
    )
    thresholds = None if round.thresholds is None else round.thresholds[row].tolist()
    drafted, accepted = int(round.drafted[row]), int(round.accepted[row])
    for i in range(min(accepted + 1, drafted)):
        bound = None if thresholds is None else thresholds[i]
        if i == accepted:
            source, alternative = TokenSource.FALLBACK, proposed[i]
        else:
            source, alternative = (TokenSource.EXACT, None) if exact[i] else (TokenSource.FUZZY, preferred[i])
        yield decided(emitted[i], source=source, score=scores[i], threshold=bound, alternative=alternative)
    if accepted == drafted:
        yield decided(emitted[drafted], source=TokenSource.BONUS if drafted else TokenSource.TARGET)


@dataclass(frozen=True)
class DraftedNode:
    """One drafted token of a tree.

    Args:
        token: its id.
        name: the token alone, as text.
        depth: its place after the text, from 1.
        parent: the place of its parent in the list of nodes; None: it follows the text.
        accepted: whether it was accepted, as text, unless the text ended before it in that round.
    """

    token: int
    name: str
    depth: int
    parent: int | None
    accepted: bool


DraftedTree = tuple[DraftedNode, ...]
"""The nodes of a round, each after its parent."""


class DraftedTrees:
    """Keeps all drafted trees: pass it to one call of `generate` as `observer`, then call `trees`.

    Args:
        tokenizer: the decoder's.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # By round: the index of each row's prompt, and the tokens, parents and depths (B, N) of its tree's nodes, with
        # those that were passed (B, L + 1), from 1, padded with 0.
        self._rounds: list[tuple[list[int | None], tuple[Tensor, ...]]] = []

    def __call__(self, record: RoundRecord) -> None:
        tree, nodes = (
            None if record.trees is None else record.trees.tree,
            record.nodes,
        )  # the next round overwrites them
        if tree is not None and nodes is not None:
            kept = (tree.tokens.clone(), tree.parents.clone(), tree.depths.clone(), nodes.clone())
            prompts = [request.index if request else None for request in record.requests]
            self._rounds.append((prompts, kept))

    def trees(self, prompt: int = 0) -> list[DraftedTree]:
        """Returns the trees of a text by round; none where chains were drafted. Waits for the device.

        Args:
            prompt: the index of its prompt in the observed call.
        """
        return [self._tree(kept, prompts.index(prompt)) for prompts, kept in self._rounds if prompt in prompts]

    def _tree(self, kept: tuple[Tensor, ...], row: int) -> DraftedTree:
        tokens, parents, depths, nodes = (column[row].tolist() for column in kept)
        numbered = zip(range(1, len(tokens) + 1), tokens, parents, depths, strict=True)
        proposed = [each for each in numbered if each[-1] > 0]
        places = {number: place for place, (number, *_) in enumerate(proposed)}
        return tuple(
            DraftedNode(token, token_name(self._tokenizer, token), depth, places.get(parent), number in nodes)
            for number, token, parent, depth in proposed
        )
