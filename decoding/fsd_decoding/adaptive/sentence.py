"""Whether a text's first sentence has ended. Knows token ids, on the device, and how their texts end."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_decoding.adaptive.per_tokenizer import per_tokenizer
from fsd_decoding.errors import UsageError
from fsd_decoding.threshold_policy import RoundOutcome, RoundState

_MARKS = ".!?\u2026\u3002\uff01\uff1f"  # those of Chinese and Japanese too
_CLOSING = "'\"\u201d\u2019\u00bb)\\]*_"  # what may stand behind one
_ENDS = re.compile(rf"[{_MARKS}][{_CLOSING}]*\s*$|\n")
_MEMORY = "first sentence ended"


class FirstSentenceEnded:
    """True of every token behind the completion's first full stop, question or exclamation mark, or line break.

    Marks are looked for in tokens one by one, so the point of "3.5" is a full stop where a token ends with it. What is
    said of a drafted token follows from the text before it alone, however that was divided into rounds.
    """

    name = "first sentence ended"

    def __init__(self) -> None:
        self._ends: Tensor | None = None

    def check(self, tokenizer: Any | None) -> None:
        """Whose tokens these are; None: nobody's, so no sentence's end is known."""
        self._ends = None if tokenizer is None else _ends(tokenizer)

    def __call__(self, state: RoundState) -> Tensor:
        """(B, L) bool, of the drafted tokens."""
        ending = self._ending(state, state.proposal.drafted)
        until = ending.cumsum(1) + state.memory.column(_MEMORY)[:, None]  # ends, each token's own among them
        return until > ending

    def observe(self, outcome: RoundOutcome) -> None:
        proposal = outcome.state.proposal
        brought = proposal.tokens.gather(1, proposal.positions)  # (B, L + 1): by now what was emitted
        stays = torch.arange(brought.shape[1], device=brought.device) < outcome.kept[:, None]
        ended = (self._ending(outcome.state, brought) & stays).any(1)
        outcome.state.memory.column(_MEMORY).masked_fill_(ended, 1.0)

    def _ending(self, state: RoundState, ids: Tensor) -> Tensor:
        if self._ends is None:
            raise UsageError(
                "the first sentence's end is not known without a tokenizer; give the decoder one (fsd_generate takes "
                "it as fsd_tokenizer)"
            )
        missing = state.proposal.target_logits.shape[-1] - len(self._ends)
        if missing > 0 or self._ends.device != ids.device:  # ids that the tokenizer has not end nothing
            self._ends = pad(self._ends, (0, max(missing, 0))).to(ids.device)
        return self._ends[ids]


@per_tokenizer
def _ends(tokenizer: Any) -> Tensor:
    """A bool for each of its ids."""
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    return torch.tensor([_ENDS.search(text) is not None for text in texts])
