"""What is known of a tokenizer, whose vocabulary takes seconds to read where it is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")  # of a fast tokenizer


class _Known(NamedTuple):
    state: tuple[Any, ...]
    value: str


_known: WeakKeyDictionary[PreTrainedTokenizerBase, _Known] = WeakKeyDictionary()


def while_unchanged(tokenizer: Any, read: Callable[[Any], str]) -> str:
    """Returns `read(tokenizer)`, computed again only where the tokenizer changed.

    It counts as changed if its length, an added token, the BOS or EOS token, or a part other than its model changed. A
    vocabulary that was exchanged in the same object for another of the same length is not noticed.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return read(tokenizer)
    known, state = _known.get(tokenizer), _state(tokenizer)
    if known is None or known.state != state:
        _known[tokenizer] = known = _Known(state, read(tokenizer))
    return known.value


def _state(tokenizer: Any) -> tuple[Any, ...]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = [repr(getattr(backend, name, None)) for name in _PARTS]
    added = [(i, repr(token)) for i, token in sorted(tokenizer.added_tokens_decoder.items())]
    return len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id, *added, *parts
