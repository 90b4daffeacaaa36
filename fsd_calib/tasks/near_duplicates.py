"""Near-duplicates: texts that closely resemble another, and texts that hold another one with something around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BOUND = 0.7
"""The similarity from which on texts count as near-duplicates.

Chosen on GSM8K (1,319 test problems compared with all 7,473 of train): the three pairs above it (.87, .78, .74) are
each one story with other names or numbers. Of the next ten, from .64 down, one is; the others share a setting and have
another question.
"""
HELD = 0.9
"""The share of a text from which on another one counts as holding it.

Chosen on 500 generated problems, compared with all 900 that include them: alone, in a line more, in JSON or below a
system text all 500 reach it, and below eight worked examples 277. Of 2,000 others 9 do: one is another without a
sentence.
"""
_LENGTH = 6  # characters: longer than most words, and needs no word segmentation
_CHUNK = 256  # texts at a time, which bounds the memory
_COMMON = 0.25  # rarity below which a run does not count: of 1,000 texts, 178 have it


@dataclass(frozen=True)
class NearDuplicates:
    """The result of a comparison.

    Attributes:
        count: Number of texts that closely resemble one of the others.
        similarity: Similarity of the closest pair.
        closest: The closest pair.
    """

    count: int
    similarity: float
    closest: tuple[str, str]


def near_duplicates(
    texts: Sequence[str], others: Sequence[str] | None = None, bound: float = BOUND
) -> NearDuplicates | None:
    """Returns how many of `texts` closely resemble one of `others`, and the closest pair; None: no text does.

    Args:
        others: None: the other ones of `texts`.

    The similarity is the cosine of TF-IDF vectors of all runs of six characters, ignoring case, weighted by their
    rarity in both sets together: phrases that many texts share hardly count.
    """
    if not texts or (others is not None and not others):
        return None
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer

    both = texts if others is None else [*texts, *others]
    vectors = TfidfVectorizer(analyzer=_character_runs, dtype=np.float32).fit_transform(both)
    ours, theirs = vectors[: len(texts)], vectors[0 if others is None else len(texts) :].T.tocsr()
    similar = []
    for start in range(0, len(texts), _CHUNK):
        similarity = (ours[start : start + _CHUNK] @ theirs).toarray()  # (chunk, others)
        if others is None:
            rows = np.arange(len(similarity))
            similarity[rows, start + rows] = 0
        similar.append(_closest(similarity))
    return _found(similar, texts, texts if others is None else others, bound)


def held(texts: Sequence[str], others: Sequence[str]) -> NearDuplicates | None:
    """Returns how many of `texts` hold one of `others`, or are held by one, whatever stands around it; None: none does.

    The similarity is the weight of the runs of six characters that two texts share, divided by that of the text with
    the smaller weight. A run weighs by its rarity among `texts` and among `others`, the smaller of both: what wraps
    many texts, such as worked examples before each, does not count.
    """
    if not texts or not others:
        return None
    import numpy as np
    from sklearn.feature_extraction.text import CountVectorizer

    counted = CountVectorizer(analyzer=_character_runs, binary=True, dtype=np.float32).fit([*texts, *others])
    ours, theirs = counted.transform(texts), counted.transform(others)
    our_rarity, their_rarity = _rarity(ours), _rarity(theirs)
    shared = np.minimum(our_rarity, their_rarity)
    our_weights, their_weights = ours @ our_rarity, theirs @ their_rarity
    counts = shared > 0
    weighted, columns = ours[:, counts].multiply(shared[counts]).tocsr(), theirs[:, counts].T.tocsr()
    similar = []
    for start in range(0, len(texts), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        smaller = np.minimum(our_weights[chunk, None], their_weights[None])  # (chunk, others)
        overlap = (weighted[chunk] @ columns).toarray()
        similar.append(_closest(np.divide(overlap, smaller, out=np.zeros_like(overlap), where=smaller > 0)))
    return _found(similar, texts, others, HELD)


def _rarity(counted: Any) -> NDArray[np.float32]:
    """Returns, (runs,), how rare each is among texts: 1 of those in one text, 0 of common ones."""
    import numpy as np

    texts = 1 + counted.shape[0]
    rarity = np.log(texts / np.maximum(np.asarray(counted.sum(0)).ravel(), 1)) / np.log(texts)
    return np.where(rarity < _COMMON, 0, rarity).astype(np.float32)


def _closest(similarity: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    return similarity.max(1), similarity.argmax(1)


def _found(
    similar: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]], texts: Sequence[str], others: Sequence[str],
    bound: float,
) -> NearDuplicates | None:  # fmt: skip
    import numpy as np

    highest, nearest = (np.concatenate(each) for each in zip(*similar, strict=True))
    count, first = int((highest >= bound).sum()), int(highest.argmax())
    return NearDuplicates(count, float(highest[first]), (texts[first], others[nearest[first]])) if count else None


def _character_runs(text: str) -> list[str]:
    folded = text.casefold()
    return [folded[at : at + _LENGTH] for at in range(max(len(folded) - _LENGTH + 1, 1))]
