"""When a beam's text ends: with an EOS token or a stop string."""

from __future__ import annotations

from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.layer import Ending
from fsd_decoding.text import StopStrings


class TextEnds:
    """Says why a text ends when a token comes after a node; None: it goes on.

    Args:
        eos: tokens that end a text.
        stops: finds stop strings; None: there are none.
    """

    def __init__(self, eos: frozenset[int], stops: StopStrings | None) -> None:
        self._eos, self._stops = eos, stops

    def __call__(self, forest: Forest, node: int, token: int) -> Ending | None:
        if token in self._eos:
            return "eos"
        if self._stops is not None and self._stops.completed_at([*forest.path(node), token], 1) is not None:
            return "stop"
        return None
