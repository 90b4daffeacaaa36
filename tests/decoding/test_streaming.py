"""Texts as they grow: pieces concatenate to the generated text, and it ends where transformers' `generate` ends it."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.text import StopStrings, TextStream, cut_before, text_pieces
from support.models.scripted_models import TEXT, generating
from support.models.tiny_models import EOS, VOCABULARY, llama, word_tokenizer
from support.models.tiny_pair import related
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


NEW = 24
STOPS = ["w5", "w12 w"]


def stream_pieces(tokenizer: Any, tokens: list[int], sizes: list[int]) -> list[str]:
    """The pieces of a text that grows by `sizes` tokens, in turn."""
    stream, end = TextStream(tokenizer, ()), 0
    pieces: list[str] = []
    while end < len(tokens):
        end += sizes[len(pieces) % len(sizes)]
        pieces.append(stream.push(tokens[:end]))
    return [*pieces, stream.rest(decode_whole(tokenizer, tokens))]


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("kind", TOKENIZERS)
@given(st.data())
def test_pieces_concatenate_to_any_text(kind: str, data: st.DataObject) -> None:
    """Arbitrary tokens: bytes that form no character, special tokens, spaces at every border."""
    tokenizer = TOKENIZERS[kind]
    tokens = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=14))
    assert "".join(stream_pieces(tokenizer, tokens, data.draw(SIZES))) == decode_whole(tokenizer, tokens)


@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
@given(text=st.text("aex 你好é😀\n", max_size=12), cut=st.integers(0, 3), sizes=SIZES)
@example(text="你é", cut=1, sizes=[1])
def test_pieces_concatenate_to_text_cut_within_a_character(kind: str, text: str, cut: int, sizes: list[int]) -> None:
    tokenizer = TOKENIZERS[kind]
    tokens = tokenizer(text)["input_ids"]
    kept = tokens[: max(0, len(tokens) - cut)]
    pieces = stream_pieces(tokenizer, kept, sizes)
    assert "".join(pieces) == decode_whole(tokenizer, kept)
    assert not any("\ufffd" in piece for piece in pieces[:-1])


def test_plain_text_is_emitted_at_once() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    tokens = tokenizer("plain words")["input_ids"]
    assert stream_pieces(tokenizer, tokens, [1]) == [*"plain words", ""]
    assert stream_pieces(tokenizer, tokens, [4]) == ["plai", "n wo", "rds", ""]


def test_a_possible_start_of_a_stop_string_is_held_back() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    tokens = tokenizer("ab<ab<st")["input_ids"]
    stream = TextStream(tokenizer, ["<stop>"])
    assert [stream.push(tokens[:n]) for n in range(5, 9)] == ["", "a", "b", "<"]


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("kind", TOKENIZERS)
@given(st.data())
def test_stop_strings_are_found_when_they_are_completed(kind: str, data: st.DataObject) -> None:
    """Compared with decoding the whole text at every length; the stop string is a part of it."""
    tokenizer = TOKENIZERS[kind]
    tokens = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=14))
    text = decode_whole(tokenizer, tokens).replace("\ufffd", "x")  # no stop string is half a character
    start = data.draw(st.integers(0, len(text)))
    stop = text[start : start + data.draw(st.integers(1, 5))] or "x"
    lengths = range(1, len(tokens) + 1)
    expected = next((n for n in lengths if stop in decode_whole(tokenizer, tokens[:n])), None)
    assert first_stop(StopStrings(tokenizer, [stop]), tokens, data.draw(SIZES)) == expected


def first_stop(stops: StopStrings, tokens: list[int], sizes: list[int]) -> int | None:
    end = rounds = 0
    while end < len(tokens):
        new = min(sizes[rounds % len(sizes)], len(tokens) - end)
        end, rounds = end + new, rounds + 1
        if (actual := stops.completed_at(tokens[:end], new)) is not None:
            return actual
    return None


@pytest.mark.parametrize(
    ("stop", "tokens", "count", "text"),
    [
        ("<end>", ["a", "<end>", "b"], 2, "a"),
        ("b<end>", ["a", "b", "<end>"], 3, "a"),
        ("<end>b", ["a", "<end>", "c", "<end>", "b", "c"], 5, "ac"),
        ("c", ["a", "<end>", "b", "c", "a"], 4, "ab"),
        ("<end>", ["a", "b"], None, "ab"),
    ],
)
def test_a_stop_string_may_be_a_special_token(stop: str, tokens: list[str], count: int | None, text: str) -> None:
    """Which has no text of its own; the text ends before it."""
    tokenizer = deepcopy(TOKENIZERS["byte-level"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    ids: Any = tokenizer.convert_tokens_to_ids(tokens)
    for sizes in ([1], [2], [3]):
        assert first_stop(StopStrings(tokenizer, [stop]), ids, sizes) == count
    assert cut_before(tokenizer, ids[:count], [stop]) == text


def test_a_text_is_cut_before_a_stop_string_that_ends_in_a_special_token() -> None:
    """Also where a character of several tokens and other special ones come before it."""
    tokenizer = deepcopy(TOKENIZERS["byte-level"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "<end>"]})
    tokens = tokenizer("é😀x<think>yz<end>", add_special_tokens=False)["input_ids"]
    assert cut_before(tokenizer, tokens, ["yz<end>"]) == "é😀x"
    assert cut_before(tokenizer, tokens, ["<end>"]) == "é😀xyz"


def test_a_stop_string_is_found_after_a_run_of_bytes_and_special_tokens() -> None:
    """Their tail on its own would decode to something else, or to nothing."""
    tokenizer = TOKENIZERS["byte fallback"]
    vocabulary = tokenizer.get_vocab()
    run = [vocabulary[f"<0x{byte:02X}>"] for byte in "你好".encode()]
    assert StopStrings(tokenizer, ["好"]).completed_at(run, 1) == 6
    assert StopStrings(tokenizer, ["你"]).completed_at(run[:4], 2) == 3  # the fourth byte makes it invalid again
    assert StopStrings(tokenizer, ["nx"]).completed_at([vocabulary["n"], 0, 0, 0, 0, vocabulary["x"]], 1) == 6


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
def test_a_text_of_many_alphabets_is_streamed(kind: str) -> None:
    pair = generating(kind)
    pieces = list(pair.stream([5], 90))
    assert "".join(pieces) == TEXT
    assert len(pieces) > 5
    assert not any("\ufffd" in piece for piece in pieces)
    with_ngram = SpeculativeDecoder(pair.target, NGram(), pair.tokenizer)
    assert "".join(with_ngram.stream([5], 90, threshold=-1.0)) == TEXT


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
def test_a_text_that_ends_anywhere_is_streamed(kind: str) -> None:
    """Truncated within every character and every round."""
    pair = generating(kind)
    tokens = pair.tokenizer(TEXT)["input_ids"]
    for room in range(1, 26):
        assert "".join(pair.stream([5], room)) == decode_whole(pair.tokenizer, tokens[:room])


@pytest.mark.thinned(every=9)
@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
@pytest.mark.parametrize(
    "stop", [[TEXT[0]], [TEXT[:9]], ["😀🎉 naïve 你好, don't"], ["你", "é"], ["\n\n"], ["zz"], ["."]]
)
def test_a_text_ends_before_its_stop_string(kind: str, stop: list[str]) -> None:
    """Stop strings at the start, over several rounds, one of two, one that never occurs, and one before EOS."""
    pair = generating(kind)
    (result,) = pair.generate([[5]], 90, stop=stop)
    starts = [TEXT.index(s) for s in stop if s in TEXT]
    assert result.text == TEXT[: min(starts, default=None)]
    assert result.finish_reason == ("stop" if starts else "eos")
    assert "".join(pair.stream([5], 90, stop=stop)) == result.text


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder(llama(seed=1), llama(seed=2, layers=1), word_tokenizer())


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = Random(0)
    return [[rng.randrange(2, VOCABULARY) for _ in range(rng.randint(1, 12))] for _ in range(10)]


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("rule", ["target", "sd", "fsd", "fsd-coupled"])
def test_pieces_concatenate_to_the_text_of_generate(
    decoder: SpeculativeDecoder, prompts: list[list[int]], rule: str
) -> None:
    """Sampled, with EOS and a stop string; `id` selects the noise as `ids` does."""
    actual = decoder.generate(prompts, 8, 0.9, rule=rule, threshold=0.3, stop=STOPS)
    assert {r.finish_reason for r in actual} == {"eos", "length", "stop"}
    for i, (prompt, result) in enumerate(zip(prompts, actual, strict=True)):
        pieces = decoder.stream(prompt, 8, rule=rule, threshold=0.3, id=i, stop=STOPS, temperature=0.9)
        assert "".join(pieces) == result.text


def test_a_piece_comes_before_the_text_is_finished(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    """By the number of forward passes: the first pieces come before the last round's pass."""
    fed = 0

    def count(*_: Any) -> None:
        nonlocal fed
        fed += 1

    handle = decoder.target.register_forward_hook(count)
    counts = [fed for _ in decoder.stream(prompts[0], NEW, rule="target", temperature=0.5)]
    handle.remove()
    assert len(counts) > 3
    assert counts == sorted(set(counts))


WRONG: list[tuple[str, Any, dict[str, Any]]] = [
    ("prompt 0 is empty", [], {}),
    ("prompt 0 has 128 tokens", [5] * 128, {}),
    ("max_new_tokens is 0", [5], {"max_new_tokens": 0}),
    ("draft_length is 0", [5], {"draft_length": 0}),
    ("threshold is NaN", [5], {"threshold": float("nan")}),
    ("unknown rule 'x'", [5], {"rule": "x"}),
    ("temperature is -1", [5], {"temperature": -1.0}),
    ("stop is 'ab'", [5], {"stop": "ab"}),
]


@pytest.mark.parametrize(("message", "prompt", "more"), WRONG, ids=[m for m, _, _ in WRONG])
def test_invalid_arguments_are_refused_at_the_call(
    decoder: SpeculativeDecoder, message: str, prompt: list[int], more: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=message):
        decoder.stream(prompt, **more)  # without requesting a piece


PROMPTS = [[first, 5, 11] for first in range(2, 32, 3)]
CONFIGURED: dict[str, Any] = {
    "none": None,
    "one": EOS[1],
    "several": list(EOS[1:]),
    "a tensor": torch.tensor(EOS[2]),
    "an empty list": [],
}


@pytest.mark.thinned(every=5)
@pytest.mark.parametrize("rule", ["target", "coupled"])
@pytest.mark.parametrize("case", CONFIGURED)
def test_a_text_ends_where_generate_ends_it(case: str, rule: str) -> None:
    """None of these configurations names the tokenizer's EOS, of which `generate` does not know."""
    target, draft = related(seed=1, spread=0.05)
    target.generation_config.eos_token_id = CONFIGURED[case]
    results = SpeculativeDecoder(target, draft, word_tokenizer(), rule=rule).generate(PROMPTS, 40)
    expected = _generated_of(case)
    for result, (tokens, ended) in zip(results, expected, strict=True):
        assert result.tokens == tokens
        assert (result.finish_reason == "eos") == ended
    assert any(EOS[0] in tokens for tokens, _ in expected)  # the tokenizer's own, within a text


@cache
def _generated_of(case: str) -> list[tuple[list[int], bool]]:
    target, _ = related(seed=1, spread=0.05)
    target.generation_config.eos_token_id = CONFIGURED[case]
    return [_generated(target, prompt) for prompt in PROMPTS]


def _generated(target: Any, prompt: list[int]) -> tuple[list[int], bool]:
    """The new tokens of `generate`, without the EOS that ends them, and whether there is one."""
    ids = torch.tensor([prompt])
    out = target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
    tokens = out[0, len(prompt) :].tolist()
    configured = target.generation_config.eos_token_id
    ends = [] if configured is None else torch.as_tensor(configured).flatten().tolist()
    return (tokens[:-1], True) if tokens[-1] in ends else (tokens, False)
