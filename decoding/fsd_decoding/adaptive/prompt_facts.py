"""What a prompt's tokens tell before anything is drafted. Knows token ids and how a tokenizer writes digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsd_decoding.adaptive.per_tokenizer import per_tokenizer
from fsd_decoding.errors import UsageError

PROMPT_FACTS = ("prompt tokens", "prompt tokens with a digit")


class PromptFacts:
    """(facts,) of a prompt, in the order of `PROMPT_FACTS`."""

    def __init__(self) -> None:
        self._digits: frozenset[int] | None = None

    def check(self, tokenizer: Any | None) -> None:
        """Whose prompts these are; None: nobody's, so there are no facts of them."""
        self._digits = None if tokenizer is None else _digits(tokenizer)

    def __call__(self, prompt: Sequence[int]) -> tuple[float, ...]:
        """UsageError: the tokenizer is not known."""
        digits = self._digits
        if digits is None:
            raise UsageError(
                "which tokens hold a digit is not known without a tokenizer; give the decoder one (fsd_generate takes "
                "it as fsd_tokenizer)"
            )
        return float(len(prompt)), float(sum(token in digits for token in prompt))


@per_tokenizer
def _digits(tokenizer: Any) -> frozenset[int]:
    written = enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    return frozenset(i for i, text in written if any(c.isdecimal() for c in text or ""))
