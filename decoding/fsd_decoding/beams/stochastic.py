"""Stochastic beam search: W texts drawn without replacement (Kool, van Hoof, Welling, arXiv 1903.06059)."""

from __future__ import annotations

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.beams.candidates import Candidates
from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.layer import Beams, Done, Drafted, Ends, Layer
from fsd_decoding.beams.search import Judged, all_drafted, ranked_texts
from fsd_decoding.beams.settings import BeamSettings


class StochasticBeamSearch:
    """Keeps the W pairs of the highest perturbed log-probability.

    Each pair's log-probability gets Gumbel noise, given that the largest of a beam's is that of the beam itself. So the
    W texts in the end have the highest perturbed log-probabilities of all texts, and are a sample without replacement.
    The noise belongs to the tokens of a text: beams share positions, and a beam may change its place. Target and draft
    thus perturb a text alike.

    Args:
        settings: how many beams, and how they are ranked at last.
        ends: whether a text ends; a text that has stays among the candidates.
    """

    def __init__(self, settings: BeamSettings, ends: Ends) -> None:
        self._settings, self._ends = settings, ends

    def own(self, forest: Forest, beams: Beams, log_p: Tensor) -> Layer:
        candidates = self._candidates(forest, beams, log_p)
        return candidates.layer(forest, candidates.top(self._settings.beams), self._ends)

    def draft(self, forest: Forest, beams: Beams, log_q: Tensor) -> Layer:
        candidates = self._candidates(forest, beams, log_q)
        return candidates.layer(forest, candidates.top(self._settings.width), self._ends)

    def judge(self, forest: Forest, beams: Beams, log_p: Tensor, drafted: Drafted) -> Judged:
        candidates = self._candidates(forest, beams, log_p)
        layer = candidates.layer(forest, candidates.top(self._settings.beams), self._ends)
        return Judged(layer, all_drafted(forest, layer), candidates)

    def _candidates(self, forest: Forest, beams: Beams, log_p: Tensor) -> Candidates:
        live = beams.live
        keys = forest.keys(beams.live_nodes).to(log_p.device)
        place = torch.zeros((len(live), 1), dtype=torch.int64, device=log_p.device)  # keys tell positions apart
        gumbel = noise.gumbel(keys, place, noise.Stream.TOKEN, log_p.shape[1], log_p.dtype)[:, 0]
        scores = beams.scores[live, None] + log_p
        return Candidates.of(beams, scores, conditioned(scores + gumbel, beams.ranks[live, None]))

    def is_over(self, beams: Beams) -> bool:
        return not beams.live

    def texts(self, forest: Forest, beams: Beams) -> list[Done]:
        return ranked_texts(forest, beams, self._settings)


def conditioned(perturbed: Tensor, largest: Tensor) -> Tensor:
    """Returns Gumbel variables given that the largest of each row is a known one (arXiv 1903.06059, appendix B.3).

    Args:
        perturbed: (n, V) independent ones.
        largest: (n, 1) what the largest of a row is to be.
    """
    below = perturbed - perturbed.amax(-1, keepdim=True)  # at most 0
    v = largest - perturbed + torch.log(-torch.expm1(below))
    moved = largest - v.clamp_min(0.0) - torch.log1p(torch.exp(-v.abs()))
    return torch.where(perturbed > -torch.inf, moved, -torch.inf)
