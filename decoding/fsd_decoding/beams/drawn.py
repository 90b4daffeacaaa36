"""Beam sampling: pairs drawn with replacement, and speculatively with the same law (DSBD, arXiv 2409.16560)."""

from __future__ import annotations

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.beams.candidates import Candidates, joint, restricted
from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.layer import Beams, Done, Drafted, Ends, Layer
from fsd_decoding.beams.search import Judged, ranked_texts
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.beams.width import dynamic_width
from fsd_decoding.noise import Stream


class DrawnBeams:
    """Draws W pairs from the joint law of a layer; a text that has ended is one of its candidates.

    Speculatively, the draft's samples are tested in order, as in `judge`. The width n of the next layer is chosen
    before that, from p and q alone. So given all layers before, its n beams are independent samples of p, as without a
    draft. The published code draws W beams where fewer than n samples are accepted: then what these are decides how
    many beams there are, and the law is another.

    Args:
        settings: how many beams, and how they are ranked at last.
        ends: whether a text ends.
    """

    def __init__(self, settings: BeamSettings, ends: Ends) -> None:
        self._settings, self._ends = settings, ends

    def own(self, forest: Forest, beams: Beams, log_p: Tensor) -> Layer:
        return self._drawn(forest, beams, log_p, self._settings.beams)

    def draft(self, forest: Forest, beams: Beams, log_q: Tensor) -> Layer:
        return self._drawn(forest, beams, log_q, self._settings.width)

    def _drawn(self, forest: Forest, beams: Beams, log_p: Tensor, count: int) -> Layer:
        uniforms = _uniforms(forest, beams, Stream.TOKEN, count, log_p.device)
        return self._candidates(beams, log_p).layer(forest, _places(joint(beams, log_p).exp(), uniforms), self._ends)

    def _candidates(self, beams: Beams, log_p: Tensor) -> Candidates:
        scores = beams.scores[beams.live, None] + log_p
        return Candidates.of(beams, scores, scores)

    def judge(self, forest: Forest, beams: Beams, log_p: Tensor, drafted: Drafted) -> Judged:
        """Tests the draft's samples one after the other, until n are accepted.

        One is accepted with probability p/q. After a rejection what is left of p is (p - q)+, normalised; after an
        acceptance p is whole again. Samples that come after beams that the target does not have are rejected: p is 0
        there. If all samples together are too few, what is missing is drawn, first from what is left of p.
        """
        settings, vocabulary = self._settings, log_p.shape[1]
        q = restricted(joint(drafted.before, drafted.log_q), drafted.before, beams, vocabulary).double().exp()
        rest = Residuals(joint(beams, log_p).double().exp(), q)
        places = [beams.place_of(pair, vocabulary) for pair in drafted.layer.pairs]
        width = dynamic_width(
            rest.chances(len(places)), len(places), settings.chance, settings.least_beams, settings.beams
        )
        lucky = _uniforms(forest, beams, Stream.ACCEPT, len(places), log_p.device).tolist()
        accepted: list[int] = []
        rejected = 0  # since the last that was accepted
        for place, u in zip(places, lucky, strict=True):
            if len(accepted) == width:
                break
            if place is not None and u * float(q[place]) <= float(rest[rejected][place]):
                accepted.append(place)
                rejected = 0
            else:
                rejected += 1
        reached = len(accepted) == width
        if not reached:
            uniforms = _uniforms(forest, beams, Stream.RESIDUAL, width - len(accepted), log_p.device)
            accepted += _places(rest[rejected], uniforms[:1]).tolist() + _places(rest[0], uniforms[1:]).tolist()
        candidates = self._candidates(beams, log_p)
        return Judged(candidates.layer(forest, accepted, self._ends), reached, candidates)

    def is_over(self, beams: Beams) -> bool:
        return not beams.live

    def texts(self, forest: Forest, beams: Beams) -> list[Done]:
        return ranked_texts(forest, beams, self._settings)


class Residuals:
    """What is left of p after 0, 1, … rejections in a row of samples of q.

    Args:
        p: (c,) a law.
        q: (c,) of another law, those of its probabilities that belong to the same candidates.
    """

    def __init__(self, p: Tensor, q: Tensor) -> None:
        self._left, self._q = [p / p.sum()], q

    def __getitem__(self, rejected: int) -> Tensor:
        """What is left after so many rejections: (c,). Where p = q nothing is, and p stands for it."""
        while len(self._left) <= rejected:
            left = (self._left[-1] - self._q).clamp_min(0.0)
            total = left.sum()
            self._left.append(torch.where(total > 0, left / total, self._left[-1]))
        return self._left[rejected]

    def chances(self, samples: int) -> list[float]:
        """The probability that a sample of q is accepted after 0, 1, … rejections in a row."""
        return [float(torch.minimum(self[n], self._q).sum()) for n in range(samples)]


def _uniforms(forest: Forest, beams: Beams, stream: Stream, count: int, device: torch.device) -> Tensor:
    """Uniform numbers of the layer after some beams: (count,) float64 of 46 random bits.

    A layer's noise serves once: a layer drafted in vain has decided nothing before it is drafted anew.
    """
    at = torch.tensor([[beams.length]], device=device)
    tokens = torch.arange(2 * count, device=device)
    bits = noise.bits(forest.keys([0]).to(device), at, stream, tokens)[0, 0]
    high, low = noise.unit(bits, torch.float64).view(-1, 2).unbind(1)
    return high - 2.0**-24 + low * 2.0**-23


def _places(law: Tensor, uniforms: Tensor) -> Tensor:
    """The places (n,) that uniform numbers (n,) choose by a law (c,), by its distribution function."""
    cumulated = law.double().cumsum(0)
    places = torch.searchsorted(cumulated, uniforms * cumulated[-1], right=True)
    return places.clamp_max(len(law) - 1)
