"""The corpus of an n-gram draft: its file, its fingerprint, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.base import trained_on
from fsd_decoding.drafters.ngram import NGram, NGramCorpus
from support.models.tiny_pair import ragged_prompts, tiny_decoder

TEXTS = [[2, 3, 4, 2, 3, 5], [4, 2, 3, 4], [7]]


def corpus(order: int = 4) -> NGramCorpus:
    return NGramCorpus.of(TEXTS, order)


def test_a_file_holds_the_same_counts(tmp_path: Path) -> None:
    corpus().save(tmp_path / "corpus.safetensors")
    loaded = NGramCorpus.load(tmp_path / "corpus.safetensors")
    assert loaded == corpus()
    assert repr(NGram(4, loaded)) == repr(NGram(4, corpus()))


def test_a_file_says_what_was_trained_on(tmp_path: Path) -> None:
    keys = frozenset((2**47, 3, 1))
    NGramCorpus.of(TEXTS, 4, keys).save(tmp_path / "corpus.safetensors")
    loaded = NGramCorpus.load(tmp_path / "corpus.safetensors")
    assert trained_on(NGram(4, loaded)) == keys
    assert loaded == corpus()  # which is the same draft
    assert trained_on(NGram(4, corpus())) == trained_on(NGram()) == frozenset()


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1, "a key", 1.5, None, [1]])
def test_what_is_no_key_is_refused_in_one_line(key: Any) -> None:
    with pytest.raises(UsageError, match=r"trained_on has .*; its keys must be whole numbers of 64 bits") as refused:
        NGramCorpus.of(TEXTS, 4, [3, key])
    assert "\n" not in str(refused.value)
    keys: list[Any] = [np.int64(3), -(2**63)]
    assert NGramCorpus.of(TEXTS, 4, keys).trained_on == {3, -(2**63)}


@pytest.mark.parametrize("keys", [None, 3, "three"])
def test_what_is_no_list_of_keys_is_refused_in_one_line(keys: Any) -> None:
    with pytest.raises(
        UsageError, match=r"trained_on is .*; it must be keys of problems, .* or be left out"
    ) as refused:
        NGramCorpus.of(TEXTS, 4, keys)
    assert "\n" not in str(refused.value)


def test_the_fingerprint_is_of_the_content() -> None:
    others = [NGramCorpus.of([*TEXTS, [2, 3]], 4), NGramCorpus.of(TEXTS[:2], 4), corpus(3)]
    assert len({each.fingerprint for each in [corpus(), *others]}) == 4
    assert corpus() == NGramCorpus.of(reversed(TEXTS), 4)  # the order of texts does not matter


def test_drafts_are_told_apart_by_their_names() -> None:
    """Caches and profiles know a draft without a model by its name."""
    names = {repr(NGram()), repr(NGram(5)), repr(NGram(4, corpus())), repr(NGram(4, NGramCorpus.of([[2, 3]], 4)))}
    assert len(names) == 4
    assert repr(NGram()) == repr(NGram(3)) == "NGram()"


def test_a_corpus_of_the_targets_own_texts_makes_rounds_longer() -> None:
    decoder = tiny_decoder()
    texts = decoder.generate(ragged_prompts(40), 24, rule="target")
    told = NGramCorpus.of([p + r.tokens for p, r in zip(ragged_prompts(40), texts, strict=True)], 8)
    rounds = []
    for draft in (NGram(), NGram(8, told)):
        drafting = SpeculativeDecoder(decoder.target, draft, decoder.tokenizer, rule="coupled", draft_length=4)
        results = drafting.generate(ragged_prompts(40), 24, batch_size=8)
        assert [r.tokens for r in results] == [r.tokens for r in texts]
        rounds.append(sum(r.rounds for r in results))
    assert rounds[1] < 0.6 * rounds[0]


def test_the_most_frequent_followers_are_kept() -> None:
    text = [0] + [t for token in range(1, 60) for t in (0, token)] + [0, 41, 0, 41]
    tokens, counts = NGramCorpus.of([text], 2).followers(1, torch.tensor([0]) + _hash_of(0))
    assert counts[0].tolist() == [3, *[1] * 31]
    assert tokens[0, 0] == 41


def _hash_of(token: int) -> torch.Tensor:
    from fsd_decoding.drafters.ngram import context_term

    return context_term(torch.tensor([token]), 1)


def damaged(change: Callable[[dict[str, Any]], None], path: Path) -> Path:
    corpus().save(path)
    parts = dict(load(path.read_bytes()))
    change(parts)
    path.write_bytes(save(parts))
    return path


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a part is missing": lambda parts: parts.pop("tokens.1"),
    "a part is too short": lambda parts: parts.update({"counts.0": parts["counts.0"][1:]}),
    "another type": lambda parts: parts.update({"tokens.0": parts["tokens.0"].astype(np.int32)}),
    "contexts out of order": lambda parts: parts.update({"contexts.1": parts["contexts.1"][::-1].copy()}),
    "a negative token": lambda parts: parts.update({"tokens.2": parts["tokens.2"] - 9}),
    "ends beyond": lambda parts: parts.update({"ends.1": parts["ends.1"] + 1}),
    "nothing": lambda parts: parts.clear(),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_file_is_refused(case: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no n-gram corpus, or a damaged one; write it anew"):
        NGramCorpus.load(damaged(DAMAGES[case], tmp_path / "corpus.safetensors"))


@pytest.mark.parametrize("content", [b"", b"no safetensors at all"], ids=["empty", "text"])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "corpus").write_bytes(content)
    with pytest.raises(UsageError, match=r"n-gram corpus .* cannot be read: "):
        NGramCorpus.load(tmp_path / "corpus")
    with pytest.raises(UsageError, match="cannot be read: "):
        NGramCorpus.load(tmp_path / "none")


@pytest.mark.parametrize(("order", "message"), [
    (0, "order is 0; it must be a whole number of at least 1"), (17, "order is 17; it must be at most 16"),
    (2.0, "order is 2.0; it must be a whole number"),
])  # fmt: skip
def test_an_order_that_is_none_is_refused(order: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NGram(order)
    with pytest.raises(UsageError, match=message):
        NGramCorpus.of(TEXTS, order)


def test_texts_without_a_token_are_refused() -> None:
    with pytest.raises(UsageError, match="hold no token; give at least one text"):
        NGramCorpus.of([[], []], 3)


def test_a_corpus_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="holds token 99, and the models' vocabulary ends at 39"):
        NGram(3, NGramCorpus.of([[99]], 3)).drafter(1, 8, 40)
