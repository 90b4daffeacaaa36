"""Rules with scores accept in a round as many tokens as the engines that the scores come from.

transformers' own function is called. vLLM's own kernels ran once: `support/record_vllm.py` recorded what they accept.
The kernels of TensorRT-LLM, SGLang, Medusa and vllm-ascend are restated here, from their sources in November 2026.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor
from transformers.generation.utils import _speculative_sampling

from fsd_decoding import noise
from fsd_decoding.proposal import Criterion, Proposal
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import Fly, score_named
from fsd_decoding.walk import walk
from support.paths import ROOT
from support.score_references import Array, entropy

ROWS, LENGTH, WORDS = 300, 4, 9


def proposal(sampling: Sampling, criterion: Criterion, threshold: float) -> Proposal:
    """Rounds with random, related distributions, whose drafts are drawn with the keyed noise."""
    random = torch.Generator().manual_seed(1)
    target = 2 * torch.randn(ROWS, LENGTH + 1, WORDS, generator=random, dtype=torch.float64)
    draft = target[:, :-1] + torch.randn(ROWS, LENGTH, WORDS, generator=random, dtype=torch.float64)
    keys, positions = noise.problem_keys(1, list(range(ROWS))), torch.arange(LENGTH + 1).expand(ROWS, -1)
    tokens = torch.zeros(ROWS, LENGTH + 2, dtype=torch.int64)
    drafted = sampling.draw(sampling.warp(draft, tokens, positions[:, :-1]), keys, positions[:, :-1])
    thresholds = torch.full((ROWS,), threshold, dtype=torch.float64)
    return Proposal(target, draft, drafted, positions, tokens, keys, thresholds, criterion, sampling)


def accepted(rule: str, round_: Proposal, counts: Tensor | None = None) -> list[int]:
    """How many drafted tokens of each row are accepted before the first rejected one."""
    drafted = torch.full((len(round_.keys),), round_.drafted.shape[1]) if counts is None else counts
    found: list[int] = walk(round_, rule_named(rule).judge(round_), drafted).accepted.tolist()
    return found


def rows(round_: Proposal) -> list[tuple[Array, Array, list[int], list[float]]]:
    """p, q, the drafted tokens and u of each row, after processing."""
    p, q = (softmax(logits.numpy(), -1) for logits in (round_.warped_target, round_.warped_draft))
    u = round_.uniform(torch.float64).tolist()
    return list(zip(p, q, round_.drafted.tolist(), u, strict=True))


def assert_decides(found: list[int], exact: list[int]) -> None:
    """Asserts that many rounds are longer than the exact rule's, and many are not whole."""
    longer = sum(a > b for a, b in zip(found, exact, strict=True))
    assert min(longer, sum(count < LENGTH for count in found)) > len(found) / 20


# --- restated kernels --------------------------------------------------------------------------------


def tensorrt(p: Array, drafted: Sequence[int], top_k: int, delta: float) -> int:
    """`mtpRelaxedAcceptanceKernel` (cpp/tensorrt_llm/kernels/speculativeDecoding/mtpKernels.cu), while thinking.

    It is given the k largest probabilities of each place, in order, with their tokens.
    """
    for place, x in enumerate(drafted):
        tokens = np.argsort(-p[place], kind="stable")[:top_k]
        values = p[place][tokens]
        bar = values[0] - delta
        candidates = [token for j, token in enumerate(tokens) if j == 0 or values[j] >= bar]
        if x not in candidates:
            return place
    return len(drafted)


@pytest.mark.parametrize("top_k", [1, 2, 3, WORDS])
@pytest.mark.parametrize("delta", [0.0, 0.2, 0.6])
def test_relaxed_is_tensorrt_llms_relaxed_acceptance(top_k: int, delta: float) -> None:
    round_ = proposal(Sampling(), Criterion(f"relaxed@{top_k}"), delta)
    found, exact = accepted("fsd-coupled", round_), accepted("coupled", round_)
    assert found == [tensorrt(p, drafted, top_k, delta) for p, _, drafted, _ in rows(round_)]
    if top_k > 1 and delta:
        assert_decides(found, exact)
    else:
        assert found == exact


def sglang(p: Array, drafted: Sequence[int], coins: Sequence[float], single: float, acc: float) -> int:
    """`TreeSpeculativeSamplingTargetOnly` (sgl_kernel/speculative/sampling.cuh) where no token has a sibling."""
    for place, (x, coin) in enumerate(zip(drafted, coins, strict=True)):
        mass = p[place][x]
        if not (mass > 0 and (coin < mass / acc or mass >= single)):
            return place
    return len(drafted)


@pytest.mark.parametrize("acc", [1.0, 0.6, 0.2])
@pytest.mark.parametrize("single", [1.0, 0.4, 0.1])
def test_accept_threshold_is_sglangs(single: float, acc: float) -> None:
    """SGLang's own test at acc = 1, u < p(x), is in the exact rule, u <= p(x)/q(x)."""
    round_ = proposal(Sampling(0.8), Criterion(f"accept-threshold@{acc}"), 1 - single)
    theirs = [sglang(p, drafted, u, single, acc) for p, _, drafted, u in rows(round_)]
    if acc < 1:
        assert accepted("fsd", round_) == theirs
    ours, exact = accepted("fsd-sd", round_), accepted("sd", round_)
    assert all(a >= b for a, b in zip(ours, theirs, strict=True))
    alone = proposal(Sampling(0.8), Criterion("accept-threshold"), 1 - single)
    by_single = [sglang(p, drafted, [2.0] * LENGTH, single, 1.0) for p, _, drafted, _ in rows(alone)]
    assert accepted("fsd", alone) == by_single
    if single < 1 or acc < 0.5:
        assert_decides(ours, exact)


def medusa(p: Array, drafted: Sequence[int], threshold: float, alpha: float) -> int:
    """`evaluate_posterior` (medusa/model/utils.py) of one candidate; it adds 1e-5 to p within the entropy."""
    for place, x in enumerate(drafted):
        spread = -(p[place] * np.log(p[place] + 1e-5)).sum()
        if not p[place][x] > min(threshold, math.exp(-spread) * alpha):
            return place
    return len(drafted)


@pytest.mark.parametrize("threshold", [0.5, 0.2, 0.09])
def test_typical_is_medusas(threshold: float) -> None:
    round_ = proposal(Sampling(0.7), Criterion("typical"), 1 - threshold)
    assert accepted("fsd", round_) == [medusa(p, x, threshold, math.sqrt(threshold)) for p, _, x, _ in rows(round_)]
    assert_decides(accepted("fsd-sd", round_), accepted("sd", round_))


def ascend(p: Array, q: Array, drafted: Sequence[int], u: Sequence[float], alpha: float, threshold: float) -> int:
    """`rejection_random_sample_kernel` (vllm_ascend/ops/triton/reject_sample.py) with ENTROPY_VERIFY."""
    for place, (x, uniform) in enumerate(zip(drafted, u, strict=True)):
        bar = min(math.exp(-entropy(p[place]) * alpha), threshold)
        if not (q[place][x] > 0 and p[place][x] / q[place][x] >= bar * uniform):
            return place
    return len(drafted)


@pytest.mark.parametrize(("alpha", "threshold"), [(0.4, 0.95), (0.0, 0.5), (2.0, 1.0), (1.0, 0.3)])
def test_posterior_is_vllm_ascends_entropy_verification(alpha: float, threshold: float) -> None:
    round_ = proposal(Sampling(1.1, top_k=6), Criterion(f"posterior@{alpha}"), 1 - threshold)
    found = accepted("fsd-sd", round_)
    assert found == [ascend(p, q, drafted, u, alpha, threshold) for p, q, drafted, u in rows(round_)]
    assert_decides(found, accepted("sd", round_))


# --- transformers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, 0.9, 0.5, 0.2])
def test_ensemble_is_transformers_assistant_ensemble_weight(
    weight: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own function, given our u; what it samples from after a rejection is (p - q)+, and p at the end."""
    round_ = proposal(Sampling(0.9), Criterion(), 0.0 if weight is None else 1 - weight)
    found, laws = accepted("ensemble", round_), list[Tensor]()
    u = round_.uniform(torch.float64)

    def keep(law: Tensor, num_samples: int) -> Tensor:
        laws.append(law[0])
        return law.argmax(-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", keep)
    for row in range(ROWS):
        monkeypatch.setattr(torch, "rand_like", lambda ratio, row=row: u[row].view_as(ratio))
        _, count = _speculative_sampling(
            round_.drafted[row : row + 1], round_.warped_draft[row : row + 1], LENGTH,
            round_.warped_target[row : row + 1], weight,
        )  # fmt: skip
        assert int(count) == found[row]
        p, q = round_.warped_target[row, count].softmax(-1), torch.zeros(WORDS, dtype=torch.float64)
        rest = p if count == LENGTH else (p - round_.warped_draft[row, count].softmax(-1)).clamp_min(q)
        torch.testing.assert_close(laws[-1], rest / rest.sum())
    if weight is not None:
        assert_decides(found, accepted("sd", round_))


# --- vLLM --------------------------------------------------------------------------------------------


@cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "tests/support/vllm_rounds.json").read_text(encoding="utf-8"))
    return found


def recorded_rounds(
    greedy: bool, criterion: Criterion, threshold: float, uniform: str, patch: pytest.MonkeyPatch
) -> tuple[Proposal, Tensor]:
    """The recorded rounds, and how many tokens each drafted; the exact test takes the u that vLLM drew."""
    rounds = recorded()["rounds"]
    counts = torch.tensor([len(each["drafted"]) for each in rounds])
    longest, size = int(counts.max()), len(rounds)
    target, draft = (torch.zeros(size, longest + more, 5, dtype=torch.float64) for more in (1, 0))
    drafted, u = torch.zeros(size, longest, dtype=torch.int64), torch.ones(size, longest, dtype=torch.float64)
    for row, (each, count) in enumerate(zip(rounds, counts.tolist(), strict=True)):
        target[row, : count + 1], draft[row, :count] = torch.tensor(each["target"]), torch.tensor(each["draft"])
        drafted[row, :count], u[row, :count] = torch.tensor(each["drafted"]), torch.tensor(each[uniform])

    def known(keys: Tensor, positions: Tensor, stream: noise.Stream, dtype: torch.dtype, number: int = 0) -> Tensor:
        assert stream is noise.Stream.ACCEPT
        return u.to(dtype)

    patch.setattr(noise, "uniform", known)
    positions = torch.arange(longest + 1).expand(size, -1)
    return Proposal(
        target, draft, drafted, positions, torch.zeros(size, longest + 2, dtype=torch.int64),
        noise.problem_keys(0, list(range(size))), torch.full((size,), threshold, dtype=torch.float64), criterion,
        Sampling(0.0 if greedy else 1.0), counts=counts,
    ), counts  # fmt: skip


@pytest.mark.parametrize("case", recorded()["fly"], ids=str)
def test_fly_is_vllms(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`rejection_sample_method: "fly"` of both its model runners, which accept the same."""
    score = score_named(f"fly@{case['window']}@{case['k']}")
    assert isinstance(score, Fly)
    criterion, greedy = Criterion(score.written), case["greedy"]
    round_, counts = recorded_rounds(greedy, criterion, score.most - case["threshold"], "uniform", monkeypatch)
    found = accepted("fsd-coupled" if greedy else "fsd-sd", round_, counts)
    assert found == case["accepted"]
    exact = accepted("coupled" if greedy else "sd", round_, counts)
    assert (sum(found) > sum(exact)) == (case["threshold"] < 0.9 or case["k"] == 3)


def test_block_verification_is_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rejection_sample_method: "block"`."""
    round_, counts = recorded_rounds(False, Criterion(), 0.0, "uniform_by_step", monkeypatch)
    found = accepted("sd-block", round_, counts)
    assert found == recorded()["block"][0]
    assert found != accepted("sd", round_, counts)
