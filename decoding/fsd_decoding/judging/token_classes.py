"""What kind of text each token of a vocabulary is: digits, letters, signs or space."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CLASSES = ("other", "digits", "letters", "signs", "space")
"""Classes by their number; "other" are special tokens, parts of characters and mixtures."""


def token_classes(tokenizer: Any, vocabulary: int) -> Tensor:
    """Returns the class of every token: (V,) uint8.

    Args:
        tokenizer: of the models, with `decode`.
        vocabulary: V, the width of the models' logits; tokens that the tokenizer does not know are "other".
    """
    special = set(tokenizer.all_special_ids)
    known = min(vocabulary, len(tokenizer))
    texts = tokenizer.batch_decode([[token] for token in range(known)], clean_up_tokenization_spaces=False)
    numbers = [0 if token in special else _class_of(text) for token, text in enumerate(texts)]
    return torch.tensor([*numbers, *[0] * (vocabulary - known)], dtype=torch.uint8)


def _class_of(text: str) -> int:
    bare = text.strip()
    if not bare:
        return CLASSES.index("space" if text else "other")
    if bare.isdecimal():
        return CLASSES.index("digits")
    if bare.isalpha():
        return CLASSES.index("letters")
    return CLASSES.index("other" if "\N{REPLACEMENT CHARACTER}" in bare or any(map(str.isalnum, bare)) else "signs")
