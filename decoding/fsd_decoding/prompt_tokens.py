"""The tokens of a prompt, as models read them."""

from __future__ import annotations

from typing import Any

from fsd_common.errors import UsageError


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """Returns the tokens of a text as the models read it."""
    # A chat template may already have added the BOS.
    begun = tokenizer.bos_token is not None and prompt.startswith(tokenizer.bos_token)
    try:
        tokens: list[int] = tokenizer(prompt, add_special_tokens=not begun)["input_ids"]
    except (TypeError, UnicodeEncodeError) as error:
        if not _has_surrogate(prompt):
            raise
        raise UsageError(f"prompt {prompt!r:.40} holds what is not UTF-8; give it in UTF-8") from error
    return tokens


def _has_surrogate(text: str) -> bool:
    """Whether it holds half a character, as an argument has in the place of a byte that is not UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)
