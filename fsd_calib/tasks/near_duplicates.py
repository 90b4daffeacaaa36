"""Texts of one set that nearly repeat a text of another: the same story with other names or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BOUND = 0.7
"""The similarity from which on texts count as nearly the same.

Looked at on GSM8K (1,319 test problems against all 7,473 of train): the three pairs above it (.87, .78, .74) are each
one story with other names or numbers; of the ten next, from .64 down, one is, and the others share a setting and ask
for something else.
"""
_RUN = 6  # characters: more than most words, and no language needs to be told apart into words
_CHUNK = 256  # texts at once, so that memory does not grow with the number of pairs


@dataclass(frozen=True)
class NearDuplicates:
    """count: texts that closely resemble one of the others. closest: the most similar such pair, at `similarity`."""

    count: int
    similarity: float
    closest: tuple[str, str]


def near_duplicates(texts: Sequence[str], others: Sequence[str]) -> NearDuplicates | None:
    """How many of `texts` closely resemble one of `others`, and which the most; None: no text does.

    Similarity is the cosine of TF-IDF vectors of all runs of six characters, whatever their case, weighed by how rare
    they are in both sets together: what many texts have in common, as a form of asking, hardly counts.
    """
    if not texts or not others:
        return None
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(analyzer=_runs, dtype=np.float32).fit_transform([*texts, *others])
    ours, theirs = vectors[: len(texts)], vectors[len(texts) :].T.tocsr()
    best, at = [], []
    for begin in range(0, len(texts), _CHUNK):
        similarity = (ours[begin : begin + _CHUNK] @ theirs).toarray()  # (chunk, others)
        best.append(similarity.max(1))
        at.append(similarity.argmax(1))
    highest, nearest = np.concatenate(best), np.concatenate(at)
    count, first = int((highest >= BOUND).sum()), int(highest.argmax())
    return NearDuplicates(count, float(highest[first]), (texts[first], others[nearest[first]])) if count else None


def _runs(text: str) -> list[str]:
    folded = text.casefold()
    return [folded[at : at + _RUN] for at in range(max(len(folded) - _RUN + 1, 1))]
