"""Conformance tests of engines, as a test class to derive from."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fsd_calib.engines.base import DecodingRequest, Engine, KeyedPrompt, Limits, WantedTraces
from fsd_calib.tasks.base import Task
from fsd_collectors.replay import sweep
from fsd_common.errors import UsageError
from fsd_common.progress.base import Silent
from fsd_decoding.adaptive import EntropyScaled, Phase, Schedule
from fsd_decoding.engine.result import Result
from fsd_decoding.profile.parts import PolicyInfo
from fsd_decoding.profile.setting import Setting

ALONE = Setting("target", "js", 1)
LENGTH = 4
POLICIES = [None, *(PolicyInfo.of(str(policy.identity)) for policy in (
    Schedule(0.25, 1.0, over=30), EntropyScaled(1.0, slope=1.0), Phase(1.0, 0.25, "=", " "), Phase(0, 1.0, "=", " "),
))]  # fmt: skip


class EngineConformance:
    """What calibrations rely on. Beside a derived class there are fixtures `engine`, which is greedy, and `task`.

    Texts of one engine do not depend on batches here: its models are in a dtype in which rounding changes none.
    """

    count = 12
    threshold = 0.1
    tokens_before_drafts = 0  # tokens of a text that no step drafts for
    drafts_anywhere = True  # whether a draft says the same wherever its round began, so that traces can be replayed

    def decode(self, engine: Engine, task: Task, setting: Setting, batch_size: int = 8) -> list[Result]:
        return engine.decode(DecodingRequest(setting, 0, self.prompts(task), batch_size))

    def prompts(self, task: Task) -> list[KeyedPrompt]:
        return [KeyedPrompt(problem.id, problem.prompt) for problem in task.problems[: self.count]]

    def fuzzy(self, threshold: float | None = None, length: int = LENGTH, score: str = "js") -> Setting:
        return Setting("fsd-coupled", score, length, self.threshold if threshold is None else threshold)

    def test_every_prompt_has_its_result_in_order(self, engine: Engine, task: Task) -> None:
        finished: dict[int, Result] = {}
        request = DecodingRequest(self.fuzzy(), 0, self.prompts(task), 4)
        results = engine.decode(request, on_finish=lambda index, result: finished.update({index: result}))
        assert [finished[index] for index in range(self.count)] == results
        one = [engine.decode(request._replace(prompts=[prompt]))[0] for prompt in request.prompts[:3]]
        assert [result.text for result in one] == [result.text for result in results[:3]]

    def test_only_what_is_begun_is_decoded(self, engine: Engine, task: Task) -> None:
        asked: list[int] = []

        def begin(index: int) -> bool:
            asked.append(index)
            return index % 2 == 1

        request = DecodingRequest(self.fuzzy(), 0, self.prompts(task), 4)
        whole, some = engine.decode(request), engine.decode(request, begin=begin)
        assert sorted(asked) == list(range(self.count))
        assert [result.tokens for result in some] == [result.tokens for result in whole[1::2]]

    def test_an_engine_goes_on_after_an_interruption(self, engine: Engine, task: Task) -> None:
        request = DecodingRequest(self.fuzzy(), 0, self.prompts(task), 4)
        whole, seen = engine.decode(request), list[int]()

        def interrupt(index: int, result: Result) -> None:
            seen.append(index)
            if len(seen) == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            engine.decode(request, on_finish=interrupt)
        assert engine.decode(request) == whole

    @pytest.mark.parametrize("rule", ["sd", "coupled"])
    def test_lossless_rules_emit_the_targets_texts(self, engine: Engine, task: Task, rule: str) -> None:
        alone = self.decode(engine, task, ALONE)
        lossless = self.decode(engine, task, Setting(rule, "js", LENGTH))
        assert [r.tokens for r in lossless] == [r.tokens for r in alone]
        assert all(r.drafted == r.accepted == 0 for r in alone)
        assert sum(r.rounds for r in lossless) < sum(r.rounds for r in alone)

    def test_counts_agree_with_texts(self, engine: Engine, task: Task) -> None:
        """A round emits what it accepts and at most one token more, within the text."""
        for r in self.decode(engine, task, self.fuzzy()):
            emitted = r.emitted - self.tokens_before_drafts
            assert r.accepted <= r.drafted <= LENGTH * r.rounds
            assert r.accepted <= emitted <= r.accepted + r.rounds
            assert r.bonus <= r.rounds

    def test_other_lengths_scores_and_thresholds_need_no_other_engine(self, engine: Engine, task: Task) -> None:
        """Each decides by its own: the same again has the same results."""
        ways = [self.fuzzy(0.0), self.fuzzy(0.0, 2), self.fuzzy(0.6), self.fuzzy(score="tv"), ALONE]
        first = [self.decode(engine, task, way) for way in ways]
        assert [self.decode(engine, task, way) for way in ways] == first
        strict, short, loose, *_ = (sum(r.emitted for r in way) / sum(r.rounds for r in way) for way in first)
        assert short < strict < loose

    @pytest.mark.parametrize("policy", POLICIES, ids=str)
    def test_a_text_holds_in_its_interval_and_ends_where_it_says(
        self, engine: Engine, task: Task, policy: PolicyInfo | None
    ) -> None:
        fuzzy = replace(self.fuzzy(), policy=policy)
        results, prompts = self.decode(engine, task, fuzzy), self.prompts(task)
        assert all(r.interval[0] <= self.threshold < r.interval[1] for r in results)
        changed = 0
        for result, prompt in zip(results, prompts, strict=True):
            lo, hi = result.interval
            inside = [t for t in ((lo + self.threshold) / 2, self.threshold + 0.9 * (hi - self.threshold))
                      if math.isfinite(t) and t >= 0]  # fmt: skip
            for threshold in inside:
                (again,) = engine.decode(DecodingRequest(fuzzy.at(threshold), 0, [prompt], 1))
                assert (again.tokens, again.rounds) == (result.tokens, result.rounds)
            if math.isfinite(hi):
                (beyond,) = engine.decode(DecodingRequest(fuzzy.at(hi * 1.001 + 1e-6), 0, [prompt], 1))
                changed += (beyond.tokens, beyond.rounds) != (result.tokens, result.rounds)
        finite = sum(math.isfinite(r.interval[1]) for r in results)
        assert changed >= finite / 2 > 0  # a token that is accepted after all may be the argmax's equal in effect

    def test_walked_rounds_say_how_far_a_round_goes_at_other_thresholds(self, engine: Engine, task: Task) -> None:
        """Roughly: at another T other rounds follow, and a text's last one is cut."""
        lossless, thresholds = Setting("coupled", "js", LENGTH), (0.02, self.threshold, 0.6)
        found = engine.walked(DecodingRequest(lossless, 0, self.prompts(task), 8), ("js", "fly@1"))
        exact = self.decode(engine, task, lossless)
        assert (found.tokens, found.rounds) == (sum(r.emitted for r in exact), sum(r.rounds for r in exact))
        assert found.walks.exactly == pytest.approx(1 + sum(r.accepted for r in exact) / found.rounds, rel=0.1)
        for score, each in product(("js", "fly@1"), thresholds):
            decoded = self.decode(engine, task, self.fuzzy(each, score=score))
            made = 1 + sum(r.accepted for r in decoded) / sum(r.rounds for r in decoded)
            assert found.walks.tokens_per_round(score, np.array([each]))[0] == pytest.approx(made, rel=0.15)

    def test_texts_of_another_task_end_where_it_says(self, engine: Engine, task: Task) -> None:
        whole, least = self.decode(engine, task, self.fuzzy()), 3
        short = engine.with_limits(Limits(least, ()))
        assert short.key(ALONE, 0) != engine.key(ALONE, 0)
        for setting in (self.fuzzy(0.6), ALONE):
            assert all(r.emitted <= least for r in self.decode(short, task, setting))
        assert self.decode(engine, task, self.fuzzy()) == whole  # whatever the other one followed last

    def test_keys_differ_where_texts_may(self, engine: Engine) -> None:
        fuzzy = self.fuzzy()
        ways = [
            ALONE, Setting("sd", "js", LENGTH), fuzzy, replace(fuzzy, draft_length=2),
            replace(fuzzy, score="tv"),
        ]  # fmt: skip
        keys = [engine.key(way, 0).hash for way in ways]
        assert len(set(keys)) == len(ways)
        assert engine.key(fuzzy.at(0.3), 1) == engine.key(fuzzy, 0)  # T is a column of its own; greedy has no seed

    def test_a_rule_and_a_threshold_that_do_not_fit_are_refused(self, engine: Engine) -> None:
        with pytest.raises(UsageError, match="needs a threshold"):
            engine.key(replace(self.fuzzy(), threshold=None), 0)
        with pytest.raises(UsageError, match="has no threshold"):
            engine.key(replace(ALONE, threshold=0.1), 0)

    def test_costs_of_a_round_are_those_of_decoding(self, engine: Engine, task: Task) -> None:
        costs = engine.costs(self.prompts(task), 4, Silent())
        assert costs.draft_step + costs.position > 0
        assert costs.verify > 0

    def test_traces_along_the_target_replay_to_the_decoded_rounds(
        self, engine: Engine, task: Task, tmp_path: Path
    ) -> None:
        """Of lossless decoding, whose text is the target's own: round for round."""
        if not self.drafts_anywhere:
            pytest.skip("what a head drafts depends on where its round began")
        part = replace(task, problems=task.problems[: self.count])
        wanted = WantedTraces(part, ("js", "tv"), 4)
        traces = engine.collect(wanted, tmp_path / "traces", Silent())
        assert traces.manifest.run == engine.manifest(wanted).run
        alone = self.decode(engine, task, ALONE)
        assert traces.tokens.count_rows() == sum(r.emitted - self.tokens_before_drafts for r in alone)
        replayed = sweep(traces, ["sd"], draft_lengths=[LENGTH])
        decoded = self.decode(engine, task, Setting("sd", "js", LENGTH))
        assert int(replayed["rounds"].iloc[0]) == sum(r.rounds for r in decoded)

    def test_what_profiles_record_is_there(self, engine: Engine) -> None:
        pair = engine.pair
        assert pair.target.fingerprint != pair.draft.fingerprint
        assert engine.device == "cpu"
        assert engine.dtype == pair.target.dtype
        assert all(engine.short_names)
        assert (engine.info is None) == (engine.name == "fsd-calib")
