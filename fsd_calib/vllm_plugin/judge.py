"""Fuzzy acceptance of a step's drafted tokens: the score of every token, its T, and whether the score is at most T."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsd_calib.vllm_plugin.certain import accept_certainly
from fsd_calib.vllm_plugin.draft_logits import KeptLogits, Layout
from fsd_calib.vllm_plugin.on_host import JudgedOnHost, Rejected, window_fails
from fsd_calib.vllm_plugin.processed import Bounds, Sight, compare, ids_of
from fsd_calib.vllm_plugin.settings import Followed
from fsd_collectors.collection.measures import Measures, Positions, chunk_size
from fsd_common.errors import UsageError
from fsd_decoding.divergence import chunk_elements, entropy, is_fused
from fsd_decoding.policies.phase import Phase
from fsd_decoding.policies.shapes import Constant, EntropyScaled, Schedule
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.profile.parts import SamplingInfo
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import Score, Seen, is_divergence, score_named
from fsd_decoding.tensors import to_device


@dataclass(frozen=True)
class StepTokens:
    """The N drafted tokens of a step, as far as the supported policies look at them; what they do not is None."""

    places: Tensor | None  # (N,) positions in their completions, from 0
    target_entropy: Tensor | None  # (N,) in nats, of raw logits
    draft_entropy: Tensor | None  # (N,)
    phases: Tensor | None = None  # (N,) see `Verification`


def policy_of(followed: Followed) -> ScalePolicy | None:
    """Returns the policy that scales T; None where T is constant.

    Raises:
        UsageError: the policy is none that works on the tokens of a step of vLLM.
    """
    if followed.threshold is None or followed.policy is None:
        return None
    policy = followed.policy.at(followed.threshold)
    if isinstance(policy, Constant):
        return None
    if isinstance(policy, Schedule | Phase) or (isinstance(policy, EntropyScaled) and policy.signal != "last"):
        return policy
    raise UsageError(
        f"the profile's threshold policy is {followed.policy}; vLLM can follow a constant T, 'schedule', 'phase' and "
        "'entropy' of the target or the draft: calibrate with one of these"
    )


def scales_of(policy: ScalePolicy, tokens: StepTokens) -> Tensor:
    """Returns the factors of T (N,)."""
    if isinstance(policy, Phase):
        assert tokens.phases is not None
        return policy.scales_at(tokens.phases)
    state: Any = tokens  # the other supported policies read nothing else of a round
    return policy.scales(state)


Array = NDArray[Any]


class Judged(Protocol):
    """N drafted tokens of a step, judged by their scores."""

    @property
    def layout(self) -> Layout:
        """Where they are."""
        ...

    def accept(self, logits: Tensor, drafted: Tensor) -> None:
        """Makes those with D <= T certain.

        Args:
            logits: (tokens, V) the target's, processed, of all drafted tokens of the step; changed in place.
            drafted: (tokens,) their ids; negative ones are padding.
        """
        ...

    @property
    def facts(self) -> Array | Sequence[Tensor]:
        """What is known of them once they are accepted: an array (3, N), or tensors (N,) or (n, N) on the device.

        The rows: D; whether D <= T; whether it is the target's argmax; columns of traces, if they are recorded.
        """
        ...


class JudgedTokens:
    """Tokens judged where their logits are.

    Args:
        scores: (N,).
        fuzzy: (N,) bool: D <= T.
        measured: (columns, N) of traces; None where nothing is recorded.
        at: (N,) their places among all drafted tokens of the step, the others having no D; None: they are all.
    """

    def __init__(
        self, layout: Layout, scores: Tensor, fuzzy: Tensor, measured: Tensor | None = None,
        at: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.layout, self.scores, self.fuzzy, self._measured, self.at = layout, scores, fuzzy, measured, at
        self._most_likely: Tensor | None = None

    def spread(self, total: int) -> Tensor:
        """Returns `fuzzy` of all drafted tokens of the step: (total,)."""
        if self.at is None:
            return self.fuzzy
        return self.fuzzy.new_zeros(total).index_put_((self.at,), self.fuzzy)

    def accept(self, logits: Tensor, drafted: Tensor) -> None:
        self.accepted(accept_certainly(logits, drafted, self.spread(len(logits))))

    def accepted(self, most_likely: Tensor) -> None:
        """Notes which of all drafted tokens are the target's argmax: (tokens,) bool."""
        self._most_likely = most_likely if self.at is None else most_likely[self.at]

    @property
    def facts(self) -> Sequence[Tensor]:
        assert self._most_likely is not None
        facts = [self.scores, self.fuzzy, self._most_likely]
        return facts if self._measured is None else [*facts, self._measured]


_MEASURED = 1 << 22  # logits of a model that are measured for records at once, in about ten temporaries of that size

Piece = tuple[Tensor, Tensor]  # target and draft logits of some tokens, (…, V) each


class Pending(NamedTuple):
    """N drafted tokens of a step that are judged once vLLM has processed their logits; see `processed.py`."""

    layout: Layout
    score: Score
    bounds: Bounds  # of the N tokens
    tells_scaled: bool  # see `Judge`
    measured: Tensor | None  # as of `JudgedTokens`
    at: Tensor | None

    def decide(self, sight: Sight) -> JudgedTokens:
        """Judges them by what vLLM sees of all drafted tokens of the step."""
        return self.decided(*sight.judge(self.score, self.bounds.spread(len(sight.drafted), self.at)), self.at)

    def decided(self, scores: Tensor, compared: Tensor, fuzzy: Tensor, at: Tensor | None) -> JudgedTokens:
        """Returns them judged.

        Args:
            scores, compared, fuzzy: (total,) of tokens among which they are; see `Sight.judge`.
            at: (N,) their places there; None: they are all.
        """
        scores = compared if self.tells_scaled else scores
        if at is not None:
            scores, fuzzy = scores[at], fuzzy[at]
        return JudgedTokens(self.layout, scores, fuzzy, self.measured, self.at)


class Verification(NamedTuple):
    """A step of vLLM in which the target's logits of B requests' drafted tokens are known, before they are judged."""

    requests: Sequence[str]  # B ids
    counts: Sequence[int]  # B numbers of drafted tokens
    logits: Tensor  # (rows, V) the target's raw logits; if all have n drafts, request b's begin at row b · (n + 1)
    rows: Tensor  # (N,) row of `logits` for each drafted token
    drafted: Tensor  # (N,) the tokens; negative ones are padding
    greedy: Sequence[bool]  # B: whether a request is greedy
    places: Tensor | None = None  # (N,) positions in their completions, from 0; None where no policy needs them
    phases: Tensor | None = None  # (N,) states of `Phase.reading` before the tokens; None where T does not go by them

    def only(self, known: Sequence[bool]) -> tuple[Verification, Tensor]:
        """Returns the step without the drafts of some requests, and the places of the other tokens among all: (n,)."""
        kept = np.flatnonzero(np.repeat(known, self.counts))
        at = to_device(kept.tolist(), self.rows.device, torch.int64)
        places, phases = (None if each is None else each[at] for each in (self.places, self.phases))
        counts = [count if is_known else 0 for count, is_known in zip(self.counts, known, strict=True)]
        drafted = self.drafted[at]
        return self._replace(counts=counts, rows=self.rows[at], places=places, drafted=drafted, phases=phases), at


class Judge:
    """Compares the scores of drafted tokens with thresholds.

    Args:
        drafts: logits of the drafts.
        score: its name.
        policy: scales T; None: T is the request's own.
        tells_scaled: whether the D that it tells of tokens are divided by the scales, as they are compared with T.
    """

    def __init__(self, drafts: KeptLogits, score: str, policy: ScalePolicy | None, tells_scaled: bool = False) -> None:
        self._drafts, self._score, self._policy = drafts, score_named(score), policy
        self._tells_scaled = tells_scaled

    @property
    def needs_places(self) -> bool:
        """Whether T depends on where a token is in its completion."""
        return isinstance(self._policy, Schedule)

    @property
    def on_raw(self) -> bool:
        """Whether the score is of raw logits."""
        return self._score.on != "processed"

    def __call__(
        self, step: Verification, thresholds: Sequence[float], measures: Measures | None = None
    ) -> JudgedTokens | Pending | None:
        """Judges a step; None where nothing can be accepted by its score and nothing is measured.

        Drafts whose logits are not known are left to the exact rule.

        Args:
            thresholds: T of each request; below 0, it is decoded exactly.
            measures: columns of traces to compute, too.
        """
        step, layout, at = self._known(step)
        drafting = [t for t, count in zip(thresholds, step.counts, strict=True) if count]
        if not drafting or (max(drafting) < 0 and measures is None):
            return None
        found = entropies = measured = None
        if self.on_raw or measures is not None or isinstance(self._policy, EntropyScaled):
            parts = list(self._parts(step, layout, measures))
            found, entropies, measured = (_joined(each) for each in zip(*parts, strict=True))
        device = step.logits.device
        limits = to_device(np.repeat(thresholds, step.counts).tolist(), device, torch.float64)
        scales = None if self._policy is None else scales_of(self._policy, self._tokens(step, entropies))
        if found is None:
            scales = torch.ones_like(limits) if scales is None else scales
            after, greedy = to_device(layout.after.tolist(), device), np.repeat(step.greedy, step.counts).tolist()
            bounds = Bounds(limits, scales, after, to_device(greedy, device, torch.bool))
            return Pending(layout, self._score, bounds, self._tells_scaled, measured, at)
        compared, fuzzy = compare(found, limits, scales)
        return JudgedTokens(layout, compared if self._tells_scaled else found, fuzzy, measured, at)

    def of_rejected(self, step: Verification, accepted: Sequence[bool], thresholds: Sequence[float]) -> JudgedOnHost:
        """Judges a step of greedy requests on the host, if it is known which tokens the exact rule accepts.

        Where their logits are processed, the score is of raw ones.

        Args:
            accepted: N.
            thresholds: T of each request; below 0, it is decoded exactly.
        """
        window = self._score.window
        fails = window_fails(accepted, step.counts, window) if window else None

        def look(rejected: Sequence[Rejected]) -> tuple[Sequence[float], Sequence[bool]]:
            tokens, *of_drafts, limits = map(list, zip(*rejected, strict=True))
            at, (places, rows) = torch.tensor(tokens), map(np.array, of_drafts)
            target, draft = step.logits[step.rows[at]], self._drafts.at(rows, places)
            found = self._scores(target, draft, step.drafted[at])
            if fails is not None:
                found = found.masked_fill(torch.tensor([fails[token] for token in tokens]), torch.inf)
            if self._policy is None:
                scores = found.tolist()
                return scores, [
                    score <= limit and score < math.inf for score, limit in zip(scores, limits, strict=True)
                ]
            scales = scales_of(self._policy, self._at(step, at, target, draft))
            compared, fuzzy = compare(found, torch.tensor(limits, dtype=torch.float64), scales)
            return (compared if self._tells_scaled else found).tolist(), fuzzy.tolist()

        judged = JudgedOnHost(step.counts, self._drafts.rows_of(step.requests, step.counts), accepted)
        judged.look(thresholds, look, _chunk_rows(step.logits))
        return judged

    def _known(self, step: Verification) -> tuple[Verification, Layout, Tensor | None]:
        """Returns the step without the drafts whose logits are not known, and the places of the others, if some are."""
        rows, at = self._drafts.rows_of(step.requests, step.counts), None
        if any(row is None and count for row, count in zip(rows, step.counts, strict=True)):
            step, at = step.only([row is not None for row in rows])
        return step, Layout(step.counts, [row or 0 for row in rows]), at

    def _scores(self, target: Tensor, draft: Tensor, drafted: Tensor) -> Tensor:
        """The scores of tokens (n,) by their logits (…, V): (n,)."""
        return self._score.of(Seen(target, draft, ids_of(drafted).view(target.shape[:-1]))).reshape(-1)

    def _parts(
        self, step: Verification, layout: Layout, measures: Measures | None
    ) -> Iterator[tuple[Tensor | None, Tensor | None, Tensor | None]]:
        """Yields of some tokens at a time, in order: scores (n,) of raw logits, the entropy (n,) that T depends on,
        columns (…, n).
        """
        begin = 0
        for target, draft in self._pieces(step, layout):
            end = begin + target.shape[:-1].numel()
            drafted = step.drafted[begin:end]
            yield (
                self._scores(target, draft, drafted) if self.on_raw else None, self._entropy(target, draft),
                None if measures is None else _measured(measures, target, draft, drafted),
            )  # fmt: skip
            begin = end

    def _entropy(self, target: Tensor, draft: Tensor) -> Tensor | None:
        if not isinstance(self._policy, EntropyScaled):
            return None
        return entropy(target if self._policy.signal == "target" else draft).reshape(-1)

    def _at(self, step: Verification, at: Tensor, target: Tensor, draft: Tensor) -> StepTokens:
        """What policies look at of some tokens (n,) of a step, whose logits are (n, V)."""
        places, phases = (None if each is None else each[at] for each in (step.places, step.phases))
        return self._tokens(step._replace(places=places, phases=phases), self._entropy(target, draft))

    def _tokens(self, step: Verification, entropies: Tensor | None) -> StepTokens:
        of_target = isinstance(self._policy, EntropyScaled) and self._policy.signal == "target"
        of_draft = None if of_target else entropies
        return StepTokens(step.places, entropies if of_target else None, of_draft, step.phases)

    def _pieces(self, step: Verification, layout: Layout) -> Iterator[Piece]:
        """Yields the logits of the drafted tokens, in order.

        Kernels read them in place, if requests are in the order of their drafts and all have equally many. If not, some
        rows are copied at a time, whose memory is bounded.
        """
        if layout.in_order:
            requests, count = len(layout.counts), int(layout.counts[0])
            target = step.logits.view(requests, count + 1, -1)[:, :count]
            draft = self._drafts.block(requests, count)
            name = self._score.written
            if draft is not None and is_divergence(name) and is_fused([name], target, draft):
                yield target, draft
                return
        size = _chunk_rows(step.logits)
        for begin in range(0, layout.count, size):
            part = slice(begin, begin + size)
            yield self._copy(step.logits, layout, step.rows[part], part)

    def _copy(self, logits: Tensor, layout: Layout, rows: Tensor, tokens: slice) -> Piece:
        """Returns the logits of some tokens, whose rows of the target's are `rows`."""
        return logits[rows], self._drafts.at(layout.rows[layout.owner[tokens]], layout.place[tokens])


class Looking(NamedTuple):
    """A step of greedy requests on a CPU, judged as soon as it is known what the exact rule accepts."""

    judge: Judge
    step: Verification
    thresholds: Sequence[float]  # T of each request; below 0: it is decoded exactly
    plain: bool  # whether nothing changes the logits of any request

    def decide(self, accepted: Sequence[bool]) -> JudgedOnHost:
        """Judges it; accepted: by the exact rule, N."""
        return self.judge.of_rejected(self.step, accepted, self.thresholds)


def _chunk_rows(logits: Tensor) -> int:
    """Rows of logits (…, V) that are copied at a time."""
    vocabulary = logits.shape[-1]
    return chunk_elements(logits.device.type, vocabulary) // vocabulary


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Returns parts (…, n) as one; None if there are none."""
    there = [part for part in parts if part is not None]
    return torch.cat(there, -1) if there else None


def sampled_as(info: SamplingInfo) -> Sampling:
    """Returns the sampling by which columns of traces process p and q: without a penalty, which they do not know."""
    return Sampling(**info.model_dump(exclude={"repetition_penalty"}))


def _measured(measures: Measures, target: Tensor, draft: Tensor, drafted: Tensor) -> Tensor:
    """Returns the columns of traces (columns, n), computed for few enough tokens at a time for the memory vLLM leaves.

    Args:
        target, draft: (…, V) logits of n tokens.
        drafted: (n,) the tokens; negative ones are padding.
    """
    size = max(1, min(chunk_size(target), _MEASURED) // target[:1].numel())
    columns, begin = [], 0
    for p, q in zip(target.split(size), draft.split(size), strict=True):
        p, q = p.flatten(0, -2).float(), q.flatten(0, -2).float()
        x = ids_of(drafted[begin : begin + len(p)])
        keys = torch.stack([p[:, 0], q[:, 0]], 1).view(torch.int32).long()  # of any noise: vLLM's own is not known
        columns.append(measures(Positions(p, q, x, p.argmax(-1), x, keys)))
        begin += len(p)
    return torch.cat(columns, 1)
