"""Scores other than divergences in vLLM: texts are our own engine's, and sampled tokens have the law they say."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample import rejection_sampler as of_vllm

from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.vllm.engine import VllmEngine
from fsd_calib.vllm_plugin import rejection_sampler
from fsd_collectors.store.reading import load_traces
from fsd_collectors.store.verifying import verify
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.profile.setting import Setting
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import Seen, score_named
from support.vllm_engine import (
    DRAFT,
    LENGTH,
    TARGET,
    Recorded,
    arithmetic,
    engine,
    engine_source,
    logits,
    sampling,
    saved,
    served,
    tokenizer,
)
from support.vllm_laws import Context, open_context, p_value

COUNT, PENALTY = 40, 1.3
THRESHOLDS = {
    "gated-js@0.8": 0.1, "margin": 0.5, "margin@2": 0.9, "relaxed": 0.3, "fly@1": 0.7, "fly@2@2": 0.3,
    "accept-threshold": 0.6, "typical": 0.6,
}  # fmt: skip
ROUNDING = 1e-5  # of scores in fp32


@cache
def own() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(
        TARGET, DRAFT, rule="fsd-coupled", draft_length=LENGTH, device="cpu", dtype="float32"
    )


def ours(prompts: list[list[int]], firsts: list[int], score: str, **given: Any) -> list[Result]:
    """What our engine writes behind the first token of a text, where vLLM's first round begins, too."""
    task = arithmetic(1)
    return own().generate(
        [[*prompt, first] for prompt, first in zip(prompts, firsts, strict=True)], task.max_new_tokens - 1,
        stop=task.stop, score=score, threshold=THRESHOLDS[score], **given,
    )  # fmt: skip


@pytest.fixture(scope="module")
def calibrating() -> VllmEngine:
    made = engine_source(arithmetic(COUNT)).engine(None)
    made.check_intervals(prompts_of(COUNT))
    assert made.intervals_hold
    return made


def prompts_of(count: int) -> list[KeyedPrompt]:
    return [KeyedPrompt(problem.id, problem.prompt) for problem in arithmetic(count).problems]


def ids_of(prompts: list[KeyedPrompt]) -> list[list[int]]:
    return [tokenizer()(prompt.prompt)["input_ids"] for prompt in prompts]


@pytest.fixture(scope="module")
def lossless_rounds(calibrating: VllmEngine) -> int:
    results = calibrating.decode(DecodingRequest(Setting("sd", "js", LENGTH), 0, prompts_of(COUNT), COUNT))
    return sum(result.rounds for result in results)


@pytest.mark.parametrize("score", THRESHOLDS)
def test_texts_rounds_and_intervals_are_those_of_our_engine(
    calibrating: VllmEngine, lossless_rounds: int, score: str
) -> None:
    prompts = prompts_of(COUNT)
    setting = Setting("fsd-coupled", score, LENGTH, THRESHOLDS[score])
    found = calibrating.decode(DecodingRequest(setting, 0, prompts, 20))
    expected = ours(ids_of(prompts), [result.tokens[0] for result in found], score)
    for one, other in zip(found, expected, strict=True):
        assert one.tokens[1:] == other.tokens
        assert (one.rounds, one.accepted, one.finish_reason) == (other.rounds, other.accepted, other.finish_reason)
        assert one.interval == pytest.approx(other.interval, abs=ROUNDING)
    assert sum(result.rounds for result in found) < lossless_rounds


@pytest.mark.parametrize("score", ["fly@1", "typical"])
def test_beside_requests_whose_logits_are_processed_all_are_judged_by_processed_ones(
    score: str, tmp_path: Path
) -> None:
    llm = engine(saved(tmp_path, {"score": score, "threshold": THRESHOLDS[score]}))
    prompts, recorded = ids_of(prompts_of(COUNT)), Recorded(llm)
    kinds = [sampling(), sampling(repetition_penalty=PENALTY)] * (COUNT // 2)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], kinds, use_tqdm=False)
    plain = [list(output.outputs[0].token_ids) for output in outputs[::2]]
    for text, result in zip(plain, ours(prompts[::2], [text[0] for text in plain], score), strict=True):
        assert text[1 : 1 + len(result.tokens)] == result.tokens
    compared = 0
    for prompt, output in zip(prompts[1::2], outputs[1::2], strict=True):
        rounds = recorded.of(output.request_id)
        text = [*prompt, *(token for each in rounds for token in each.emitted)]
        found = scores(score, text)
        for each in rounds:
            near = each.facts[0, : each.accepted]
            expected = found[each.begins : each.begins + each.accepted]
            known = torch.from_numpy(near).isfinite()  # elsewhere the window of fly fails
            assert near[known.numpy()].tolist() == pytest.approx(expected[known].tolist(), abs=1e-4)
            compared += int(known.sum())
    assert compared > 200


def test_records_hold_the_score_that_decided(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    llm = engine(saved(tmp_path, {"score": "fly@1", "threshold": THRESHOLDS["fly@1"]}),
                 {"records": str(folder), "record_texts": 30})  # fmt: skip
    served(llm, arithmetic(30), sampling())
    llm.llm_engine.engine_core.shutdown()
    traces = load_traces(folder)
    assert verify(folder) == []
    rows = traces.to_pandas()
    within = rows["fly@1"] <= THRESHOLDS["fly@1"]
    assert within[rows.fuzzy].all()
    assert (within & ~rows.fuzzy).any(), "no window fails"
    assert rows.accepted[rows.fuzzy].any()


def scores(name: str, text: list[int]) -> torch.Tensor:
    """Of the tokens of a text under the penalty, in fp64, without a look at later tokens; the first has none: (n,)."""
    tokens, positions = torch.tensor([text]), torch.arange(1, len(text)).unsqueeze(0)
    target = logits("target", text)[None, :-1]
    warped = Sampling(repetition_penalty=PENALTY).warp(target, tokens, positions)
    found = score_named(name).of(Seen(warped, warped, tokens[:, 1:]))
    return torch.cat([torch.full((1,), torch.nan, dtype=found.dtype), found[0]])


@pytest.mark.usefixtures("mended_expansion")
class TestSampled:
    """Scores that need the random number of vLLM's exact test."""

    @staticmethod
    def engine(folder: Path, score: str, threshold: float, length: int = LENGTH) -> Any:
        changes = {"sampling.temperature": 1.0, "rule": "fsd-sd", "score": score, "threshold": threshold}
        path = saved(folder, changes)
        sampled = {"draft_sample_method": "probabilistic", "num_speculative_tokens": length}
        return engine(path, speculative_config=sampled, max_num_seqs=256)

    @pytest.fixture(scope="class")
    @classmethod
    def cactus(cls, tmp_path_factory: pytest.TempPathFactory, mended_expansion: None) -> Any:
        return cls.engine(tmp_path_factory.mktemp("cactus"), "cactus", 0.1, length=1)  # no other token is looked at

    @pytest.fixture(scope="class")
    @classmethod
    def context(cls, cactus: Any) -> Context:
        return open_context(served(cactus, arithmetic(40), sampling({"fsd": "off"})))

    @pytest.mark.parametrize("seeded", [False, True])
    def test_the_random_numbers_are_those_that_vllm_draws(
        self, cactus: Any, seeded: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn: dict[str, list[torch.Tensor]] = {"seen": [], "taken": []}
        draw = of_vllm.generate_uniform_probs
        for module, kind in ((rejection_sampler, "seen"), (of_vllm, "taken")):

            def kept(*arguments: Any, kind: str = kind) -> torch.Tensor:
                drawn[kind].append(draw(*arguments).clone())
                return drawn[kind][-1]

            monkeypatch.setattr(module, "generate_uniform_probs", kept)
        kinds = [sampling(temperature=1.0, seed=i if seeded else None) for i in range(8)]
        served(cactus, arithmetic(8), kinds)
        assert len(drawn["taken"]) > 10
        seen = {tuple(each.tolist()) for each in drawn["seen"]}
        assert {tuple(each.tolist()) for each in drawn["taken"] if len(each)} <= seen

    @pytest.mark.parametrize("threshold", [0.0, 0.5, 5.0])
    def test_a_drafted_token_has_the_law_of_cactus(self, cactus: Any, context: Context, threshold: float) -> None:
        """A chi-squared test, whose probability of a false alarm is 1e-5 for each T."""
        parameters = sampling({"fsd_threshold": threshold}, temperature=1.0, max_tokens=3, stop=None, n=4000)
        (output,) = cactus.generate([{"prompt_token_ids": context.tokens}], parameters, use_tqdm=False)
        drawn = [c.token_ids for c in output.outputs if c.token_ids[0] == context.first and len(c.token_ids) > 1]
        assert len(drawn) > 1000
        p, q = context.target, context.draft
        kept = (p + (2 * threshold * p * (1 - p)).sqrt()).clamp_max(1.0).minimum(q)
        rest = (p - q).clamp_min(0.0)
        law = kept + (1 - kept.sum()) * rest / rest.sum()
        assert p_value([tokens[1] for tokens in drawn], law) > 1e-5
        if threshold == 5.0:
            assert p_value([tokens[1] for tokens in drawn], p) < 1e-5, "the target's law would pass, too"

    def test_a_greedy_request_is_refused_and_an_exact_one_is_not(self, cactus: Any) -> None:
        with pytest.raises(VLLMValidationError, match=r"score 'cactus' reads the random number .*; send a temperature"):
            cactus.generate(["What"], sampling(), use_tqdm=False)
        assert cactus.generate(["What"], sampling({"fsd": "off"}, max_tokens=3), use_tqdm=False)

    def test_the_window_of_fly_is_of_vllms_own_decisions(self, tmp_path: Path) -> None:
        """What is accepted although vLLM's test rejects it is always followed by as many tokens as it accepts."""
        window, llm = 2, self.engine(tmp_path, "fly@2@3", 0.9)
        recorded = Recorded(llm)
        outputs = llm.generate(
            [problem.prompt for problem in arithmetic(100).problems], sampling(temperature=1.0), use_tqdm=False
        )
        fuzzy = 0
        for output in outputs:
            for each in recorded.of(output.request_id):
                places = [i for i in range(min(each.accepted, each.facts.shape[1])) if each.facts[1, i] > 0]
                assert all(each.accepted > place + window for place in places)
                fuzzy += len(places)
        assert fuzzy > 100
