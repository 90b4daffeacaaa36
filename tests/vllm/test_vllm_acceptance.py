"""What an engine of vLLM that follows a profile accepts: vLLM's own texts at T < 0, else what D <= T allows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fsd_decoding.adaptive import EntropyScaled, Schedule
from fsd_decoding.profile.parts import PolicyInfo
from support.vllm_decisions import Decision, agrees, decisions
from support.vllm_engine import (
    THRESHOLD,
    Recorded,
    arithmetic,
    engine,
    own_texts,
    sampling,
    saved,
    served,
)
from support.vllm_laws import Context, open_context, p_value

_NOTHING = {"fsd_threshold": 1e-30}  # D is computed wherever it could decide, and none is small enough


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return engine(saved(tmp_path_factory.mktemp("profile")))


@pytest.fixture(scope="module")
def context() -> Context:
    return open_context(own_texts(300)[:40])


@pytest.mark.parametrize("options", [{"fsd": "off"}, {"fsd_threshold": -1e-9}, _NOTHING], ids=str)
def test_where_nothing_is_accepted_by_score_texts_are_vllms_own(following: Any, options: dict[str, Any]) -> None:
    assert served(following, arithmetic(300), sampling(options)) == own_texts(300)


def test_the_profiles_threshold_changes_texts_and_saves_rounds(following: Any) -> None:
    task = arithmetic(60)
    recorded = Recorded(following)
    lossy = served(following, task, sampling())
    rounds = sum(len(step.ids) for step in recorded.steps)
    assert lossy != served(following, task, sampling(_NOTHING))
    assert rounds < sum(len(step.ids) for step in recorded.steps) - rounds


def _decisions(llm: Any, count: int) -> list[Decision]:
    """Serves problems at the profile's threshold."""
    recorded = Recorded(llm)
    outputs = llm.generate([p.prompt for p in arithmetic(count, seed=21).problems], sampling(), use_tqdm=False)
    return [decision for output in outputs for decision in decisions(recorded, output)]


def test_decisions_equal_those_from_uncached_logits_in_fp64(following: Any) -> None:
    found = _decisions(following, 100)
    drafted = [d for d in found if d.drafted]
    assert len(drafted) > 3000
    assert sum(d.fuzzy for d in drafted) > 50
    assert sum(d.rejected for d in drafted) > 50
    computed = [d for d in drafted if math.isfinite(d.recorded)]
    assert max(abs(d.recorded - d.exact) for d in computed) < 1e-4
    assert all(d.accepted and d.own for d in drafted if not math.isfinite(d.recorded))
    assert [d for d in found if not agrees(d, THRESHOLD)] == []


def test_a_schedule_follows_positions_in_the_completion(tmp_path: Path) -> None:
    schedule = Schedule(start=0.2, end=0.0, over=30)
    policy = PolicyInfo.of(str(schedule.identity)).model_dump()
    llm = engine(saved(tmp_path, {"policy": policy, "threshold": 0.2}))
    found = _decisions(llm, 30)
    assert [d for d in found if not agrees(d, 0.2 * max(0.0, 1 - d.place / 30))] == []
    fuzzy = [d.place for d in found if d.fuzzy]
    assert len(fuzzy) > 10
    assert max(fuzzy) < 30


def test_an_entropy_policy_follows_the_target(tmp_path: Path) -> None:
    scaled = EntropyScaled(0.02, slope=3.0, of="target")
    policy = PolicyInfo.of(str(scaled.identity)).model_dump()
    llm = engine(saved(tmp_path, {"policy": policy, "threshold": 0.02}))
    found = _decisions(llm, 30)
    thresholds = [0.02 * math.exp(3.0 * (1 - math.exp(-d.target_entropy))) for d in found]
    assert [d for d, t in zip(found, thresholds, strict=True) if not agrees(d, t)] == []
    assert any(d.fuzzy and d.exact > 0.02 for d in found)


def test_requests_of_one_batch_each_have_their_own_threshold(following: Any) -> None:
    task = arithmetic(24)
    options = [{"fsd": "off"}, None, {"fsd_threshold": 0.02}, {"fsd_threshold": 0.5}]
    mixed = served(following, task, [sampling(options[i % 4]) for i in range(24)])
    for turn, option in enumerate(options):
        assert mixed[turn::4] == served(following, task, sampling(option))[turn::4], option


@pytest.mark.usefixtures("mended_expansion")
class TestSampled:
    """Sampled requests: vLLM's own law where D > T, the draft's where D <= T."""

    @pytest.fixture(scope="class")
    @classmethod
    def sampled(cls, tmp_path_factory: pytest.TempPathFactory, mended_expansion: None) -> Any:
        path = saved(tmp_path_factory.mktemp("sampled"), {"sampling.temperature": 1.0})
        one = {"draft_sample_method": "probabilistic", "num_speculative_tokens": 1}  # no other token is looked at
        return engine(path, speculative_config=one, max_num_seqs=256)

    @pytest.mark.parametrize("share", [-1.0, 0.9, 1.1])
    def test_a_drafted_token_has_the_law_of_the_target_or_of_the_draft(
        self, sampled: Any, context: Context, share: float
    ) -> None:
        """T is `share` of D: a chi-squared test, whose probability of a false alarm is 1e-5 for each T."""
        parameters = sampling(
            {"fsd_threshold": share * context.score}, temperature=1.0, max_tokens=3, stop=None, n=4000
        )
        (output,) = sampled.generate([{"prompt_token_ids": context.tokens}], parameters, use_tqdm=False)
        drawn = [c.token_ids for c in output.outputs if c.token_ids[0] == context.first and len(c.token_ids) > 1]
        assert len(drawn) > 1000
        law = context.draft if share >= 1 else context.target
        assert p_value([tokens[1] for tokens in drawn], law) > 1e-5

    def test_laws_of_target_and_draft_would_be_told_apart(self, context: Context) -> None:
        generator = torch.Generator().manual_seed(0)
        for one, other in ((context.draft, context.target), (context.target, context.draft)):
            drawn = torch.multinomial(one, 1000, replacement=True, generator=generator).tolist()
            assert p_value(drawn, other) < 1e-5
