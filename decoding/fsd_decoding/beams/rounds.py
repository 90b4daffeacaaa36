"""Rounds of beam decoding: the draft proposes layers, one pass of the target reads all, and the first are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fsd_common.errors import NumericalError
from fsd_decoding import noise
from fsd_decoding.batch import Request
from fsd_decoding.beams.beam_search import BeamSearch
from fsd_decoding.beams.drawn import DrawnBeams
from fsd_decoding.beams.forest import Forest
from fsd_decoding.beams.layer import Beams, Done, Drafted, Ends, Layer
from fsd_decoding.beams.reading import ForestReader
from fsd_decoding.beams.score import layer_divergence
from fsd_decoding.beams.search import Search, kept_from_draft
from fsd_decoding.beams.settings import BeamSettings
from fsd_decoding.beams.stochastic import StochasticBeamSearch
from fsd_decoding.proposal import Criterion
from fsd_decoding.sampling import Sampling
from fsd_decoding.tensors import wide


@dataclass(frozen=True)
class BeamWork:
    """How prompts are decoded to beams.

    Args:
        settings: how many beams, and how they are drafted.
        fuzzy: whether T bounds a score.
        criterion: the score.
        sampling: temperature, top-k and so on.
        ends: whether a text ends.
        eos: how many tokens end a text.
        seed: of the noise.
    """

    settings: BeamSettings
    fuzzy: bool
    criterion: Criterion
    sampling: Sampling
    ends: Ends
    eos: int
    seed: int

    def search(self, most: int) -> Search:
        """Returns how the beams of a prompt with at most so many new tokens are chosen."""
        if self.settings.replacement:
            return DrawnBeams(self.settings, self.ends)
        if self.sampling.greedy:
            return BeamSearch(self.settings, self.ends, self.eos, most)
        return StochasticBeamSearch(self.settings, self.ends)

    def log_probabilities(self, logits: Tensor, processed: bool = True) -> Tensor:
        """Returns the log-probabilities (n, V) of raw logits, after the sampling settings or before them."""
        if processed:
            nothing = torch.zeros((1, 0), dtype=torch.int64, device=logits.device)
            logits = self.sampling.warp(logits[None], nothing, nothing)[0]
        return torch.log_softmax(wide(logits), -1)


@dataclass
class BeamRow:
    """A prompt that is decoded.

    Args:
        request: the prompt.
        search: how its beams are chosen.
        forest: their tokens.
        beams: the beams so far.
        lo, hi: every T in [lo, hi) gives the same texts.
        rejected: of each layer that the exact rule did not go on from, its place in its round and D, which is infinite
            where no T makes up for it; empty where T bounds no score.
    """

    request: Request
    search: Search
    forest: Forest
    beams: Beams
    lo: float = -math.inf
    hi: float = math.inf
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    kept: int = 0
    slots: int = 0
    rejected: list[tuple[int, float]] = field(default_factory=list)
    drafts: list[Drafted] = field(default_factory=list)  # of the round under way

    @property
    def is_over(self) -> bool:
        return self.beams.length == self.request.max_new_tokens or self.search.is_over(self.beams)

    @property
    def frontier(self) -> list[int]:
        """The nodes that the draft goes on from; none where it drafts no more."""
        # One layer less than the texts may get, as the target adds one.
        depth = min(self.request.drafts(self.beams.length), self.request.max_new_tokens - self.beams.length - 1)
        return self.ahead.live_nodes if len(self.drafts) < depth else []

    @property
    def ahead(self) -> Beams:
        """The beams that are drafted on, with the draft's scores."""
        return self.drafts[-1].after if self.drafts else self.beams

    @property
    def read(self) -> list[int]:
        """The nodes that the target reads in a round: what it has chosen, and all that was drafted."""
        every = [self.beams, *(drafted.after for drafted in self.drafts)]
        return list(dict.fromkeys(node for beams in every for node in beams.live_nodes))

    def take(self, layer: Layer) -> None:
        """Makes a layer part of the beams."""
        self.beams = self.beams.grown(self.forest, layer)

    def texts(self) -> list[Done]:
        """The texts, the best first."""
        return self.search.texts(self.forest, self.beams)


class BeamRounds:
    """Decodes requests in a fixed number of rows, each of which is refilled when it is done.

    Args:
        target: reads the forests; its runner has a row for each.
        draft: the same, of the draft; None: nothing is drafted.
        rows: number of rows.
        work: how prompts are decoded.
    """

    def __init__(self, target: ForestReader, draft: ForestReader | None, rows: int, work: BeamWork) -> None:
        self._target, self._draft, self._work = target, draft, work
        self._rows: list[BeamRow | None] = [None] * rows

    @torch.inference_mode()
    def run(self, requests: Iterator[Request]) -> Iterator[BeamRow]:
        """Yields rows as they are done.

        Raises:
            NumericalError: a model gave NaN or +inf logits.
        """
        while self._refill(requests):
            self._propose()
            self._verify()
            for i, row in enumerate(self._rows):
                if row is not None and row.is_over:
                    self._rows[i] = None
                    yield row

    def _refill(self, requests: Iterator[Request]) -> bool:
        """Puts requests into free rows. Returns whether any row is occupied."""
        for i, row in enumerate(self._rows):
            if row is None and (request := next(requests, None)) is not None:
                self._rows[i] = self._started(request)
                for reader in self._readers:
                    reader.put(i, request.prompt)
        return any(row is not None for row in self._rows)

    @property
    def _readers(self) -> list[ForestReader]:
        return [self._target] if self._draft is None else [self._target, self._draft]

    def _started(self, request: Request) -> BeamRow:
        key = noise.problem_keys(self._work.seed, [request.key])[0]
        forest = Forest(len(request.prompt), request.prompt[-1], key)
        beams = Beams.first(self._target.device, self._target.dtype)
        return BeamRow(request, self._work.search(request.max_new_tokens), forest, beams)

    def _read(self, reader: ForestReader, wanted: Sequence[Sequence[int]]) -> list[Tensor]:
        """Raw logits (n, V) after the wanted nodes of each row."""
        logits = reader([None if row is None else row.forest for row in self._rows], wanted)
        for row, found in zip(self._rows, logits, strict=True):
            if row is not None and not bool(found.amax(-1).isfinite().all()):
                raise NumericalError(
                    f"prompt {row.request.index} got logits that are NaN or +inf in round {row.rounds + 1}; "
                    "a wider dtype (bfloat16 rather than float16, or float32) usually helps"
                )
        return logits

    def _propose(self) -> None:
        """Drafts layers for all rows, each from the draft's own beams of the layer before."""
        for row in self._rows:
            if row is not None:
                row.drafts = []
        while self._draft is not None:
            wanted = [[] if row is None else row.frontier for row in self._rows]
            if not any(wanted):
                return
            for row, nodes, logits in zip(self._rows, wanted, self._read(self._draft, wanted), strict=True):
                if row is not None and nodes:
                    before, log_q = row.ahead, self._work.log_probabilities(logits)
                    layer = row.search.draft(row.forest, before, log_q)
                    row.drafts.append(Drafted(before, logits, log_q, layer, before.grown(row.forest, layer)))

    def _verify(self) -> None:
        """Reads all that was drafted by the target, and adds layers to the beams of each row."""
        wanted = [[] if row is None else row.read for row in self._rows]
        for row, nodes, logits in zip(self._rows, wanted, self._read(self._target, wanted), strict=True):
            if row is not None:
                self._advance(row, {node: place for place, node in enumerate(nodes)}, logits)

    def _advance(self, row: BeamRow, places: dict[int, int], logits: Tensor) -> None:
        """Adds layers to a row's beams, up to the first that was not drafted.

        Args:
            places: where in `logits` each node is.
            logits: (n, V) the target's.
        """
        row.rounds += 1
        row.drafted += len(row.drafts)
        for depth, drafted in enumerate(row.drafts):
            layer, goes_on = self._judged(row, logits[[places[node] for node in row.beams.live_nodes]], drafted, depth)
            row.take(layer)
            row.accepted += goes_on
            if row.is_over or not goes_on:
                break
        else:
            own = self._work.log_probabilities(logits[[places[node] for node in row.beams.live_nodes]])
            row.take(row.search.own(row.forest, row.beams, own))
        row.slots = max(row.slots, row.forest.used - 1)
        row.forest.prune(row.beams.nodes)

    def _judged(self, row: BeamRow, logits: Tensor, drafted: Drafted, depth: int) -> tuple[Layer, bool]:
        """The next layer, and whether the round goes on from it. `depth`: its place in the round."""
        work = self._work
        judged = row.search.judge(row.forest, row.beams, work.log_probabilities(logits), drafted)
        if judged.goes_on or not work.fuzzy:
            return judged.layer, judged.goes_on
        kept = kept_from_draft(row.forest, judged, drafted, work.ends, work.settings.beams)
        if kept is None:
            row.rejected.append((depth, math.inf))
            return judged.layer, False
        processed = work.criterion.on == "processed"
        log_p, log_q = (work.log_probabilities(each, processed) for each in (logits, drafted.logits))
        score = layer_divergence(work.criterion.score, row.beams, log_p, drafted, log_q)
        row.rejected.append((depth, score))
        if score <= row.request.threshold and math.isfinite(score):
            row.lo, row.kept = max(row.lo, score), row.kept + 1
            return kept, True
        row.hi = min(row.hi, score)
        return judged.layer, False
