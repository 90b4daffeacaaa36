"""Calibration of policies that move T: from the goal to a decoder that follows the profile."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import SpeculativeDecoder, ThresholdProfile, calibrate
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.policy_families import check_policies, shapes
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.options.goal import Goal
from fsd_calib.options.search_space import SearchSpace
from fsd_common.progress.base import Advance, Silent
from fsd_decoding.adaptive import Constant, EntropyScaled, Max, Min, PerPrompt, Phase, Schedule, Switch
from fsd_decoding.policies.threshold import RoundState, ScalePolicy, ThresholdPolicy
from fsd_decoding.profile.setting import Setting
from support.calibration.untimed import undated
from support.messages import usage_error
from support.models import tiny_calibration
from support.models.tiny_calibration import far_apart
from support.models.tiny_models import word_tokenizer

TASK = replace(tiny_calibration.task(360), max_new_tokens=12)
SETTINGS: dict[str, Any] = {
    "min_acc": 0.5,
    "draft_length": 4,
    "score": "js",
    "threshold_policy": "schedule",
    "trials": 4,
    "serve_batch": 8,
}


class Stopped(Silent):
    """Interrupts the search, once it has decoded a little: what comes before it takes 64 texts."""

    def __init__(self) -> None:
        self._left = 64 + 20

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        def advance(done: int) -> None:
            self._left -= done if title.startswith("fsd-coupled") else 0
            if not self._left:
                raise KeyboardInterrupt

        yield advance


def run(folder: Path, **changes: Any) -> ThresholdProfile:
    target, draft = far_apart()
    return calibrate(
        TASK, target=target, draft=draft, tokenizer=word_tokenizer(), out=folder / "out", replace=True,
        cache=folder / "cache", state=folder / "cache", looks=1, **(SETTINGS | changes),
    )  # fmt: skip


def decoder(profile: Any) -> SpeculativeDecoder:
    target, draft = far_apart()
    return SpeculativeDecoder.from_pretrained(target, draft, profile=profile, tokenizer=word_tokenizer())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibrated")


@pytest.fixture(scope="module")
def made(folder: Path) -> ThresholdProfile:
    return run(folder)


@pytest.mark.slow
def test_a_shape_is_certified_and_saved(made: ThresholdProfile, folder: Path) -> None:
    assert made.certificate.certified
    assert made.policy is not None
    assert made.policy.name == "schedule"
    assert made.certificate.certified
    assert made.policy.identity in {p.setting.policy.identity for p in made.curve if p.setting.policy is not None}
    assert all((p.setting.policy is None) == (p.setting.threshold is None) for p in made.curve)
    assert ThresholdProfile.load(folder / "out" / "profile.json") == made


@pytest.mark.slow
def test_a_decoder_of_the_profile_makes_the_texts_of_the_calibration(made: ThresholdProfile, folder: Path) -> None:
    problems = list({p.key: p for p in reversed(TASK.problems)}.values())  # repeats are not decoded
    following = decoder(folder / "out" / "profile.json")
    assert made.policy is not None
    setting = Setting(made.rule, made.score, made.draft_length, made.threshold, made.policy)
    with ResultCache(folder / "cache" / "decodings.sqlite") as store:
        cached = CachedDecoder(OwnEngine(following, TASK), TASK, store)
        known = cached(setting, problems)
        assert cached.decoded == 0
    prompts, ids = [p.prompt for p in problems], [p.id for p in problems]
    texts = following.generate(prompts, TASK.max_new_tokens, ids=ids)
    assert [(r.text, r.rounds, r.accepted) for r in texts] == [(d.text, d.rounds, d.accepted) for (d,) in known]
    stricter = decoder(
        made.model_copy(update={"threshold": 0.6}).sealed()
    )  # the certified one accepts all, moved or not
    moved = stricter.generate(prompts, TASK.max_new_tokens, ids=ids)
    constant = stricter.generate(prompts, TASK.max_new_tokens, ids=ids, threshold=0.6)
    assert [r.text for r in constant] != [r.text for r in moved]


@pytest.mark.slow
def test_an_interrupted_search_comes_to_the_same_end(made: ThresholdProfile, folder: Path, tmp_path: Path) -> None:
    """With the costs of the other run, which a run measures once."""
    (tmp_path / "out").mkdir()
    for facts in (folder / "out").glob("run-*.json"):
        shutil.copy(facts, tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, progress=Stopped())
    resumed = run(tmp_path)
    assert (resumed.threshold, resumed.policy) == (made.threshold, made.policy)
    assert undated(resumed.certificate) == undated(made.certificate)


MARKERS: dict[str, Any] = {"phase_begin": "w1", "phase_end": "w2"}  # with which many words begin


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "more"),
    [("entropy", {}), ("per-prompt", {}), ("phase", MARKERS), ("phase-outside", {"phase_begin": 5, "phase_end": 9})],
)
def test_other_families_are_found_tested_and_followed(policy: str, more: dict[str, Any], tmp_path: Path) -> None:
    made = run(tmp_path, threshold_policy=policy, **more)
    assert made.policy is not None
    assert (made.certificate.certified, made.policy.name) == (True, policy.removesuffix("-outside"))
    assert made.policy.parameters.items() >= {key.removeprefix("phase_"): each for key, each in more.items()}.items()
    following = decoder(made)
    texts = following.generate([p.prompt for p in TASK.problems[:40]], 12, ids=[p.id for p in TASK.problems[:40]])
    setting = Setting(made.rule, made.score, made.draft_length, made.threshold, made.policy)
    with ResultCache(tmp_path / "cache" / "decodings.sqlite") as store:
        known = CachedDecoder(OwnEngine(following, TASK), TASK, store)(setting, TASK.problems[:40])
    assert [(r.text, r.rounds) for r in texts] == [(d.text, d.rounds) for (d,) in known]


@pytest.mark.slow
def test_a_front_of_several_families_says_which_point_is_whose(folder: Path) -> None:
    """From its points a decoder may take any, with what moves T there."""
    mixed = (Schedule(2.0, 1.0, over=6), "constant")
    front = run(folder, threshold_policy=mixed, pareto=True, min_acc=None, trials=4)
    assert {p.setting.policy and p.setting.policy.name for p in front.curve if p.setting.threshold is not None} == {
        None,
        "schedule",
    }
    point = next(p for p in front.curve if p.setting.policy is not None and p.source == "certification")
    only = front.model_copy(update={"curve": [point]})
    choice = only.at(min_acc=point.retention / 2, certified=False)
    assert choice.setting.policy == point.setting.policy
    with pytest.warns(UserWarning, match="chooses no point"):
        following = decoder(front)
    results = following.generate(
        ["w20 w30"], 12, rule=choice.setting.rule, threshold=choice.moved, draft_length=choice.draft_length
    )
    assert isinstance(choice.moved, ScalePolicy)
    expected = following.generate(
        ["w20 w30"], 12, rule=choice.setting.rule, threshold=mixed[0].at(choice.threshold), draft_length=4
    )
    assert results == expected


class Halved(Schedule):
    def scales(self, state: RoundState) -> Any:
        return super().scales(state) / 2


PER_PROMPT = PerPrompt(0.1, [0.1, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0])


class Nameless(ScalePolicy):
    def scales(self, state: RoundState) -> Any:
        return state.base.new_ones(len(state.base))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("poetry", "threshold_policy is 'poetry'; it must be one of constant, schedule, entropy, per-prompt"),
        (("schedule", 3), "threshold_policy is 3; it must be one of constant, schedule"),
        ([["entropy"]], "threshold_policy is ['entropy']; it must be one of constant, schedule"),
        ((), "threshold_policy is (); give one or more"),
        (EntropyScaled(0.1, 2.0, "last"), "EntropyScaled(of='last') cannot be replayed"),
        (Switch.after_sentence(Constant(0.1), Constant(0.2)), "Switch cannot be replayed"),
        (Halved(1.0, 1.0, over=6), "the policy Halved has the identity of Schedule"),
        (Max(Halved(1.0, 1.0, over=6), Constant(0.1)), "the policy Halved has the identity of Schedule"),
        (Nameless(), "the policy Nameless has no identity, so neither a cache of results nor a profile can name it"),
        (ThresholdPolicy(), "the policy ThresholdPolicy does not scale T by the text alone"),
    ],
)
def test_what_is_no_policy_is_refused_before_the_work(tmp_path: Path, policy: Any, message: str) -> None:
    assert message in usage_error(lambda: run(tmp_path, threshold_policy=policy))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "have no markers of thinking (<think> </think>, …), and task tiny has no phase; give phase_begin and"),
        (
            {"phase_begin": "<a>", "phase_end": "w2"},
            "no token of the traced texts is inside the phase from '<a>' to 'w2'; give other markers (phase_begin",
        ),
        ({"phase_begin": "w", "phase_end": "</a>"}, "no token of the traced texts is outside the phase from 'w' to"),
        ({"phase_begin": "<a>", "phase_end": 40}, "the marker 40 is no token; ids are from 0 to 39"),
        ({"phase_begin": "<a>"}, "phase_begin is '<a>' and phase_end is None; give both, or none"),
        ({"phase_begin": "", "phase_end": "b"}, "phase_begin is ''; it must be a text of 1 to 200 bytes, or the id"),
        (
            {"phase_begin": 3, "phase_end": 4, "threshold_policy": "entropy"},
            "no policy goes by it; give threshold_policy phase, phase-inside or phase-outside, or leave them out",
        ),
    ],
)
def test_a_phase_that_texts_do_not_have_is_refused(tmp_path: Path, changes: Any, message: str) -> None:
    assert message in usage_error(lambda: run(tmp_path, **{"threshold_policy": "phase", **changes}))


def test_what_can_be_calibrated_is_let_through() -> None:
    falling = Schedule(0.2, 0.1, over=6)
    both: Any = Min(PER_PROMPT, Max(falling, Phase(0.2, 0.1, "<think>", 7)))
    check_policies([Constant(0.1), falling, EntropyScaled(0.1, 2.0, "draft"), PER_PROMPT, both])


def test_a_constant_of_ones_own_moves_nothing() -> None:
    nothing: Any = None  # that a constant does not ask for
    assert shapes([Constant(0.3), "constant"], nothing, nothing, nothing) == {None: None}
    decoding = SearchSpace(rule="fsd", score="js", draft_length=4, predictor="auto", threshold_policy=Constant(0.3))
    Calibration(TASK, *far_apart(), Goal(min_acc=0.5), decoding)


def test_a_predictor_and_a_policy_are_refused(tmp_path: Path) -> None:
    assert "a predictor ends drafts by the T they are given, and policy schedule judges them by another" in usage_error(
        lambda: run(tmp_path, predictor="auto")
    )
