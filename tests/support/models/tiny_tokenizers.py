"""Small tokenizers of the kinds whose tokens and characters differ, by name."""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from support.models.tiny_models import word_tokenizer


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2's: a token is one byte or several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "ð"), ("e", "n"), ("en", "d"), ("Ċ", "Ċ")]  # one of them ends within a character
    vocabulary = {"<eos>": 0} | {token: i for i, token in enumerate([*alphabet, *map("".join, merges)], 1)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama-2's: spaces are ▁, the first is dropped, and characters without a token are written as bytes."""
    pieces = [*"Hinavedotxyn.,'", "▁", "▁x", "▁en", "end"]
    words = ["<eos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *dict.fromkeys(pieces)]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "x")], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")


def cleaning() -> PreTrainedTokenizerFast:
    """Words separated by spaces, some of which the tokenizer removes again."""
    words = ["<eos>", "<unk>", "do", "n't", "'", "'s", "'ve", ".", ",", "we", "n", "?", "😀", "你", "好", "end"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(" "), "removed")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>", clean_up_tokenization_spaces=True
    )


TOKENIZERS = {"words": word_tokenizer(), "byte-level": byte_level(), "byte fallback": byte_fallback(),
              "cleaning": cleaning()}  # fmt: skip


def decode_whole(tokenizer: Any, tokens: list[int]) -> str:
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return text
