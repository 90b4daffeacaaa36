"""How beams are chosen: the interface of beam search, stochastic beam search and draws with replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fsd_decoding.beams.candidates import Candidates
from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.layer import STAYS, Beams, Done, Drafted, Ends, Layer
from fsd_decoding.beams.settings import BeamSettings


@dataclass(frozen=True)
class Judged:
    """What the target makes of a drafted layer.

    Args:
        layer: the next layer.
        goes_on: whether the target has read all of it that has not ended.
        candidates: what it was chosen of.
    """

    layer: Layer
    goes_on: bool
    candidates: Candidates


class Search(Protocol):
    """A way to choose layers, the same for target and draft.

    Log-probabilities (n, V) are processed, and of the tokens after the beams that have not ended.
    """

    def own(self, forest: Forest, beams: Beams, log_p: Tensor) -> Layer:
        """Returns the layer that the target alone chooses."""

    def draft(self, forest: Forest, beams: Beams, log_q: Tensor) -> Layer:
        """Returns the layer that the draft proposes."""

    def judge(self, forest: Forest, beams: Beams, log_p: Tensor, drafted: Drafted) -> Judged:
        """Returns the next layer without loss: it is `own`, or has its law; with a dynamic width, fewer draws of it."""

    def is_over(self, beams: Beams) -> bool:
        """Returns whether no further layer is wanted, at less than the most tokens."""

    def texts(self, forest: Forest, beams: Beams) -> list[Done]:
        """Returns the texts of a search that is over, the best first."""


class UntilAllEnd:
    """How a search of random beams ends: a text that has ended stays a beam, and all beams are texts in the end.

    Args:
        settings: how many beams, and how they are ranked at last.
        ends: whether a text ends.
    """

    def __init__(self, settings: BeamSettings, ends: Ends) -> None:
        self._settings, self._ends = settings, ends

    def is_over(self, beams: Beams) -> bool:
        return not beams.live

    def texts(self, forest: Forest, beams: Beams) -> list[Done]:
        """The texts by their penalised scores; those that have not ended are cut."""
        found = []
        for node, score, reason in zip(beams.nodes, beams.scores.tolist(), beams.ended, strict=True):
            tokens = forest.path(node)
            penalised = self._settings.penalised(score, len(tokens))
            eos = tokens.pop() if reason == "eos" else None
            found.append(Done(tokens, penalised, score, reason or "length", eos))
        return sorted(found, key=lambda text: -text.score)


def kept_from_draft(forest: Forest, judged: Judged, drafted: Drafted, ends: Ends, most: int) -> Layer | None:
    """Returns a layer of the draft's own samples, with the target's scores; None: the exact layer has more.

    They are the first that come after beams of the target and that it gives a probability.
    """
    candidates = judged.candidates
    placed = (candidates.beams.place_of(pair, candidates.vocabulary) for pair in drafted.layer.pairs)
    places = candidates.possible([place for place in placed if place is not None])[:most]
    if len(places) < len(judged.layer.pairs):
        return None
    return candidates.layer(forest, places, ends, judged.layer.done)


def all_drafted(forest: Forest, layer: Layer) -> bool:
    """Returns whether the forest has all pairs of a layer, except those that end a text, which need not be read."""
    return all(
        token == STAYS or reason is not None or forest.find(node, token) is not None
        for (node, token), reason in zip(layer.pairs, layer.ends, strict=True)
    )
