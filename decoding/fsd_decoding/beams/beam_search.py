"""Beam search, at temperature 0, with the conventions of transformers' `generate(num_beams=…)`."""

from __future__ import annotations

from torch import Tensor

from fsd_decoding.beams.candidates import Candidates
from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.layer import Beams, Done, Drafted, Ends, Layer
from fsd_decoding.beams.search import Judged, all_drafted
from fsd_decoding.beams.settings import BeamSettings


class BeamSearch:
    """Keeps the W pairs of the highest log-probability that do not end a text.

    As in `_beam_search` of transformers 5.24: of the first (1 + number of EOS tokens)·W pairs the first W that do not
    end their text go on; those of the first W that do are done, of which the best W are kept. `early_stopping` says
    when no better text is hoped for.

    Args:
        settings: how many beams, and how they end.
        ends: whether a text ends.
        eos: how many tokens end a text.
        most: the most new tokens.
    """

    def __init__(self, settings: BeamSettings, ends: Ends, eos: int, most: int) -> None:
        self._settings, self._ends, self._eos, self._most = settings, ends, eos, most

    def own(self, forest: Forest, beams: Beams, log_p: Tensor) -> Layer:
        return self._layer(forest, self._candidates(beams, log_p), self._settings.beams)

    def draft(self, forest: Forest, beams: Beams, log_q: Tensor) -> Layer:
        return self._layer(forest, self._candidates(beams, log_q), self._settings.width)

    def judge(self, forest: Forest, beams: Beams, log_p: Tensor, drafted: Drafted) -> Judged:
        candidates = self._candidates(beams, log_p)
        layer = self._layer(forest, candidates, self._settings.beams)
        return Judged(layer, all_drafted(forest, layer), candidates)

    def _candidates(self, beams: Beams, log_p: Tensor) -> Candidates:
        scores = beams.scores[:, None] + log_p
        return Candidates.of(beams, scores, scores)

    def _layer(self, forest: Forest, candidates: Candidates, width: int) -> Layer:
        found = candidates.layer(forest, candidates.top(max(2, 1 + self._eos) * width), self._ends)
        beams = candidates.beams
        going = [i for i, reason in enumerate(found.ends) if reason is None][:width]
        done = self._with_done(forest, beams, found)
        return Layer(
            [found.pairs[i] for i in going], [None] * len(going), found.scores[going], found.ranks[going], done
        )

    def _with_done(self, forest: Forest, beams: Beams, found: Layer) -> tuple[Done, ...]:
        """The texts that are done after a layer, of whose first W pairs some end; all do at the most tokens."""
        settings, length, texts = self._settings, beams.length + 1, list(beams.done)
        first = found.pairs[: settings.beams]
        for (node, token), reason, score in zip(first, found.ends, found.scores.tolist(), strict=False):
            if reason is not None or length == self._most:
                tokens, eos = forest.path(node), token if reason == "eos" else None
                tokens += [token] * (eos is None)
                texts.append(Done(tokens, settings.penalised(score, length), score, reason or "length", eos))
        return tuple(sorted(texts, key=lambda text: -text.score)[: settings.beams])

    def is_over(self, beams: Beams) -> bool:
        settings, done = self._settings, beams.done
        if not beams.nodes:
            return True
        if len(done) < settings.beams:
            return False
        never = settings.early_stopping == "never" and settings.length_penalty > 0.0
        best = settings.penalised(float(beams.scores.max()), self._most if never else beams.length)
        return settings.early_stopping is True or best <= done[-1].score

    def texts(self, forest: Forest, beams: Beams) -> list[Done]:
        return list(beams.done)
