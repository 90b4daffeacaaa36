"""A drafter of one's own: whatever followed the last two tokens when they were last seen in the text (prompt lookup).

In the folder of this file: fsd-inspect --drafter new_drafter:Lookup --rule coupled "…"
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad


class Lookup:
    """A `DraftSource`, and its `Drafter` in one, since it keeps nothing of the rows: q follows from the text alone."""

    sure = 0.9  # what q gives to the token that followed; the rest is spread over all tokens
    vocabulary = 0

    def drafter(self, rows: int, slots: int, vocabulary: int) -> Lookup:
        made = type(self)()
        made.vocabulary = vocabulary
        return made

    @property
    def identity(self) -> Hashable:
        return Lookup, self.vocabulary  # what captured graphs are bound to

    def prefill(self, rows: Tensor, tokens: Tensor, until: int, start: int = 0) -> None:
        """Reads prompts into `rows`."""

    def catch_up(self) -> None:
        """Reads now what `prefill` has left for later."""

    def copy(self, sources: Sequence[int], rows: Sequence[int], count: int) -> None:
        """Gives `rows` what is known of the first `count` tokens of the rows `sources`."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows but these."""

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, kv_length: int) -> Tensor:
        """Returns log q of the token after the first `lengths + step` of each row: (B, 1, V)."""
        text, ends = tokens[:, :kv_length], (lengths + step)[:, None]  # (B, S), (B, 1)
        places = torch.arange(kv_length, device=text.device)
        follows = places < ends
        for back in (1, 2):
            own = text.gather(1, (ends - back).clamp_min(0))
            follows = follows & (pad(text, (back, 0), value=-1)[:, :kv_length] == own)
        latest = torch.where(follows, places, -1).amax(1, keepdim=True)
        found = torch.where(latest >= 0, self.sure, 0.0)
        q = ((1.0 - found) / self.vocabulary).repeat(1, self.vocabulary)
        return q.scatter_add(1, text.gather(1, latest.clamp_min(0)), found).log().unsqueeze(1)
