"""Scores of the target alone, in vLLM's own extension point: decisions, options, and which profiles go there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vllm.sampling_params import SamplingParams

from fsd_calib.vllm_plugin.engine_checks import uses_processor
from fsd_calib.vllm_plugin.logits_v2 import StepRows
from fsd_calib.vllm_plugin.target_scores import TargetScores
from fsd_common.errors import UsageError
from fsd_decoding.adaptive import EntropyScaled, Phase, Schedule
from fsd_decoding.divergence import entropy
from fsd_decoding.policies.threshold import ScalePolicy
from fsd_decoding.profile.parts import PolicyInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.scores import Seen, score_named
from support.calibration.profiles import profile

VOCABULARY, T = 40, 0.6
LATER, OVER = 1 / 6, 20  # of a schedule: the share of T that is left after so many tokens
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"fsd": "off"}, {"fsd_threshold": 0.3}, {"fsd_threshold": 0.9}, {})
TEMPERATURES = (0.0, 0.0, 0.0, 0.7, 1.3)
SLOTS, COUNTS, PROMPTS, PLACES = (3, 0, 5, 1, 2), (4, 3, 0, 5, 2), (7, 9, 4, 30, 5), (2, 0, 8, 11, 40)
"""Of five requests: their slots, drafted tokens, tokens of prompts, and tokens of texts before the drafts."""


def following(score: str, policy: ScalePolicy | None = None) -> ThresholdProfile:
    given = None if policy is None else PolicyInfo.of(str(policy.identity)).model_dump()
    changes = {"score": score, "threshold": T, "policy": given, "logits": score_named(score).on or "raw"}
    return profile({name: value for name, value in changes.items() if value is not None})


def processor(followed: ThresholdProfile) -> TargetScores:
    config = SimpleNamespace(additional_config={"fsd": {"profile": "", "content": followed.model_dump_json()}})
    prompts = torch.zeros(8, dtype=torch.int32)
    prompts[list(SLOTS)] = torch.tensor(PROMPTS, dtype=torch.int32)
    states = SimpleNamespace(max_num_reqs=8, device=torch.device("cpu"), prompt_len=SimpleNamespace(gpu=prompts))
    made = TargetScores(config, states)
    for slot, options, temperature in zip(SLOTS, OPTIONS, TEMPERATURES, strict=True):
        truncated = {} if temperature == 0 else {"top_k": 12, "top_p": 0.9}
        made.add_request(slot, SamplingParams(temperature=temperature, extra_args=options, **truncated))
    made.apply_staged_writes()
    return made


def step(seed: int) -> tuple[Tensor, Any, Tensor]:
    """Returns logits of the rows of a step, its layout, and the tokens that its rows verify, one of them padding."""
    drawn = torch.Generator().manual_seed(seed)
    rows = sum(COUNTS) + len(COUNTS)
    logits = torch.randn(rows, VOCABULARY, generator=drawn) * 2
    likely = logits.topk(3, -1).indices.gather(1, torch.randint(3, (rows, 1), generator=drawn)).squeeze(1)
    begins = np.cumsum([0, *(count + 1 for count in COUNTS)])
    bonus = torch.from_numpy(begins[1:] - 1)
    verified = likely.index_fill(0, bonus, -1).to(torch.int32)
    verified[1] = -1  # of the first request
    owners = np.repeat(np.arange(len(COUNTS)), np.array(COUNTS) + 1)
    local = torch.from_numpy(np.arange(rows) - begins[owners])
    start = torch.tensor([before + place - 1 for before, place in zip(PROMPTS, PLACES, strict=True)])
    layout = SimpleNamespace(
        expanded_idx_mapping=torch.tensor(SLOTS)[owners].int(), idx_mapping_np=np.array(SLOTS),
        expanded_local_pos=local.int(), input_ids=torch.cat([torch.zeros(1, dtype=torch.int32), verified[:-1]]),
        pos=start[owners] + local,
    )  # fmt: skip
    return logits, layout, verified


def reference(followed: ThresholdProfile, policy: ScalePolicy | None, logits: Tensor, verified: Tensor) -> list[bool]:
    """Which rows' tokens are at most T, by formulas in fp64, one row after the other."""
    found, row, score = [], 0, score_named(followed.score)
    for count, temperature, options, place in zip(COUNTS, TEMPERATURES, OPTIONS, PLACES, strict=True):
        own = -1.0 if "fsd" in options else options.get("fsd_threshold", T)
        for i in range(count + 1):
            own_row = logits[row].double()
            scale: Any = 1.0
            if isinstance(policy, Schedule):
                scale = 1 + (LATER - 1) * min((place + i) / OVER, 1.0)
            elif isinstance(policy, EntropyScaled):
                scale = policy.scales(SimpleNamespace(target_entropy=entropy(own_row[None]))).item()  # type: ignore[arg-type]
            if score.on == "processed" and temperature > 0:
                own_row = own_row / temperature
                own_row = own_row.masked_fill(own_row < own_row.topk(12).values[-1], -math.inf)
                ordered, at = own_row.softmax(-1).sort(descending=True)
                own_row[at[(ordered.cumsum(-1) - ordered) >= 0.9]] = -math.inf
            token = int(verified[row])
            kept = i < count and token >= 0 and own >= 0
            value = (
                score.of(Seen(own_row[None], own_row[None], torch.tensor([max(token, 0)]))).item() if kept else math.inf
            )
            found.append(kept and scale > 0 and math.isfinite(value) and value / scale <= own)
            row += 1
    return found


@pytest.mark.parametrize("policy", [None, Schedule(start=T, end=T * LATER, over=OVER), EntropyScaled(T, 1.0)])
@pytest.mark.parametrize("score", ["margin", "margin@2", "relaxed", "typical", "accept-threshold"])
@pytest.mark.parametrize("seed", range(4))
def test_tokens_are_made_certain_where_the_score_is_at_most_t(
    score: str, policy: ScalePolicy | None, seed: int
) -> None:
    followed = following(score, policy)
    logits, layout, verified = step(seed)
    expected, judge = reference(followed, policy, logits, verified), processor(followed)
    changed = judge.apply(logits.clone(), layout)
    assert (changed != logits).any(-1).tolist() == expected
    rows = torch.tensor(expected).nonzero().squeeze(1)
    assert changed.argmax(-1)[rows].tolist() == verified[rows].tolist()
    begins = np.cumsum([0, *(count + 1 for count in COUNTS)])
    found = judge.judged(StepRows(begins), [count > 0 for count in COUNTS])
    assert found is not None
    _, fuzzy, most_likely = found.facts
    drafted = [row for row in range(len(logits)) if row + 1 not in begins]
    assert torch.as_tensor(fuzzy).tolist() == [expected[row] for row in drafted]
    assert torch.as_tensor(most_likely).tolist() == [int(logits[row].argmax()) == int(verified[row]) for row in drafted]


def test_requests_that_are_decoded_exactly_are_left_alone() -> None:
    judge = processor(following("margin"))
    for parameters in (
        SamplingParams(extra_args={"fsd": "off"}),
        SamplingParams(temperature=0, thinking_token_budget=5),
    ):
        assert judge.add_request(SLOTS[0], parameters)  # so that rows are seen in every chunk of a step
        judge.apply_staged_writes()
        logits, layout, _ = step(seed=1)
        own = layout.expanded_idx_mapping == SLOTS[0]
        assert torch.equal(judge.apply(logits.clone(), layout)[own], logits[own])
    with pytest.raises(UsageError, match="fsd_threshold in vllm_xargs is 'a'"):
        TargetScores.validate_params(SamplingParams(extra_args={"fsd_threshold": "a"}))


PHASED = Phase(T, 0.1, "<", ">")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"score": "margin"}, True), ({"score": "typical"}, True), ({"score": "relaxed@10"}, True),
        ({"score": "js"}, False), ({"score": "fly"}, False), ({"score": "margin", "recorded": True}, False),
        ({"score": "margin", "second": False}, False), ({"score": "margin", "policy": PHASED}, False),
        ({"score": "margin", "method": "fly"}, False),
    ],
)  # fmt: skip
def test_vllms_own_extension_point_is_used_where_it_suffices(changes: Mapping[str, Any], expected: bool) -> None:
    spec = SimpleNamespace(rejection_sample_method=changes.get("method", "standard"))
    config = SimpleNamespace(use_v2_model_runner=changes.get("second", True), speculative_config=spec)
    followed = following(changes["score"], changes.get("policy"))
    assert uses_processor(config, followed, changes.get("recorded", False)) == expected
