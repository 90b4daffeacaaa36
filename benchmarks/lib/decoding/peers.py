"""transformers' greedy `generate`, alone and assisted by the draft, as its users call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

_FULL_ROUNDS = 0.9  # a draft may be shorter where it ends the text and the target does not


class Decoded(Protocol):
    """The text that a contender made of a prompt; this project's `Result` is one."""

    @property
    def tokens(self) -> list[int]:
        """The new tokens, without EOS."""

    @property
    def emitted(self) -> int:
        """The number of new tokens including EOS, which speeds are counted in."""


class Text:
    """The text that transformers returned for a prompt."""

    def __init__(self, new: list[int], eos: int | None) -> None:
        self.tokens, self.emitted = [token for token in new if token != eos], len(new)


class Peer:
    """Greedy decoding of one prompt at a time; assisted, every round drafts L tokens."""

    def __init__(self, target: Any, draft: Any, draft_length: int, max_new_tokens: int) -> None:
        self._target, self._draft = target, draft
        self._draft_length, self._max_new_tokens = draft_length, max_new_tokens
        self._eos = target.generation_config.eos_token_id
        # Assisted generation reads these settings from the assistant only, and ignores arguments of `generate`.
        drafting = draft.generation_config
        drafting.num_assistant_tokens = draft_length
        drafting.num_assistant_tokens_schedule = "constant"
        drafting.assistant_confidence_threshold = 0.0

    def generate(self, prompt: list[int]) -> Decoded:
        return self._decode(prompt, None)

    def assisted(self, prompt: list[int]) -> Decoded:
        return self._decode(prompt, self._draft)

    def _decode(self, prompt: list[int], assistant: Any) -> Decoded:
        ids = torch.tensor([prompt], device=self._target.device)
        out = self._target.generate(
            ids, attention_mask=torch.ones_like(ids), assistant_model=assistant, do_sample=False,
            max_new_tokens=self._max_new_tokens, pad_token_id=self._target.config.pad_token_id,
        )  # fmt: skip
        return Text(out[0, len(prompt) :].tolist(), self._eos)

    def check_drafting(self, prompts: Sequence[list[int]]) -> float:
        """Returns the share of assisted rounds, without each text's last, that drafted L tokens.

        Raises:
            AssertionError: a round drafted more than L tokens, or too few rounds drafted L.
        """
        drafted = [n for prompt in prompts for n in self._drafted(prompt)[:-1]]
        share = sum(n == self._draft_length for n in drafted) / len(drafted)
        assert max(drafted) == self._draft_length, f"transformers drafted {max(drafted)}, not {self._draft_length}"
        assert share >= _FULL_ROUNDS, f"only {share:.0%} of transformers' rounds drafted {self._draft_length} tokens"
        return share

    def _drafted(self, prompt: list[int]) -> list[int]:
        """Returns the number of draft forward passes before each one of the target."""
        rounds = [0]
        hooks = [
            self._draft.register_forward_pre_hook(lambda *_: rounds.append(rounds.pop() + 1)),
            self._target.register_forward_pre_hook(lambda *_: rounds.append(0)),
        ]
        try:
            self.assisted(prompt)
        finally:
            for hook in hooks:
                hook.remove()
        return rounds[:-1]
