"""A tokenizer is read once, and again when it changed."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Digits

from fsd_decoding.models import fingerprint
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from support.models.tiny_models import word_tokenizer


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An entry for each time that a tokenizer was read."""
    seen: list[Any] = []
    read = fingerprint._read_tokenizer

    def watched(tokenizer: Any) -> str:
        seen.append(type(tokenizer).__name__)
        return read(tokenizer)

    monkeypatch.setattr(fingerprint, "_read_tokenizer", watched)
    return seen


def by_a_token(tokenizer: Any) -> None:
    tokenizer.add_tokens(["<new>"])


def by_a_special_token(tokenizer: Any) -> None:
    tokenizer.add_special_tokens({"additional_special_tokens": ["<new>"]})


def by_its_eos(tokenizer: Any) -> None:
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(3)


def by_a_normalizer(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.normalizer = Lowercase()


def by_a_pre_tokenizer(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.pre_tokenizer = Digits(individual_digits=True)


EDITS = [by_a_token, by_a_special_token, by_its_eos, by_a_normalizer, by_a_pre_tokenizer]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_tokenizer_is_read_again(edit: Callable[[Any], None], reads: list[Any]) -> None:
    tokenizer = word_tokenizer()
    before = tokenizer_fingerprint(tokenizer)
    assert tokenizer_fingerprint(tokenizer) == before
    assert len(reads) == 1
    edit(tokenizer)
    assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(copy.deepcopy(tokenizer)) != before


def test_padding_and_truncation_are_no_edits(reads: list[Any]) -> None:
    tokenizer = word_tokenizer()
    before = tokenizer_fingerprint(tokenizer)
    tokenizer.backend_tokenizer.enable_truncation(5)
    assert tokenizer_fingerprint(tokenizer) == before
    assert len(reads) == 1


@pytest.mark.slow
def test_a_known_tokenizer_is_not_kept_alive() -> None:
    tokenizer = word_tokenizer()
    tokenizer_fingerprint(tokenizer)
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None
