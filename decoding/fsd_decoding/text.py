"""Text and tokens: a prompt's tokens, incremental detokenization, stop strings and tables per tokenizer.

Text is only emitted once later tokens cannot change it: a character may take several tokens, and a stop string may be
half complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fsd_common.errors import UsageError

_BROKEN = "\ufffd"  # an incomplete character decodes to this


class TextStream:
    """Detokenizes a growing token list into pieces: `push` after every round, then `rest` of the finished text.

    The pieces concatenate to the finished text. The whole text is decoded every time, because a tail may decode
    differently on its own than after the tokens before it.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer, self._unsettled = tokenizer, unsettled_tokens(tokenizer)
        self._held_back = max((len(s) for s in stops), default=1) - 1  # characters that may begin a stop string
        self._emitted = 0  # characters

    def push(self, tokens: list[int]) -> str:
        """Returns the new text that is final, given all tokens so far; possibly empty."""
        end = len(tokens)
        while end and tokens[end - 1] in self._unsettled:
            end -= 1
        text = self._tokenizer.decode(tokens[:end], skip_special_tokens=True).rstrip(_BROKEN)
        if self._tokenizer.clean_up_tokenization_spaces:  # " n" and "'t" become "n't": the last space may vanish
            text = text.rpartition(" ")[0]
        return self.rest(text[: max(0, len(text) - self._held_back)])

    def rest(self, text: str) -> str:
        """Returns the part of the finished text that was not emitted yet."""
        piece = text[self._emitted :]
        self._emitted += len(piece)
        return piece


def text_pieces(tokenizer: Any, tokens: Sequence[int], text: str) -> list[str]:
    """Splits a text into the part of each of its tokens; some may be empty, and joined they are the text.

    A part is what the token adds to the beginning that is certain with it: of a character that several tokens make up,
    the last one has all. A text cut at a stop string may be shorter than its tokens.
    """
    pieces, end = [], 0
    for count in range(1, len(tokens) + 1):
        begin, known = end, tokenizer.decode(tokens[:count], skip_special_tokens=True)
        while end < min(len(known), len(text)) and known[end] == text[end]:
            end += 1
        pieces.append(text[begin:end])
    return pieces


def token_name(tokenizer: Any, token: int) -> str:
    """Returns a token alone: as text, or if that is no whole character, as it is in the vocabulary."""
    text: str = tokenizer.decode([token], skip_special_tokens=False)
    return str(tokenizer.convert_ids_to_tokens(token)) if not text or _BROKEN in text else text


def unsettled_tokens(tokenizer: Any) -> frozenset[int]:
    """Returns tokens whose text depends on their neighbours or is empty.

    Special tokens have no text; and of a run of byte tokens (`<0xE4>`, byte fallback), one invalid byte breaks all.
    """
    special = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
    byte_ids = tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in range(256)])  # None or unk where missing
    return frozenset(i for i in special + byte_ids if i is not None)


class StopStrings:
    """Finds stop strings in a growing token list, special tokens among them, such as an end of turn.

    Only the tail that a newly completed stop string could reach into is decoded; a match is then confirmed on the whole
    text.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer, self._unsettled = tokenizer, unsettled_tokens(tokenizer)
        self._stops = tuple((stop, _holds_special(tokenizer, stop)) for stop in stops)
        # Any token with text of its own is at least one byte, so this many of them before the new ones are enough.
        self._reach = max(len(s.encode()) for s in stops)

    def completed_at(self, tokens: list[int], new: int) -> int | None:
        """Returns the number of `tokens` up to the one that completes a stop string, or None.

        Only the last `new` tokens can complete one; the others were checked before.
        """
        start, reached = len(tokens) - new, 0
        while start > 0 and reached < self._reach:
            start -= 1
            reached += tokens[start] not in self._unsettled
        ends = range(len(tokens) - new + 1, len(tokens) + 1)
        # Text may change again within a round, where its end alone does not show every completed stop.
        changes = self._tokenizer.clean_up_tokenization_spaces or not self._unsettled.isdisjoint(tokens[-new:])
        if not any(self._holds(tokens[start:end]) for end in (ends if changes else ends[-1:])):
            return None
        return next((end for end in ends if self._holds(tokens[:end])), None)

    def _holds(self, tokens: list[int]) -> bool:
        decode = self._tokenizer.decode
        return any(stop in decode(tokens, skip_special_tokens=not special) for stop, special in self._stops)


def cut_before(tokenizer: Any, tokens: Sequence[int], stops: Sequence[str]) -> str:
    """Returns the text of tokens, without special ones, up to the first stop string."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    cuts = [text]
    for stop in stops:
        if not _holds_special(tokenizer, stop):
            cuts.append(text.partition(stop)[0])
        elif stop in (whole := tokenizer.decode(tokens, skip_special_tokens=False)):
            cuts.append(_without_special(tokenizer, tokens, whole.partition(stop)[0]))
    return min(cuts, key=len)


def _without_special(tokenizer: Any, tokens: Sequence[int], beginning: str) -> str:
    """The beginning of a text with special tokens, without them. It ends in one of the last tokens."""
    for count in range(len(tokens), -1, -1):
        whole = tokenizer.decode(tokens[:count], skip_special_tokens=False)
        if beginning.startswith(whole):
            text: str = tokenizer.decode(tokens[:count], skip_special_tokens=True)
            return text + beginning[len(whole) :]
    return beginning


def _holds_special(tokenizer: Any, stop: str) -> bool:
    return any(token.special and token.content in stop for token in tokenizer.added_tokens_decoder.values())


Table = TypeVar("Table")


def per_tokenizer(compute: Callable[[Any], Table]) -> Callable[[Any], Table]:
    """Returns `compute` with its result cached per tokenizer.

    Policies are created anew for every call of the decoder, and a pass over the whole vocabulary takes seconds.
    """
    cache: WeakKeyDictionary[Any, dict[int, Table]] = WeakKeyDictionary()  # by size too, as tokens may be added

    def cached(tokenizer: Any) -> Table:
        tables = cache.setdefault(tokenizer, {})
        if len(tokenizer) not in tables:
            tables[len(tokenizer)] = compute(tokenizer)
        return tables[len(tokenizer)]

    return cached


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """Returns the tokens of a text as the models read it."""
    # A chat template may already have added the BOS.
    begun = tokenizer.bos_token is not None and prompt.startswith(tokenizer.bos_token)
    try:
        tokens: list[int] = tokenizer(prompt, add_special_tokens=not begun)["input_ids"]
    except (TypeError, UnicodeEncodeError) as error:
        if not any("\ud800" <= character <= "\udfff" for character in prompt):  # as of a byte that is not UTF-8
            raise
        raise UsageError(f"prompt {prompt!r:.40} holds what is not UTF-8; give it in UTF-8") from error
    return tokens


@per_tokenizer
def token_bytes(tokenizer: Any) -> list[bytes]:
    """Returns the bytes that each token adds to a text, by id; special tokens have theirs, parts of characters, too."""
    ids, unsettled = range(len(tokenizer)), unsettled_tokens(tokenizer)
    anchor = next(i for i in ids if i not in unsettled and tokenizer.decode([i]).strip())
    alone, *texts = tokenizer.batch_decode(  # behind another token: at the beginning a space may be left out
        [[anchor], *([anchor, i] for i in ids)], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    names = tokenizer.convert_ids_to_tokens(ids)
    return [
        _bytes_named(name) if _BROKEN in text else text.removeprefix(alone).encode()
        for name, text in zip(names, texts, strict=True)
    ]


def _bytes_named(name: str) -> bytes:
    """The bytes of a token that is no whole character: `<0xE4>`, or a character of byte-level BPE for each byte."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    if name.startswith("<0x"):
        return bytes([int(name[3:-1], 16)])
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    return bytes(byte_of[c] for c in name) if byte_of.keys() >= set(name) else name.encode()
