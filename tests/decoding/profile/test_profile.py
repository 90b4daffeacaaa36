"""The profile: contradictions it refuses, its file, and points chosen from it later."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fsd_common.errors import UsageError
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import (
    ANSWERS,
    FAST_ENOUGH,
    FRONT,
    LOSSLESS,
    SLOWER,
    TOO_SLOW,
    UNCERTIFIED,
    UNKNOWN,
    UNTESTED,
    profile,
    simultaneous,
    values,
)
from support.models.tiny_models import VOCABULARY, llama

# The schema


OUTCOMES = (UNKNOWN, SLOWER, UNCERTIFIED, TOO_SLOW, FAST_ENOUGH, LOSSLESS, UNTESTED, FRONT)


def test_outcomes_say_whether_the_request_was_met() -> None:
    assert profile().met
    assert [profile(outcome).met for outcome in OUTCOMES] == [True, True, False, False, True, True, True, True]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"unknown": 1}, "unknown"),
        ({"speed.chosen": float("nan")}, "finite number"),
        ({"speed.chosen": float("inf")}, "finite number"),
        ({"threshold": -1e-9}, "greater than or equal to 0"),
        ({"accuracy.target": 1.5}, "less than or equal to 1"),
        ({"created": "2026-01-02T03:04:05"}, "timezone"),
        ({"curve.1.lower_bound": 0.9}, "tuning part must not have a lower_bound"),
        ({"certificate.harm": 0.01}, "harm is 0.01, but the counts give"),
        ({"certificate.difference": 0.5}, "difference is 0.5, but the counts give"),
        (
            {"truncation": {"max_new_tokens": 9, "texts": 5, "target": 0, "chosen": 6}},
            "6 texts are counted, but there are only 5",
        ),
        ({"curve.4.problems": 699}, "counts add up to 700, but problems is 699"),
        ({"certificate.problems": 699}, "counts add up to 700, but problems is 699"),
        ({"certificate.retention": 0.99}, "but the counts give"),
        ({"certificate.lower_bound": None}, "certified is true, but lower_bound is null"),
        ({"certificate.confidence": 1.0}, "less than 1"),
        ({"certificate.accuracy": 0.9}, "accuracy is 0.9, but the counts give"),
        ({"certificate.acc": "absolute", "certificate.accuracy_lower_bound": None}, "but accuracy_lower_bound is null"),
        ({"certificate.guarantee": "none"}, "certified is true, but guarantee is 'none'"),
        ({"certificate.delta": 0.05}, "attempt 1 may be tested at 0.045 at most"),
        ({"certificate.attempt": 2}, "attempt 2 may be tested at 0.00303964 at most"),
        ({"certificate.seeds": 2}, "counts add up to 700, but problems is 700 with 2 seeds each"),
        ({"curve.4.seeds": 3}, "counts add up to 700, but problems is 700 with 3 seeds each"),
        ({"curve.3.simultaneous": True}, "simultaneous is true, but lower_bound is null"),
        ({"lossy": False}, "lossy is False, but threshold is 0.0625"),
        ({**UNCERTIFIED, "lossy": True}, "lossy is True, but threshold is None"),
        ({"certificate.certified": False}, "certified is False, but outcome is 'certified-faster'"),
        ({"outcome": "not-certified"}, "certified is True, but outcome is 'not-certified'"),
        ({"outcome": "not-certified", "certificate.certified": False}, "belongs in estimate"),
        ({"threshold": None, "lossy": False}, "but threshold is None"),
        ({**UNTESTED, "threshold": None, "lossy": False}, "but threshold is None"),
        ({**UNTESTED, "certificate.guarantee": "population"}, "'untested', but certificate.guarantee is 'population'"),
        ({**UNKNOWN, "certificate.certified": False}, "is False, but outcome is 'certified-speed-unknown'"),
        ({**SLOWER, "certificate.certified": False}, "is False, but outcome is 'certified-slower'"),
        ({**UNKNOWN, "threshold": None, "lossy": False}, "but threshold is None"),
        ({**SLOWER, "estimate": None}, "threshold is None and estimate null; exactly one of them"),
        ({**SLOWER, "threshold": 0.0625, "lossy": True}, "threshold is 0.0625 and estimate given; exactly one of"),
        ({"speed.intervals.over_lossless": [1.0, 1.23]}, "'certified-faster', but the intervals of speed show"),
        ({"speed.intervals": None}, "'certified-faster', but the intervals of speed show 'certified-speed-unknown'"),
        ({"speed.wanted": 60.3}, "'certified-faster', but the intervals of speed show 'certified-speed-unknown'"),
        (
            {**SLOWER, "speed.intervals.over_lossless": [0.82, 1.0]},
            "'certified-slower', but the intervals of speed show",
        ),
        ({**TOO_SLOW, "estimate": UNCERTIFIED["estimate"], "speed.wanted": 62.8}, "may reach speed.wanted, 62.8"),
        ({"speed.timed": 0, "speed.intervals": None, **ANSWERS}, "timed is 0, but answer is given"),
        ({**ANSWERS, "repetition.chosen": 701}, "701 texts are counted, but there are only 700"),
        ({**FAST_ENOUGH, "speed.wanted": 52.0}, "but the speed, 51.0 tokens/s, is below speed.wanted, 52.0"),
        ({**TOO_SLOW, "speed.wanted": None}, "speed.wanted is null"),
        ({"speed.intervals.lossless": [51.0, 50.0]}, "is not an interval"),
        ({"speed.timed": 0}, "timed is 0, but intervals is given"),
        ({"numerical_churn.outcomes_flipped": 2}, "only a changed text flips"),
        ({"numerical_churn.texts_changed": 701}, "only a changed text flips"),
        ({"outcome": "splendid"}, "Input should be 'certified-faster'"),
        ({"data.split": "random"}, "content-hash"),
        ({"schema_version": 5}, "Input should be 1"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        profile(changes)


def test_each_bound_and_count_may_be_of_several_seeds() -> None:
    pairs = {"certificate.problems": 350, "certificate.seeds": 2, "curve.4.problems": 350, "curve.4.seeds": 2}
    assert profile(pairs).certificate.seeds == 2


def test_absolute_accuracy_is_certified_by_its_own_bound() -> None:
    assert profile({"certificate.acc": "absolute", "certificate.wanted": 0.91}).met


def test_fields_that_were_not_measured_may_be_missing() -> None:
    content = values()
    for name in ("lossless", "seeds", "costs", "numerical_churn", "acceptance", "effort"):
        del content[name]
    assert ThresholdProfile.model_validate(content).effort is None


@pytest.mark.parametrize(("rule", "lossless"), [("fsd", "coupled"), ("fsd-coupled", "coupled")])
def test_without_a_threshold_the_lossless_rule_runs(rule: str, lossless: str) -> None:
    assert profile({"rule": rule}).followed.rule == rule
    assert profile({**UNCERTIFIED, "rule": rule}).followed.rule == lossless


def test_what_is_certified_and_slower_is_followed_only_where_its_threshold_is_kept() -> None:
    slow = profile(SLOWER)
    assert (slow.followed.rule, slow.followed.draft_length, slow.certificate.certified) == ("sd", 4, True)
    kept = profile(SLOWER | {"threshold": 0.0625, "lossy": True, "estimate": None})
    assert (kept.followed.rule, kept.followed.draft_length, kept.met) == ("fsd-coupled", 5, True)


def test_where_sd_suffices_it_runs_at_its_own_draft_length() -> None:
    made = profile(FAST_ENOUGH)
    assert (made.followed.rule, made.followed.draft_length) == ("sd", 4)
    assert profile(TOO_SLOW).followed.draft_length == 4
    assert profile({**FAST_ENOUGH, "lossless": None}).followed.draft_length == 5


# The file


@given(threshold=st.floats(min_value=0, max_value=1, exclude_min=True), seed=st.integers())
def test_a_file_keeps_every_bit(tmp_path_factory: pytest.TempPathFactory, threshold: float, seed: int) -> None:
    made = profile({"threshold": threshold, "seed": seed})
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    made.save(path)
    assert ThresholdProfile.load(path) == made


def test_file_is_plain_json_with_the_promised_names(tmp_path: Path) -> None:
    profile(UNCERTIFIED).save(tmp_path / "deep" / "profile.json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (tmp_path / "deep" / "profile.json").read_text(encoding="utf-8")
    content = json.loads(text, parse_constant=refuse)
    assert content.keys() >= {
        *("schema_version", "task", "rule", "score", "threshold", "draft_length", "lossy", "curve"),
        *("certificate", "speed", "outcome", "seeds", "lossless", "costs", "numerical_churn"),
        *("acceptance", "effort"),
    }
    assert content["certificate"].keys() >= {
        *("certified", "wanted", "retention", "lower_bound", "confidence"),
        *("counts", "problems"),
    }
    assert content["speed"].keys() >= {"target", "lossless", "chosen"}
    assert content["threshold"] is None


def test_saving_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("old")
    path.chmod(0o644)
    profile().save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["profile.json"]
    assert stat.S_IMODE(path.stat().st_mode) & stat.S_IRUSR


def test_saving_to_an_unwritable_place_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/profile\.json' cannot be written"):
        profile().save(tmp_path / "file" / "profile.json")
    (tmp_path / "folder" / "profile.json").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be written"):
        profile().save(tmp_path / "folder" / "profile.json")
    assert [entry.name for entry in (tmp_path / "folder").iterdir()] == ["profile.json"]


DIGEST = {"digest": "0" * 64}


def without(key: str) -> str:
    content = values(DIGEST)
    del content[key]
    return json.dumps(content)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read: No such file"),
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[1]", "holds no JSON object"),
        (without("schema_version"), "is not a profile: schema_version is None"),
        (json.dumps(values({"schema_version": 2})), "schema_version 2, but this fsd-calib reads 1; upgrade fsd-calib"),
        (json.dumps(values({"schema_version": 0})), "is not a profile: schema_version is 0"),
        (json.dumps(values({"schema_version": True})), "is not a profile: schema_version is True"),
        ("[" * 100_000, "is not JSON"),
        (without("rule"), "rule: Field required"),
        (json.dumps(values({"curve.1.accuracy": "high", "rule": 3} | DIGEST)), r"rule: .*\(and 2 more\)"),
        (json.dumps(values({"speed.lossless": float("nan")})), "is not JSON: NaN is not a number of JSON"),
        (json.dumps(values({"lossy": False} | DIGEST)), "lossy is False"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, content: str | None, complaint: str) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=complaint) as raised:
        ThresholdProfile.load(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


# Models


class PackedHead(torch.nn.Linear):
    """A head whose weights are held as 4-bit numbers, two a byte, in one column, as bitsandbytes does."""

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__(head.in_features, head.out_features, bias=False)
        packed = torch.zeros(head.weight.numel() // 2, 1, dtype=torch.uint8)
        self.weight = torch.nn.Parameter(packed, requires_grad=False)


def test_packed_weights_do_not_hide_the_vocabulary() -> None:
    model = llama(0)
    plain = ModelInfo.of(model).vocab_size
    model.set_output_embeddings(PackedHead(model.get_output_embeddings()))
    assert ModelInfo.of(model).vocab_size == plain == VOCABULARY


# PointSelector later


def second_certified(threshold: float, bound: float) -> dict[str, Any]:
    point = {
        **values()["curve"][3],
        "setting": {**values()["curve"][1]["setting"], "threshold": threshold},
        "lower_bound": bound,
        "tokens_per_round": 5.6,
    }
    return {"curve": [*values()["curve"], point]}


def test_a_certificate_certifies_every_request_up_to_what_was_wanted() -> None:
    for wanted in (0.9, 0.98):
        chosen = profile().at(min_acc=wanted)
        assert (chosen.threshold, chosen.draft_length, chosen.certified) == (0.0625, 5, True)
    above = profile().at(min_acc=0.99, certified=False)
    assert (above.threshold, above.certified) == (0.0625, False)  # measured .998, which is no guarantee
    assert (above.retention, above.lower_bound, above.forecast) == (652 / 653, 0.98, 61.5)


def test_points_without_a_certificate_are_chosen_only_on_request() -> None:
    """The message names the best point, so that a request for it succeeds, and how to get the others."""
    best = r"fsd-coupled js <= 0.0625 at L = 5 \(retention 0.98, 61.5 tokens/s\)"
    out = ", or certified=False to choose by measured values"
    with pytest.raises(
        UsageError, match=rf"^min_acc is 0.99, but .* with the highest retention is {best}; set a lower min_acc{out}$"
    ):
        profile().at(min_acc=0.99)
    with pytest.raises(
        UsageError, match=rf"^min_speed is 65, but .* with the highest speed is {best}; set a lower min_speed{out}$"
    ):
        profile().at(min_speed=65)
    with pytest.raises(
        UsageError, match=r"^min_acc is 0.9, but no point of the curve is certified; set certified=False"
    ):
        profile(UNTESTED).at(min_acc=0.9)


def test_of_several_bounds_only_the_certified_choice_stays_certified() -> None:
    both = profile(second_certified(0.07, 0.985))
    assert both.at(min_acc=0.98).threshold == 0.0625
    assert both.at(min_acc=0.98).certified
    with pytest.raises(UsageError, match=r"retention 0.98, 61.5"):
        both.at(min_acc=0.985)
    assert not both.at(min_acc=0.985, certified=False).certified
    assert both.at(min_speed=61).threshold == profile().at(min_speed=61).threshold == 0.0625
    with pytest.raises(UsageError, match=r"the measured point with the highest retention is .*; set a lower min_acc$"):
        profile().at(min_acc=0.999, certified=False)  # 1.0 was sd's


def test_what_is_certified_and_slower_may_be_chosen_by_its_certificate() -> None:
    both = profile(second_certified(0.07, 0.985) | SLOWER)
    assert (both.at(min_acc=0.98).threshold, both.at(min_acc=0.98).certified) == (0.0625, True)


def test_of_simultaneous_bounds_any_may_be_chosen() -> None:
    front = profile(FRONT)
    for wanted, threshold in ((0.98, 0.03), (0.97, 0.0625), (0.9, 0.0625), (0.86, 0.25)):
        chosen = front.at(min_acc=wanted)
        assert (chosen.threshold, chosen.certified) == (threshold, True)
    assert not front.at(min_acc=0.986, certified=False).certified
    assert (front.at(min_speed=60).threshold, front.at(min_speed=60).certified) == (0.0625, True)


def test_a_bound_of_its_own_beside_simultaneous_ones_certifies_only_its_claim() -> None:
    mixed = profile({"curve": [*values()["curve"], simultaneous(0.03, 1.0, 0.985, 57.0)]})
    assert (mixed.at(min_acc=0.98).threshold, mixed.at(min_acc=0.98).certified) == (0.0625, True)
    assert (mixed.at(min_acc=0.985).threshold, mixed.at(min_acc=0.985).certified) == (0.03, True)
    assert mixed.at(min_speed=61).threshold == 0.0625


def test_a_certified_accuracy_says_nothing_of_retention() -> None:
    claimed = {"certificate.acc": "absolute", "certificate.wanted": 0.91}
    assert not profile(second_certified(0.07, 0.9) | claimed).at(min_acc=0.905, certified=False).certified
    assert not profile(claimed).at(min_acc=0.905, certified=False).certified


def test_without_a_test_nothing_chosen_is_certified() -> None:
    assert not profile(UNTESTED).at(min_acc=0.9, certified=False).certified
    bounded = profile({**UNTESTED, "curve": values()["curve"]})
    assert not bounded.at(min_acc=0.9, certified=False).certified
    assert not bounded.at(min_speed=60, certified=False).certified


def test_by_speed_the_most_accurate_of_the_fast_is_chosen() -> None:
    assert profile().at(min_speed=10).threshold == 0.0625
    fastest = profile().at(min_speed=65, certified=False)
    assert (fastest.threshold, fastest.certified) == (0.25, False)
    # On the tuning part .0625 made 62 tokens/s; on the certification part 61.5, and that counts.
    assert profile().at(min_speed=61.8, certified=False).threshold == 0.25


def test_requests_that_no_point_fulfils_are_refused() -> None:
    with pytest.raises(UsageError, match=r"min_acc is 1.1, but the certified point"):
        profile().at(min_acc=1.1)
    with pytest.raises(UsageError, match=r"the measured point with the highest speed is .*, 70 tokens/s"):
        profile().at(min_speed=71, certified=False)
    with pytest.raises(UsageError, match="exactly one"):
        profile().at()
    with pytest.raises(UsageError, match="exactly one"):
        profile().at(min_acc=0.9, min_speed=3)
