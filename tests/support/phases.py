"""Phases of a text in plain Python, to compare with."""

from __future__ import annotations

from collections.abc import Sequence

from fsd_decoding.policies.markers import Markers


def inside_before(tokens: Sequence[int], texts: Sequence[bytes], markers: Markers) -> list[bool]:
    """Whether each token is inside the phase, and what would follow the last: by looking for one marker at a time.

    Args:
        texts: of all tokens, by id.
    """
    inside, rest, found = False, b"", []
    for token in tokens:
        found.append(inside)
        rest += texts[token]
        while True:
            marker = markers[inside]
            if isinstance(marker, int):
                rest = b""
                if token == marker and inside is found[-1]:
                    inside = not inside
                break
            _, marked, after = rest.partition(marker.encode())
            if not marked:
                break
            inside, rest = not inside, after
    return [*found, inside]
