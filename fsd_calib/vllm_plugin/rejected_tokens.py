"""Fuzzy acceptance of greedy requests' tokens on a CPU: D only of those that the exact rule rejects, where needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Looked(NamedTuple):
    """What is known of N drafted tokens."""

    divergences: list[float]  # N; infinity where D was not computed
    fuzzy: list[int]  # the tokens with D <= T


def look_at_rejected(
    accepted: Sequence[bool], counts: Sequence[int], thresholds: Sequence[float],
    divergences: Callable[[list[int]], Sequence[float]],
) -> Looked:  # fmt: skip
    """Compares D with T for tokens that the exact rule rejects: each request's first, then those behind it.

    A request whose first one is rejected by D, too, reaches no other. This is plain Python: there are few tokens, and
    arrays would take longer.

    Args:
        accepted: whether the exact rule accepts a token, for N tokens of B requests in order.
        counts: B numbers of tokens.
        thresholds: T of the B requests; below 0: it is decoded exactly.
        divergences: returns D of some of the N tokens.
    """
    looked = Looked([math.inf] * len(accepted), [])

    def look(tokens: list[int], bounds: list[float]) -> None:
        for token, value, bound in zip(tokens, divergences(tokens) if tokens else (), bounds, strict=True):
            looked.divergences[token] = value
            if value <= bound:
                looked.fuzzy.append(token)

    of_requests, begin = [], 0
    for count, threshold in zip(counts, thresholds, strict=True):
        rejected = [token for token in range(begin, begin + count) if threshold >= 0 and not accepted[token]]
        if rejected:
            of_requests.append((rejected, threshold))
        begin += count
    look([tokens[0] for tokens, _ in of_requests], [threshold for _, threshold in of_requests])
    if looked.fuzzy:
        passed = set(looked.fuzzy)
        behind = [(token, bound) for tokens, bound in of_requests if tokens[0] in passed for token in tokens[1:]]
        look([token for token, _ in behind], [bound for _, bound in behind])
    return looked
