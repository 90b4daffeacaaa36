"""The automaton that finds markers in tokens, compared with plain Python; and the bytes of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_common.errors import UsageError
from fsd_data import pair_paths
from fsd_decoding.loading import load_tokenizer
from fsd_decoding.policies.markers import THINKING, Automaton, _built, automaton, thinking_markers
from fsd_decoding.text import token_bytes
from support.models.tiny_models import word_tokenizer
from support.models.tiny_tokenizers import byte_fallback, byte_level
from support.phases import inside_before

FEW = st.text("ab<", max_size=4)  # so few characters that markers come often, begin in one another, and overlap
VOCABULARIES = st.lists(FEW, min_size=1, max_size=6)


@cache
def bundled() -> Any:
    return load_tokenizer(str(pair_paths()[0]))


def along(reading: Automaton, tokens: Sequence[int], state: int = 0) -> tuple[list[bool], int]:
    """As `inside_before`, from a state on; and the last state."""
    states = reading.along(torch.tensor([state]), torch.tensor([list(tokens)], dtype=torch.int64))[0]
    return (states >= reading.inside).tolist(), int(states[-1])


@given(st.data())
def test_phases_are_those_of_plain_python_however_a_text_is_divided_into_rounds(data: st.DataObject) -> None:
    texts = [text.encode() for text in data.draw(VOCABULARIES)]
    ids = st.integers(0, len(texts) - 1)
    marker = st.one_of(st.text("ab<", min_size=1, max_size=3), ids)
    markers = data.draw(st.tuples(marker, marker))
    prompt, *rounds = data.draw(st.lists(st.lists(ids, max_size=6), min_size=1, max_size=5))
    reading = _built(texts, markers)
    state = reading.read(prompt)[-1]
    found = [state >= reading.inside]
    for drafted in rounds:
        inside, after = along(reading, drafted, state)
        assert inside[0] == found.pop()
        kept = data.draw(st.integers(0, len(drafted)))  # the round's other tokens are not of the text
        found += inside[: kept + 1]
        assert kept < len(drafted) or inside[-1] == (after >= reading.inside)
        state = along(reading, drafted[:kept], state)[1]
        del drafted[kept:]
    whole = [*prompt, *(token for drafted in rounds for token in drafted)]
    assert found == inside_before(whole, texts, markers)[len(prompt) :]


@pytest.mark.parametrize("tokenizer", [byte_level(), byte_fallback()], ids=["byte-level", "byte fallback"])
def test_a_marker_is_found_however_it_is_divided_into_tokens(tokenizer: Any) -> None:
    """Also within a token, and where a token ends within a character."""
    markers = "en 你ð", " x😀"
    reading, texts = automaton(tokenizer, markers), token_bytes(tokenizer)
    text = "end x 😀 en 你ð, x😀 x en"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    written = b"".join(texts[token] for token in tokens)
    assert written.lstrip() == text.encode()
    inside = inside_before(tokens, texts, markers)
    assert along(reading, tokens)[0] == inside
    assert 2 <= sum(inside) < len(inside) - 4
    assert reading.read(tokens)[-1] == along(reading, tokens)[1]


@given(st.text(max_size=20))
def test_the_bytes_of_tokens_joined_are_the_text(text: str) -> None:
    tokenizer = bundled()
    ids = tokenizer.encode(text)
    assert b"".join(token_bytes(tokenizer)[i] for i in ids) == text.encode()


def test_special_tokens_have_their_texts_and_unknown_ids_none() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|channel|>"]})
    reading = automaton(tokenizer, ("<|channel|>end", "<eos>"))
    channel, last = len(tokenizer) - 1, tokenizer.encode("end")
    assert along(reading, [channel, *last, channel, 10**6, 0, 5])[0] == [False, False, *[True] * 3, False, False]
    assert along(reading, [channel, 10**6, *last])[0] == [False] * 4
    assert reading.read([channel, 10**6, *last])[-1] == 0


def test_ids_need_no_tokenizer_and_texts_do() -> None:
    reading = automaton(None, (7, 3))
    assert along(reading, [3, 7, 9, 7, 3, 7])[0] == [False, False, True, True, True, False, True]
    with pytest.raises(
        UsageError, match=r"the marker '</think>' cannot be found without a tokenizer; .* fsd_tokenizer"
    ):
        automaton(None, (7, "</think>"))
    with pytest.raises(UsageError, match="the marker 40 is no token; ids are from 0 to 39"):
        automaton(word_tokenizer(), (7, 40))


def test_markers_of_thinking_are_those_of_the_template_or_of_the_tokens() -> None:
    tokenizer = word_tokenizer()
    assert thinking_markers(tokenizer) is None
    tokenizer.add_tokens(["<think>"])
    assert thinking_markers(tokenizer) is None
    tokenizer.chat_template = "{{ '[THINK]' }}{{ x.split('[/THINK]') }}"
    assert thinking_markers(tokenizer) == ("[THINK]", "[/THINK]")
    tokenizer.add_tokens(["</think>"])
    assert thinking_markers(tokenizer) == ("<think>", "</think>")
    assert len({marker for pair in THINKING for marker in pair}) == 2 * len(THINKING)
