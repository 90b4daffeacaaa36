"""Rounds of decoding, made one at a time for many texts at once, which may go back to an earlier place and on from it.

What a round drafts, and what the target says of it, depends on the text before it alone, since noise is keyed by
problem and position. So a round is made once, and all rules judge it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from fsd_calib import SpeculativeDecoder
from fsd_decoding.batch import Request
from fsd_decoding.engine.cache_pool import KVCachePool, Models
from fsd_decoding.engine.rounds import Rounds
from fsd_decoding.models.runner import vocabulary_size
from lib.rules.judges import Panel

if TYPE_CHECKING:
    from lib.rules.texts import End

_ALIKE = 16  # tokens by which the beginnings of what is read together may differ
_IDLE = Request(-1, [0], 0, 0.0, 0, 1)


@dataclass(slots=True, eq=False)
class Round:
    """A round as all judges see it.

    Args:
        drafted: the tokens that count.
        bonus: the target's token after all of them.
        kept, fallback, scores: by rule and by score, lists of L; see `Judged`.
        after: the round that follows, or the text's end, by the number of kept tokens and the one after them.
    """

    drafted: list[int]
    bonus: int
    kept: list[list[bool]]
    fallback: list[list[int]]
    scores: list[list[float]]
    after: dict[tuple[int, int], Round | End] = field(default_factory=dict)


class RoundMaker:
    """Makes rounds with a decoder's models, sampling, seed and draft length.

    A row keeps the states of its last text, so what a text has in common with that is not read again.

    Args:
        rows: texts at once.
        longest: the most tokens of a text, its prompt included.
    """

    def __init__(self, decoder: SpeculativeDecoder, panel: Panel, rows: int, longest: int) -> None:
        self.panel, self._length, self._settings = panel, decoder.draft_length, decoder.settings()
        vocabulary = min(vocabulary_size(model) for model in (decoder.target, decoder.draft))
        models = Models(decoder.target, decoder.draft, vocabulary, decoder.lean, self._length)
        slots = longest + 1 + self._length
        self._caches = KVCachePool(False).acquire(models, rows, rows, slots, drafts=True, graphs=False)
        self._rounds = Rounds(self._caches, self._settings)
        self._held: list[list[int]] = [[] for _ in range(rows)]  # whose states are in the caches

    @torch.inference_mode()
    def make(self, requests: Sequence[Request | None]) -> list[Round | None]:
        """Makes a round for each row's text: the prompt of its request. None: the row is empty."""
        batch, asked = self._caches.batch, [request or _IDLE for request in requests]
        batch.put(torch.arange(len(asked)), asked, self._settings.seed)
        self._read(asked)
        kv_length = max(len(request.prompt) for request in asked) + self._length + 1
        batch.gumbel = self._rounds.gumbel_noise(self._length)
        draft = self._rounds.draft([], self._length, kv_length)
        proposal = self._rounds.propose(draft, self._rounds.verify(draft, kv_length))
        drafted, choice = proposal.drafted.tolist(), proposal.target_choice.tolist()
        self._held = [request.prompt + tokens for request, tokens in zip(asked, drafted, strict=True)]
        judged = self.panel.judge(proposal)
        kept, fallback, scores = judged.kept.tolist(), judged.fallback.tolist(), judged.scores.tolist()
        made: list[Round | None] = [None] * len(asked)
        for row, request in enumerate(requests):
            if request is not None:
                count = request.drafts(0)
                made[row] = Round(drafted[row][:count], choice[row][count], kept[row], fallback[row], scores[row])
        return made

    def _read(self, asked: Sequence[Request]) -> None:
        """Reads what the caches lack of the texts; the last token, and of the draft the last two, are left to it."""
        lacking = []
        for row, (held, request) in enumerate(zip(self._held, asked, strict=True)):
            common = _common(held, request.prompt)
            if common < len(request.prompt) - 1:
                # The draft has not read its own last token, which may be the last that is common.
                lacking.append((max(common - 1, 0), row))
        assert self._caches.drafter is not None
        for _, group in groupby(sorted(lacking), key=lambda each: each[0] // _ALIKE):
            starts, rows = zip(*group, strict=True)
            until, numbers = max(len(asked[row].prompt) for row in rows) - 1, torch.tensor(rows)
            for reader in (self._caches.target, self._caches.drafter):
                reader.prefill(numbers, self._caches.batch.tokens[numbers], until, min(starts))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of first tokens that two texts have in common."""
    for count, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return count
    return min(len(one), len(other))
