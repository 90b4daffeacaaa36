"""The two markers of a phase of a text, such as `<think>` and `</think>`, and where they stand in token ids.

A text is outside the phase until its first begin marker ends, inside it until the next end marker ends, and so on. That
is read by a finite automaton over tokens, whose table says which state follows a state by a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.text import per_tokenizer, token_bytes

Marker = str | int
"""A text, which may take several tokens, or end within one; or the id of a token."""
Markers = tuple[Marker, Marker]
"""Where a phase begins, and where it ends."""

THINKING: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|channel>thought", "<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("◁think▷", "◁/think▷"),
)
"""Markers between which models think, in the order in which they are looked for."""


def thinking_markers(tokenizer: Any) -> Markers | None:
    """Returns the markers between which a model thinks, by its chat template or its tokens; None: there are none."""
    template, tokens = str(tokenizer.chat_template), tokenizer.get_vocab()
    for pair in THINKING:
        if all(marker in template for marker in pair) or all(marker in tokens for marker in pair):
            return pair
    return None


@dataclass(frozen=True, eq=False)
class Automaton:
    """Reads where a text is between two markers.

    States count the bytes of the marker that is looked for: first those outside the phase, where the begin marker is
    looked for, then those inside it.

    Args:
        table: (S, V + 1) the state after each token; the last column is for ids that no token has.
        inside: the first state inside the phase.
    """

    table: NDArray[np.int16]
    inside: int
    _on: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)  # the table, by device

    def read(self, tokens: Sequence[int]) -> list[int]:
        """Returns the states before each token of a text, and after the last, on the host."""
        states, unknown = [0], self.table.shape[1] - 1
        for token in tokens:
            states.append(self.table.item(states[-1], min(token, unknown)))
        return states

    def after(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Returns the states after one token each: (…) of states (…) and ids (…), whatever ids padding has."""
        if states.device not in self._on:
            self._on[states.device] = torch.from_numpy(self.table).to(states.device)
        return self._on[states.device][states, tokens.long().clamp(0, self.table.shape[1] - 1)].long()

    def along(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Returns the states before each of n tokens in a row, and after the last: (B, n + 1) of states (B,) and ids
        (B, n)."""
        found = [states]
        for column in tokens.unbind(1):
            found.append(self.after(found[-1], column))
        return torch.stack(found, 1)


def automaton(tokenizer: Any | None, markers: Markers) -> Automaton:
    """Returns the automaton of two markers; it is built once for each tokenizer.

    Raises:
        UsageError: a marker is a text and there is no tokenizer, or an id that the tokenizer does not have.
    """
    if tokenizer is None:
        for marker in markers:
            if isinstance(marker, str):
                raise UsageError(
                    f"the marker {marker!r:.60} cannot be found without a tokenizer; pass one to the decoder "
                    "(fsd_generate takes it as fsd_tokenizer), or give ids of tokens"
                )
        return _built([b""] * (1 + max(map(int, markers))), markers)
    for marker in markers:
        if not isinstance(marker, str) and marker >= len(tokenizer):
            raise UsageError(f"the marker {marker} is no token; ids are from 0 to {len(tokenizer) - 1}")
    known = _automata(tokenizer)
    if markers not in known:
        known[markers] = _built(token_bytes(tokenizer), markers)
    return known[markers]


@per_tokenizer
def _automata(tokenizer: Any) -> dict[Markers, Automaton]:
    return {}


def _built(texts: Sequence[bytes], markers: Markers) -> Automaton:
    """The automaton of a vocabulary: the bytes of each token."""
    begin, end = (marker.encode() if isinstance(marker, str) else b"" for marker in markers)
    inside = max(len(begin), 1)
    starts = 0, inside
    by_byte = np.concatenate([_by_byte(begin, 0, inside), _by_byte(end, inside, 0)])
    table = np.empty((len(by_byte), len(texts) + 1), np.int16)
    table[:, :-1] = _by_token(by_byte, texts)
    table[:inside, -1], table[inside:, -1] = starts
    for own, other, marker in zip(starts, starts[::-1], markers, strict=True):
        if not isinstance(marker, str):
            table[own, marker] = other
    return Automaton(table, inside)


def _by_byte(marker: bytes, start: int, after: int) -> NDArray[np.int16]:
    """The states that follow by a byte while a marker is looked for: (bytes of it, 256), of Knuth, Morris and Pratt.

    Args:
        start: the state in which nothing of it is found.
        after: the state when it is found.
    """
    if not marker:
        return np.full((1, 256), start, np.int16)
    found = np.full((len(marker), 256), start, np.int16)
    border = 0  # bytes at the end of what is found that begin the marker as well
    for count, byte in enumerate(marker):
        if count:
            found[count] = found[border]
            border = int(found[border, byte]) - start
        found[count, byte] = start + count + 1
    found[-1, marker[-1]] = after
    return found


def _by_token(by_byte: NDArray[np.int16], texts: Sequence[bytes]) -> NDArray[np.int16]:
    """The states (S, V) that follow by tokens, from those that follow by bytes (S, 256)."""
    lengths = np.array([len(text) for text in texts])
    begins, flat = lengths.cumsum() - lengths, np.frombuffer(b"".join(texts), np.uint8)
    states = np.repeat(np.arange(len(by_byte), dtype=np.int16)[:, None], len(texts), 1)
    for place in range(lengths.max(initial=0)):
        longer = np.flatnonzero(lengths > place)
        states[:, longer] = by_byte[states[:, longer], flat[begins[longer] + place]]
    return states
