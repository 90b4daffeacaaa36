"""What a perfect judge could: it keeps every swap that keeps the answer right, and knows which do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lib.rules.curves import Found, draws


def perfect(labels: pd.DataFrame, texts: pd.DataFrame, draft_length: int) -> Found:
    """Returns the tokens a round of a judge that rejects the harmful mismatches alone, which loses no answer.

    Args:
        labels: from left to right, of all mismatches of a text, where harmless swaps stay: those of finished problems.
        texts: of these problems, the target's own, with their number of tokens, EOS included.
        draft_length: L.
    """
    counted = np.array(list(_counted(labels, texts, draft_length)))  # (problems, 2) tokens and rounds
    sums = draws(len(counted)) @ counted
    return Found.of(sums[:, 0] / sums[:, 1])


def _counted(labels: pd.DataFrame, texts: pd.DataFrame, draft_length: int) -> Iterator[tuple[int, int]]:
    harmful = labels[labels["harmful"]].groupby("problem")["position"].apply(list).to_dict()
    for problem, tokens in zip(texts["problem"].tolist(), texts["emitted"].tolist(), strict=True):
        yield tokens, rounds_of(tokens, harmful.get(problem, []), draft_length)


def rounds_of(tokens: int, rejected: list[int], draft_length: int) -> int:
    """Returns the rounds that a text takes in which the tokens drafted at these positions alone are rejected."""
    rounds, position, waiting = 0, 0, sorted(rejected)
    while position < tokens:
        rounds += 1
        waiting = [each for each in waiting if each >= position]
        last = position + draft_length  # of a draft that is kept as a whole, followed by the bonus token
        position = min(waiting[0], last) + 1 if waiting else last + 1
    return rounds
