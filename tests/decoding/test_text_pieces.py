"""The parts of a text that belong to its tokens: joined, they are the text, whatever the tokenizer does at borders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_decoding.text import text_pieces
from support.models.tiny_tokenizers import TOKENIZERS, decode_whole


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("kind", TOKENIZERS)
@given(st.data())
def test_pieces_join_to_any_text_and_to_any_beginning_of_it(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    tokens = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=14))
    text = decode_whole(tokenizer, tokens)
    cut = data.draw(st.integers(0, len(text)))
    for wanted in (text, text[:cut]):
        pieces = text_pieces(tokenizer, tokens, wanted)
        assert len(pieces) == len(tokens)
        assert "".join(pieces) == wanted


@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
def test_a_character_belongs_to_the_token_that_completes_it(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    text = "a你éx😀"
    pieces = text_pieces(tokenizer, tokenizer(text)["input_ids"], text)
    assert [piece for piece in pieces if piece.strip()] == [*text]
    assert "\ufffd" not in "".join(pieces)
    assert len(pieces) >= 1 + 3 + 2 + 1 + 4
    assert pieces[-1] == "😀"
