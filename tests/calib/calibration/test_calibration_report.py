"""Outcomes of calibrations, and what their profiles and reports say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import ThresholdProfile, calibrate
from fsd_calib.report.console import print_report
from fsd_calib.report.figures import notes
from fsd_calib.report.verdict import verdict
from fsd_calib.tasks import Problem, Task
from fsd_calib.tasks.split import parts_of
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.profile.fields import CurvePoint
from support.calibration.fixed_speeds import fix_costs, fix_speeds
from support.calibration.profiles import FRONT, NO_COUNTS, TOO_SLOW, UNCERTIFIED, at, profile, values
from support.calibration.reports import one_line, paper, text_of
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related, tiny_decoder

_NOTHING_DECODED = {"certificate.problems": 0, "certificate.counts": NO_COUNTS} | {
    f"certificate.{name}": None for name in ("retention", "lower_bound", "accuracy", "accuracy_lower_bound")
}


@pytest.mark.slow
def test_a_speed_that_sd_makes_already_is_granted(tmp_path: Path) -> None:
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", min_acc=None, min_speed=1.0)
    assert made.outcome == "lossless"


@pytest.mark.slow
def test_an_unreachable_speed_spends_no_attempt(tmp_path: Path) -> None:
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", min_acc=None, min_speed=1e9)
    assert (made.outcome, made.certificate.attempt) == ("too-slow", None)


@pytest.mark.slow
def test_what_is_slower_than_sd_is_no_success(tmp_path: Path) -> None:
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", min_acc=0.9, rule="fsd")
    assert made.outcome != "certified-faster" or made.speed.chosen > made.speed.lossless


@pytest.mark.slow
def test_without_a_test_no_problems_are_too_few(tmp_path: Path) -> None:
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", problems=80, min_acc=0.98, explore=True)
    assert made.certificate.guarantee == "none"


@pytest.mark.slow
def test_exploring_opens_no_part_and_spends_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_speeds(monkeypatch, 1.5)
    explored = tiny_calibration.run_surely(tmp_path / "explored", tmp_path / "cache", explore=True)
    assert explored.outcome == "untested"
    assert explored.certificate.attempt is None
    assert {point.source for point in explored.curve} == {"tuning"}
    again = tiny_calibration.run_surely(tmp_path / "explored", tmp_path / "cache", explore=True, min_acc=0.55)
    assert again.certificate.attempt is None
    made = tiny_calibration.run_surely(tmp_path / "made", tmp_path / "cache")
    assert made.certificate.attempt == 1  # and on the whole part: what was explored on are problems of the other
    assert made.certificate.looks[-1] == explored.data.certification


@pytest.mark.slow
def test_sampling_noise_is_not_called_rounding(tmp_path: Path) -> None:
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", rule="fsd-sd", temperature=0.8)
    assert made.numerical_churn is None or made.numerical_churn.texts_changed < made.numerical_churn.problems / 4


@pytest.mark.parametrize("outcome", [UNCERTIFIED, TOO_SLOW, FRONT])
def test_the_lossless_rule_runs_at_its_own_draft_length(outcome: dict[str, object]) -> None:
    """`draft_length` is the fuzzy setting's: on the bundled pair 12, where the lossless rules are best at 4."""
    assert profile(outcome).followed.draft_length == 4


def test_the_fastest_is_by_time_not_by_tokens_a_round() -> None:
    long = {**at(2, draft_length=12), "tokens_per_round": 9.0, "forecast": 30.0}
    made = profile({**UNCERTIFIED, "curve": [*values()["curve"][:3], long]})
    assert made.at(min_acc=0.85, certified=False).draft_length == 5


def test_a_tuning_point_beyond_one_that_failed_on_certification_is_not_chosen() -> None:
    failed = {**at(4, threshold=0.25), "accuracy": 0.8, "retention": 0.86, "lower_bound": None,
              "counts": None}  # fmt: skip
    lucky = {**at(2, threshold=0.3), "retention": 0.95, "forecast": 71.0,
             "tokens_per_round": 5.9}  # fmt: skip
    chosen = profile({**UNCERTIFIED, "curve": [values()["curve"][1], failed, lucky]}).at(min_acc=0.9, certified=False)
    assert chosen.threshold != 0.3


def test_the_footnote_names_the_part_that_was_decoded() -> None:
    tuning = {"estimate.lower_bound": None, "curve": values()["curve"][:3]}
    said = notes(profile(UNCERTIFIED | _NOTHING_DECODED | tuning))
    assert "certification part: 700 problems" not in said


def test_the_footnote_counts_what_was_decoded() -> None:
    """Looks end decoding early: 70 of 700 problems decoded are not 700."""
    few = {"certificate.problems": 70, "certificate.counts": NO_COUNTS | {"both_right": 70},
           "certificate.retention": 1.0, "certificate.accuracy": 1.0}  # fmt: skip
    assert "700 problems" not in notes(profile(few))


def test_sentences_on_a_front_are_not_about_a_single_setting() -> None:
    said = verdict(profile(FRONT))
    assert "That is a retention" not in said


# What was tested, and then timed


@pytest.mark.slow
def test_a_noisy_clock_leaves_what_is_certified_certified_and_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_speeds(monkeypatch, 1.02, spread=0.5)
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", problems=160)
    assert made.speed.intervals is not None
    assert made.speed.intervals.over_lossless[0] < 1 < made.speed.intervals.over_lossless[1]
    assert (made.outcome, made.met, made.certificate.certified) == ("certified-speed-unknown", True, True)
    assert (made.lossy, made.estimate, made.followed.rule) == (True, None, made.rule)
    setting: dict[str, Any] = {"rule": made.rule, "threshold": made.threshold, "draft_length": made.draft_length}
    assert _texts_following(made) == _texts(tiny_decoder(score=made.score), **setting)
    assert _texts_following(made) != _texts(tiny_decoder(), rule="sd")
    answer, cut = made.speed.answer, made.truncation
    assert answer is not None
    assert (answer.target, answer.lossless) == pytest.approx((2.0, 1.0))
    assert made.lengths is not None
    assert 0 < made.lengths.target < 12.01
    assert made.repetition is not None
    assert cut is not None
    assert made.repetition.texts == cut.texts
    said = verdict(made)
    assert said.startswith("Certified at 95% confidence")
    assert "It was not shown to be faster than sd, nor slower: decoders that follow this profile run it" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over_lossless", "spread", "outcome"),
    [(1.5, 0.0, "certified-faster"), (1.2, 0.5, "certified-speed-unknown"), (1.02, 0.0, "too-slow")],
)
def test_a_requested_speed_is_missed_only_where_the_clock_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over_lossless: float, spread: float, outcome: str
) -> None:
    """120 tokens/s are requested, where `sd` makes 100; what is certified is followed all the same."""
    fix_speeds(monkeypatch, over_lossless, spread)
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", problems=160, min_acc=None, min_speed=120.0)
    assert (made.outcome, made.met, made.lossy) == (outcome, outcome != "too-slow", True)
    assert made.certificate.problems > 0


@pytest.mark.slow
def test_without_timing_what_is_certified_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_costs(monkeypatch)
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", problems=160, timing="none")
    assert (made.outcome, made.lossy, made.speed.answer) == ("certified-speed-unknown", True, None)
    assert "Nothing was timed: decoders that follow this profile run it" in verdict(made)


@pytest.mark.slow
def test_what_is_shown_slower_remains_certified_and_decoders_run_sd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_speeds(monkeypatch, 0.8)
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", problems=160)
    assert (made.outcome, made.threshold, made.followed.rule) == ("certified-slower", None, "sd")
    assert (made.met, made.lossy, made.certificate.certified) == (True, False, True)
    assert _texts_following(made) == _texts(tiny_decoder(), rule="sd", draft_length=made.followed.draft_length)
    assert made.followed.draft_length == (made.lossless and made.lossless.draft_length)
    assert made.certificate.lower_bound is not None
    assert made.certificate.looks[-1] == made.data.certification
    assert made.estimate is not None
    tested = (made.rule, made.score, made.draft_length, made.estimate.threshold)
    (point,) = [p for p in made.curve if p.source == "certification" and _named(p) == tested]
    assert (point.lower_bound, made.estimate.lower_bound) == (made.certificate.lower_bound,) * 2
    c, cut = made.certificate, made.truncation
    assert None not in (c.frozen, c.harm, c.harm_upper_bound, c.difference, c.difference_interval)
    assert cut is not None
    assert (cut.max_new_tokens, cut.texts) == (12, c.problems)
    assert 0 < cut.target < cut.texts
    said = verdict(made)
    assert "Nothing was decoded" not in said
    assert said.startswith("Certified at 95% confidence")
    assert f"T = {made.estimate.threshold:.4g}" in said
    assert "shown to be slower than sd, so decoders that follow this profile run sd" in said
    assert f"T = {made.estimate.threshold:.4g}" in printed(made)


@pytest.mark.slow
def test_texts_that_the_context_cuts_short_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_speeds(monkeypatch, 1.02, spread=0.5)
    target, draft = related(seed=1, spread=0.05, max_position_embeddings=20)  # prompts have 1 to 12 tokens
    made = tiny_calibration.run(
        tmp_path / "out", tmp_path / "cache", problems=160, pair=(target, draft), explore=True, trials=4
    )
    task, cut = tiny_calibration.task(160), made.truncation
    (point,) = {p.problems for p in made.curve if p.source == "tuning" and p.setting.threshold is None}
    problems = parts_of(task).tuning[:point]
    texts = SpeculativeDecoder(target, draft, word_tokenizer()).generate(
        [p.prompt for p in problems], task.max_new_tokens, ids=[p.id for p in problems], rule="target"
    )
    room = [20 - len(p.prompt.split()) for p in problems]
    assert cut is not None
    assert cut.texts == len(problems)
    ended = [(r.emitted, left) for r, left in zip(texts, room, strict=True)]
    assert cut.target == sum(tokens == min(12, left) for tokens, left in ended)
    assert any(tokens == left < 12 for tokens, left in ended)


@pytest.mark.slow
def test_an_explored_setting_is_estimated_whatever_its_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_speeds(monkeypatch, 1.02, spread=0.5)
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", problems=160, explore=True)
    assert made.outcome == "untested"
    (point,) = (p for p in made.curve if p.setting == made.chosen)
    assert point.interval is not None
    low, high = point.interval
    assert low <= point.retention <= high
    assert f"retention of {point.retention:.1%} ({low:.1%} to {high:.1%} at 95%" in verdict(made)


@pytest.mark.slow
def test_more_than_the_target_keeps_is_granted_though_no_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_speeds(monkeypatch, 0.8)
    target, draft = related(seed=1, spread=0.05)
    made = calibrate(
        _better_changed(160), target=target, draft=draft, tokenizer=word_tokenizer(), cache=tmp_path, min_acc=1.1,
        score="tv", draft_length=(2, 4),
    )  # fmt: skip
    assert (made.outcome, made.lossy, made.followed.rule) == ("certified-slower", True, made.rule)
    assert "slower than sd, which was not shown to do what was requested; decoders" in verdict(made)


@pytest.mark.slow
def test_a_front_is_labelled_with_the_part_it_was_measured_on(tmp_path: Path) -> None:
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", problems=160, min_acc=None, pareto=True)
    alone = next(p for p in made.curve if (p.setting.rule, p.source) == ("target", "certification"))
    assert f"certification part: {alone.problems} problems" in notes(made)


# Where a draft that never errs leaves nothing to try


@pytest.mark.slow
@pytest.mark.parametrize("goal", [{"acc": "absolute", "min_acc": 0.9}, {"min_acc": 1.1}])
def test_nothing_tried_is_a_plain_outcome(tmp_path: Path, goal: dict[str, Any]) -> None:
    made = _of_an_equal_draft(tmp_path, **goal)
    assert (made.outcome, made.threshold, made.estimate) == ("not-certified", None, None)
    assert made.certificate.attempt is None
    assert "Nothing was tried" in verdict(made)


# An absolute accuracy, which lossless decoding may reach


@pytest.mark.slow
def test_an_accuracy_that_the_target_has_is_certified_of_lossless_decoding(tmp_path: Path) -> None:
    made = _of_an_equal_draft(tmp_path, acc="absolute", min_acc=0.4, looks=1)
    assert (made.outcome, made.followed.rule, made.certificate.attempt) == ("lossless", "sd", 1)
    assert made.certificate.lossless
    assert (made.certificate.accuracy_lower_bound or 0.0) >= 0.4
    assert "lossless decoding reaches at least 40% accuracy" in verdict(made)


@pytest.mark.slow
def test_an_accuracy_that_the_target_only_seemed_to_have_is_denied_to_lossless_decoding(tmp_path: Path) -> None:
    """The target solves 8 of 10 tuning problems, and 6 of 10 others."""
    problems = tuple(
        replace(
            p, part="tuning" if i % 3 else "certification", reference="right" if i % 10 < (8 if i % 3 else 6) else ""
        )
        for i, p in enumerate({p.key: p for p in tiny_calibration.task(240).problems}.values())
    )
    task = replace(tiny_calibration.task(240), problems=problems, grader=lambda problem, text: bool(problem.reference))
    made = _of_an_equal_draft(tmp_path, task, acc="absolute", min_acc=0.65)
    assert (made.outcome, made.threshold, made.estimate) == ("not-certified", None, None)
    assert (made.certificate.attempt, made.certificate.lossless) == (1, True)
    assert "not even the target alone" in verdict(made)
    assert "target alone" in printed(made)


@pytest.mark.slow
def test_of_these_very_draws_the_targets_say_nothing_of_rivals(tmp_path: Path) -> None:
    goal: dict[str, Any] = {"acc": "absolute", "min_acc": 0.4, "guarantee": "dataset"}
    assert not _of_an_equal_draft(tmp_path, temperature=0.8, **goal).certificate.lossless
    assert _of_an_equal_draft(tmp_path, **goal).certificate.lossless


@pytest.mark.slow
def test_an_absolute_goal_is_not_met_by_what_is_slower_than_sd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_speeds(monkeypatch, 0.8)
    goal: dict[str, Any] = {"acc": "absolute", "min_acc": 0.4}
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", problems=160, **goal)
    assert (made.outcome, made.followed.rule) == ("certified-slower", "sd")
    assert not made.certificate.lossless
    fix_speeds(monkeypatch, 1.5)
    made = tiny_calibration.run(tmp_path / "out", tmp_path / "cache", problems=160, **goal)
    assert (made.outcome, made.certificate.attempt, made.certificate.lossless) == ("certified-faster", 1, False)


def _of_an_equal_draft(cache: Path, task: Task | None = None, **goal: Any) -> ThresholdProfile:
    target, draft = related(seed=1, spread=0.0)
    return calibrate(
        task or tiny_calibration.task(160), target=target, draft=draft, tokenizer=word_tokenizer(), cache=cache,
        draft_length=(2, 4), score="js", **goal,
    )  # fmt: skip


def _better_changed(count: int) -> Task:
    """Right is a text that is not the target's own, or has an odd number of words, as three in ten have."""
    even = tiny_calibration.task(count)
    alone = tiny_decoder().generate(
        [p.prompt for p in even.problems], even.max_new_tokens, rule="target", ids=[p.id for p in even.problems]
    )
    problems = tuple(replace(p, reference=r.text) for p, r in zip(even.problems, alone, strict=True))
    return replace(even, problems=problems, grader=_changed_or_odd)


def _changed_or_odd(problem: Problem, text: str) -> bool:
    return text != problem.reference or len(text.split()) % 2 == 1


def _texts_following(made: ThresholdProfile) -> list[str]:
    pair = related(seed=1, spread=0.05)
    return _texts(SpeculativeDecoder.from_pretrained(*pair, made, tokenizer=word_tokenizer()))


def _texts(decoder: SpeculativeDecoder, **setting: Any) -> list[str]:
    problems = tiny_calibration.task(160).problems
    results = decoder.generate([p.prompt for p in problems], 12, ids=[p.id for p in problems], **setting)
    return [result.text for result in results]


def _named(point: CurvePoint) -> tuple[str, str, int, float | None]:
    return point.setting.rule, point.setting.score, point.setting.draft_length, point.setting.threshold


def printed(made: ThresholdProfile) -> str:
    print_report(made, None, console := paper())
    return one_line(text_of(console))
