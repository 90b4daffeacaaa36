"""What a perfect judge could: it knows which swaps keep the answer right, and which answers are worth giving up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.rules.curves import Floats, Found, draws


def perfect(labels: pd.DataFrame, texts: pd.DataFrame, draft_length: int, levels: Sequence[float]) -> list[Found]:
    """Returns the tokens a round of a judge that knows the labels, at each share of right answers to keep.

    It rejects the harmful mismatches alone, which loses no answer, and none where the target is wrong anyway. Of the
    answers that it may lose it gives up those that cost most rounds, and keeps everything there.

    Args:
        labels: from left to right, of all mismatches of a text, where harmless swaps stay.
        texts: the target's own, with their number of tokens, EOS included, and whether they are right.
        draft_length: L.
    """
    whole = labels.groupby("problem")["probability"].min() == 1.0  # of the others some mismatches have no label
    texts = texts[~texts["correct"] | texts["problem"].isin(whole.index[whole])]
    right, tokens = texts["correct"].to_numpy(bool), texts["emitted"].to_numpy(np.int64)
    harmful = labels[labels["harmful"]].groupby("problem")["position"].apply(list).to_dict()
    rounds = _rounds(tokens, [harmful.get(problem, []) for problem in texts["problem"]], draft_length)
    saved = rounds - _rounds(tokens, [[] for _ in tokens], draft_length)
    weights = draws(len(texts))
    least = {level: rounds - _given_up(saved, right, weights, 1 - level) * saved for level in levels}
    return [Found.of(weights @ tokens / (weights * least[level]).sum(1)) for level in levels]


def _given_up(saved: Floats, right: Floats, weights: Floats, share: float) -> Floats:
    """Returns which answers to give up in each draw, those that save most first: (draws, problems) bool."""
    order = np.argsort(-saved, kind="stable")
    lost = np.cumsum((weights * (right & (saved > 0)))[:, order], 1)
    given_up = np.empty(weights.shape, dtype=bool)
    given_up[:, order] = lost <= share * (weights @ right)[:, None]
    return given_up


def _rounds(tokens: Floats, rejected: Sequence[list[int]], draft_length: int) -> Floats:
    return np.array([rounds_of(*each, draft_length) for each in zip(tokens.tolist(), rejected, strict=True)])


def rounds_of(tokens: int, rejected: list[int], draft_length: int) -> int:
    """Returns the rounds that a text takes in which the tokens drafted at these positions alone are rejected."""
    rounds, position, waiting = 0, 0, sorted(rejected)
    while position < tokens:
        rounds += 1
        waiting = [each for each in waiting if each >= position]
        last = position + draft_length  # of a draft that is kept as a whole, followed by the bonus token
        position = min(waiting[0], last) + 1 if waiting else last + 1
    return rounds


def share_of(tokens: float, lossless: float, best: float) -> float:
    """Returns which share of what a perfect judge gains over lossless decoding a score does, in tokens a round."""
    return (tokens - lossless) / (best - lossless)
