"""Judging by scores of every kind, against plain Python: of raw logits, and of p and q as vLLM processed them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fsd_calib.vllm_plugin import processed
from fsd_calib.vllm_plugin.draft_logits import BufferedDraftLogits, DraftLogits
from fsd_calib.vllm_plugin.engine_checks import check_profile
from fsd_calib.vllm_plugin.judge import Judge, JudgedTokens, Pending, Verification
from fsd_calib.vllm_plugin.logits_v2 import ChunkedDecisions, StepRows
from fsd_calib.vllm_plugin.processed import Sight
from fsd_calib.vllm_plugin.running_requests import describe
from fsd_calib.vllm_plugin.settings import EXACT, hidden_noise
from fsd_common.errors import UsageError
from fsd_decoding.scores import Seen, score_named
from support.calibration.profiles import profile

VOCABULARY, LENGTH, TEMPERATURE = 7, 4, 0.7
RAW = ("gated-js@0.6", "margin", "margin@3", "relaxed", "relaxed@2")
FOLLOWED = ("fly@0", "fly@1", "fly@2@2", "accept-threshold", "typical")  # of processed logits, greedy too
SAMPLED = ("cactus", "accept-threshold@0.5", "posterior")
THRESHOLDS = (-1.0, 0.1, 0.5)


class Step:
    """A step of requests, some greedy and some sampled, some tokens padding, some drafts of unknown logits."""

    def __init__(self, data: st.DataObject, sampled: bool, everything_known: bool = False) -> None:
        self.names = [f"r{i}" for i in range(data.draw(st.integers(1, 4)))]
        every = st.lists(st.booleans(), min_size=len(self.names), max_size=len(self.names))
        self.known = [True] * len(self.names) if everything_known else data.draw(every)
        self.greedy = data.draw(every) if sampled else [True] * len(self.names)
        self.counts: list[int] = data.draw(
            st.lists(st.integers(0, LENGTH), min_size=len(self.names), max_size=len(self.names))
        )
        self.thresholds = [data.draw(st.sampled_from(THRESHOLDS)) for _ in self.names]
        source = torch.Generator().manual_seed(data.draw(st.integers(0, 2**20)))
        self.total = sum(self.counts)
        self.target = 2 * torch.randn(self.total + len(self.names), VOCABULARY, generator=source)
        self.draft = self.rows_of(self.target) + torch.randn(self.total, VOCABULARY, generator=source)
        self.drafted = self.draft.argmax(-1).int()
        self.drafted[torch.rand(self.total, generator=source) < 0.05] = -1
        self.uniform = torch.rand(self.total, generator=source, dtype=torch.float64)
        self.processed = self.warped(self.rows_of(self.target))
        self.processed[torch.rand(self.total, VOCABULARY, generator=source) < 0.2] = -torch.inf
        self.processed[:, 0] = 0.0
        self.q = self.warped(self.draft).softmax(-1)

    @property
    def owner(self) -> list[int]:
        return [i for i, count in enumerate(self.counts) for _ in range(count)]

    @property
    def rows(self) -> list[int]:
        return [token + owner for token, owner in enumerate(self.owner)]

    def rows_of(self, logits: Tensor) -> Tensor:
        return logits[self.rows]

    def warped(self, logits: Tensor) -> Tensor:
        temperatures = torch.tensor([1.0 if self.greedy[owner] else TEMPERATURE for owner in self.owner])
        return logits / temperatures.unsqueeze(1)

    def verification(self) -> Verification:
        rows = torch.tensor(self.rows, dtype=torch.int64)
        return Verification(self.names, self.counts, self.target, rows, self.drafted, self.greedy)

    def drafts(self) -> DraftLogits:
        """The logits of the known drafts, as a runner adds them."""
        kept = BufferedDraftLogits((len(self.names), LENGTH, VOCABULARY), torch.float32, torch.device("cpu"))
        names = [name for name, known in zip(self.names, self.known, strict=True) if known]
        kept.begin()
        for place in range(LENGTH):
            rows = [self.of(self.draft, i)[place] if place < count else torch.zeros(VOCABULARY)
                    for i, count in enumerate(self.counts) if self.known[i]]  # fmt: skip
            if rows:
                kept.add(torch.stack(rows), changes=False)
        kept.end(names)
        return kept

    def of(self, values: Tensor, request: int) -> Tensor:
        parts: list[Tensor] = values.split(self.counts)
        return parts[request]

    def sight(self) -> Sight:
        if all(self.greedy):
            return Sight(self.processed, self.drafted)
        return Sight(self.processed, self.drafted, self.q, self.uniform)

    def expected(self, name: str) -> list[float]:
        """The score of every token in fp64, infinite where no T may accept it or nothing is known."""
        score, found = score_named(name), []
        raw = score.on is None
        for request, count in enumerate(self.counts):
            exact = [self.exact(request, place) for place in range(count)]
            for place in range(count):
                p, q = (self.rows_of(self.target), self.draft) if raw else (self.processed, self.q.log())
                at = sum(self.counts[:request]) + place
                x = max(int(self.drafted[at]), 0)
                u = self.uniform[at]
                seen = Seen(p[at].double(), q[at].double(), torch.tensor(x), partial(torch.clone, u))
                value = float(score.of(seen))
                after = exact[place + 1 : place + 1 + score.window]
                holds = len(after) == score.window and all(after)
                found.append(value if self.known[request] and holds else math.inf)
        return found

    def exact(self, request: int, place: int) -> bool:
        """vLLM's exact rule: the argmax, or u <= p/q."""
        at = sum(self.counts[:request]) + place
        x, p = int(self.drafted[at]), self.processed[at].double().softmax(-1)
        if x < 0:
            return False
        if self.greedy[request]:
            return x == int(self.processed[at].argmax())
        return bool(self.uniform[at] * self.q[at, x] <= p[x])

    def bounds(self) -> list[float]:
        return [self.thresholds[owner] for owner in self.owner]


def judged(step: Step, name: str) -> JudgedTokens | None:
    found = Judge(step.drafts(), name, None)(step.verification(), step.thresholds)
    return found.decide(step.sight()) if isinstance(found, Pending) else found


@settings(max_examples=150, deadline=None)
@given(data=st.data(), name=st.sampled_from([*RAW, *FOLLOWED, *SAMPLED]))
def test_tokens_are_judged_by_their_scores(data: st.DataObject, name: str) -> None:
    step = Step(data, sampled=True)
    reads_noise = score_named(name).reads_noise
    if reads_noise:  # such requests are decoded exactly
        step.thresholds = [EXACT if greedy else t for t, greedy in zip(step.thresholds, step.greedy, strict=True)]
        if all(step.greedy):
            return
    found = judged(step, name)
    drafting = [t for t, n, known in zip(step.thresholds, step.counts, step.known, strict=True) if n and known]
    assert (found is None) == (not drafting or max(drafting) < 0)
    if found is None:
        return
    expected, kept = step.expected(name), [token for token, owner in enumerate(step.owner) if step.known[owner]]
    close = pytest.approx([expected[token] for token in kept], abs=1e-5)
    assert found.scores.tolist() == close
    assert_accepts(found.spread(step.total).tolist(), expected, step.bounds())


def assert_accepts(fuzzy: Sequence[bool], scores: Sequence[float], bounds: Sequence[float]) -> None:
    """Asserts that tokens are accepted where the score is at most T, as far as that is beyond rounding."""
    for accepted, score, bound in zip(fuzzy, scores, bounds, strict=True):
        if not abs(score - bound) < 1e-5:
            assert accepted == (score <= bound and score < math.inf)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), name=st.sampled_from([*RAW, *FOLLOWED]))
def test_rounds_judged_on_the_host_end_where_all_are(data: st.DataObject, name: str) -> None:
    """Where requests are greedy and nothing changes their logits, processed logits are the raw ones."""
    step = Step(data, sampled=False)
    step.processed = step.rows_of(step.target)
    whole = judged(step, name)
    most_likely = (step.drafted == step.processed.argmax(-1)).tolist()
    looked = Judge(step.drafts(), name, None).of_rejected(step.verification(), most_likely, step.thresholds)
    rounds, exact = [], torch.tensor(most_likely, dtype=torch.bool)
    for found in (whole, looked):
        certain = torch.zeros(step.total, VOCABULARY)
        if found is not None:
            found.accept(certain, step.drafted)
        accepted = exact | (certain.amax(1) > 0)
        rounds.append([int(each.long().cumprod(0).sum()) for each in accepted.split(step.counts)])
    assert rounds[0] == rounds[1]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), name=st.sampled_from(["margin", *FOLLOWED]))
def test_chunks_of_the_second_runner_decide_as_a_whole(data: st.DataObject, name: str) -> None:
    step = Step(data, sampled=False, everything_known=True)
    found = Judge(step.drafts(), name, None)(step.verification(), step.thresholds)
    if found is None:
        return
    begins = np.cumsum([0, *(count + 1 for count in step.counts)])
    rows = StepRows(begins)
    logits, inputs = torch.zeros(rows.total, VOCABULARY), torch.zeros(rows.total, dtype=torch.int32)
    logits[step.rows] = step.processed
    inputs[[row + 1 for row in step.rows]] = step.drafted
    decisions = ChunkedDecisions(found, rows, torch.device("cpu"))
    cuts = sorted({0, *data.draw(st.lists(st.sampled_from(begins.tolist()))), rows.total})
    certain = torch.cat([
        decisions.next(logits[lo:hi], inputs[lo:hi], own=False) for lo, hi in pairwise(cuts)
    ])  # fmt: skip
    whole = judged(step, name)
    assert whole is not None
    together = step.processed.clone()
    whole.accept(together, step.drafted)
    assert torch.equal(certain[step.rows], together)
    facts = [torch.stack([row.double() for row in each.facts]) for each in (decisions.judged(), whole)]
    torch.testing.assert_close(*facts)


@pytest.mark.parametrize("name", [*FOLLOWED, *SAMPLED])
def test_few_tokens_at_a_time_are_judged_as_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = torch.Generator().manual_seed(5)
    target = torch.randn(40, VOCABULARY, generator=source)
    draft = target + torch.randn(40, VOCABULARY, generator=source)
    sight = Sight(target, draft.argmax(-1), draft.softmax(-1), torch.rand(40, generator=source, dtype=torch.float64))
    after, greedy = torch.arange(40).flip(0) % 8, torch.rand(40, generator=source) < 0.5
    scores, *_ = sight.judge(score_named(name), processed.Bounds(torch.zeros(40), torch.ones(40), after, greedy))
    limit = scores[scores < torch.inf].median().expand(40)
    bounds = processed.Bounds(limit, torch.ones(40), after, greedy)
    whole = sight.judge(score_named(name), bounds)
    assert 0 < whole[-1].sum() < 40
    monkeypatch.setattr(processed, "chunk_elements", lambda device, vocabulary: 3 * vocabulary)
    for one, other in zip(sight.judge(score_named(name), bounds), whole, strict=True):
        assert torch.equal(one, other)


PARAMETERS: dict[str, Any] = {
    "extra_args": None, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False,
    "all_stop_token_ids": {5}, "stop_token_ids": [], "stop": [], "max_tokens": 9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "temperature", "noise_is_seen", "said"),
    [
        ("cactus", 0.0, True, "score 'cactus' reads the random number of the exact test, which vLLM draws in sampled"),
        ("accept-threshold@0.5", 0.0, True, "score 'accept-threshold@0.5' reads the random number"),
        ("posterior", 0.8, False, "score 'posterior' needs the random number of the exact test, which vLLM's V2 model"),
        ("fly", 0.8, False, "score 'fly' needs the random number"),
        ("fly", 0.0, False, None),
        ("fly", 0.8, True, None),
        ("posterior", 0.8, True, None),
        ("accept-threshold", 0.0, False, None),
        ("typical", 0.8, False, None),
        ("margin@3", 0.8, False, None),
    ],
)
def test_requests_whose_noise_is_hidden_are_decoded_exactly(
    name: str, temperature: float, noise_is_seen: bool, said: str | None
) -> None:
    reason = hidden_noise(name, temperature == 0, noise_is_seen)
    described = describe(
        SimpleNamespace(temperature=temperature, **PARAMETERS),
        profile({"score": name, "threshold": 0.25}), noise_is_seen,
    )  # fmt: skip
    assert (described.threshold, described.fault) == (0.25 if reason is None else EXACT, reason)
    assert reason is None if said is None else reason is not None and reason.startswith(said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": "fly@2@3"}, None),
        ({"score": "typical", "logits": "processed"}, None),
        ({"score": "margin@3", "rule": "fsd-sd", "sampling.temperature": 0.8}, None),
        ({"score": "gated-js@0.8", "sampling.temperature": 0.8}, None),
        ({"score": "cactus", "rule": "fsd-sd", "sampling.temperature": 0.8}, None),
        (
            {"score": "cactus"},
            "the profile is greedy, and its score 'cactus' reads the random number of the exact test, which vLLM draws "
            "in sampled requests alone; calibrate with another score, or sampling",
        ),
        (
            {"score": "margin", "sampling.temperature": 0.8},
            "the profile samples, and its rule 'fsd-coupled' with score 'margin' samples from another law than vLLM, "
            "whose rule is 'fsd-sd'; calibrate with that rule",
        ),
        (
            {"score": "margin", "logits": "processed"},
            "the profile's margin is of processed logits, and vLLM's of raw ones: calibrate on these",
        ),
    ],
    ids=str,
)
def test_profiles_are_followed_by_what_vllm_lets_compute(changes: dict[str, Any], said: str | None) -> None:
    if said is None:
        check_profile(profile(changes))
        return
    with pytest.raises(UsageError) as caught:
        check_profile(profile(changes))
    assert str(caught.value) == said
