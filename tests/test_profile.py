"""The profile: what it refuses, what a file keeps, and what may be chosen from it later."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fsd_decoding.errors import UsageError
from fsd_decoding.profile import ThresholdProfile
from profiles import UNCERTIFIED, profile, values

# The schema


def test_values_make_a_profile_certified_or_not() -> None:
    assert profile().met
    assert not profile(UNCERTIFIED).met


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"surprise": 1}, "surprise"),
        ({"speed.chosen": float("nan")}, "finite number"),
        ({"speed.chosen": float("inf")}, "finite number"),
        ({"threshold": -1e-9}, "greater than or equal to 0"),
        ({"accuracy.target": 1.5}, "less than or equal to 1"),
        ({"created": "2026-01-02T03:04:05"}, "timezone"),
        ({"curve.1.lower_bound": 0.9}, "tuning part has no lower_bound"),
        ({"curve.4.problems": 699}, "counts add up to 700, problems says 699"),
        ({"certificate.problems": 699}, "counts add up to 700, problems says 699"),
        ({"certificate.retention": 0.99}, "the counts make it"),
        ({"certificate.lower_bound": None}, "certified, but without a lower_bound"),
        ({"certificate.wanted": 0.995}, "lower_bound 0.9899 is below wanted 0.995"),
        ({"certificate.confidence": 1.0}, "less than 1"),
        ({"lossy": False}, "only null is lossless"),
        ({"certificate.certified": False}, "belongs in estimate"),
        ({**UNCERTIFIED, "lossy": True}, "only null is lossless"),
        ({"threshold": None, "lossy": False}, "belongs in estimate"),
        ({"data.split": "random"}, "content-hash"),
        ({"schema_version": 2}, "Input should be 1"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        profile(changes)


def test_only_a_met_speed_is_met() -> None:
    assert profile({"certificate.wanted": None, "speed.wanted": 61.5}).met
    assert not profile({"certificate.wanted": None, "speed.wanted": 61.6}).met


@pytest.mark.parametrize(("rule", "lossless"), [("fsd", "coupled"), ("fsd-coupled", "coupled")])
def test_without_a_threshold_the_lossless_rule_runs(rule: str, lossless: str) -> None:
    assert profile({"rule": rule}).effective_rule == rule
    assert profile({**UNCERTIFIED, "rule": rule}).effective_rule == lossless


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
        raise AssertionError(f"{constant} is no JSON")

    text = (tmp_path / "deep" / "profile.json").read_text(encoding="utf-8")
    content = json.loads(text, parse_constant=refuse)
    assert content.keys() >= {
        *("schema_version", "task", "rule", "divergence", "threshold", "draft_length", "lossy", "curve"),
        *("certificate", "speed"),
    }
    assert content["certificate"].keys() >= {
        *("certified", "wanted", "retention", "lower_bound", "confidence"),
        *("both_right", "lost", "gained", "both_wrong", "problems"),
    }
    assert content["speed"].keys() >= {"target", "sd", "chosen"}
    assert content["threshold"] is None


def test_saving_replaces_whole_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("old")
    path.chmod(0o644)
    profile().save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["profile.json"]
    assert stat.S_IMODE(path.stat().st_mode) & stat.S_IRUSR


def test_saving_where_nothing_can_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/profile\.json' cannot be written"):
        profile().save(tmp_path / "file" / "profile.json")
    (tmp_path / "folder" / "profile.json").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be written"):
        profile().save(tmp_path / "folder" / "profile.json")
    assert [entry.name for entry in (tmp_path / "folder").iterdir()] == ["profile.json"]


def without(key: str) -> str:
    content = values()
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
        (json.dumps(values({"schema_version": 2})), "schema_version 2.*upgrade"),
        (without("rule"), "rule: Field required"),
        (json.dumps(values({"curve.1.accuracy": "high", "rule": 3})), r"rule: .*\(and 1 more\)"),
        (json.dumps(values({"speed.sd": float("nan")})), "speed.sd: Input should be a finite number"),
        (json.dumps(values({"lossy": False})), "lossy is False"),
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


# Choosing later


def second_certified(threshold: float, bound: float) -> dict[str, Any]:
    point = {**values()["curve"][3], "threshold": threshold, "lower_bound": bound, "tokens_per_round": 5.6}
    return {"curve": [*values()["curve"], point]}


def test_one_bound_certifies_whatever_is_asked_below_it() -> None:
    for wanted in (0.9, 0.98, 0.9899):
        chosen = profile().at(min_acc=wanted)
        assert (chosen.threshold, chosen.draft_length, chosen.certified) == (0.0625, 5, True)
    above = profile().at(min_acc=0.99)
    assert (above.threshold, above.certified) == (0.0625, False)  # measured .998, which is no claim


def test_of_several_bounds_only_the_certified_claim_stays_one() -> None:
    both = profile(second_certified(0.07, 0.985))
    assert both.at(min_acc=0.98).threshold == 0.0625
    assert both.at(min_acc=0.98).certified
    assert not both.at(min_acc=0.985).certified
    assert not both.at(min_speed=61).certified
    assert profile().at(min_speed=61).certified
    with pytest.raises(UsageError, match="no point"):
        profile().at(min_acc=0.999)  # 1.0 was sd's


def test_by_speed_the_most_accurate_of_the_fast_is_chosen() -> None:
    assert profile().at(min_speed=10).threshold == 0.0625
    fastest = profile().at(min_speed=65)
    assert (fastest.threshold, fastest.certified) == (0.25, False)
    # On the tuning part .0625 made 62 tokens/s; on the certification part 61.5, and that counts.
    assert profile().at(min_speed=61.8).threshold == 0.25


def test_what_no_point_reaches_is_refused() -> None:
    with pytest.raises(UsageError, match=r"min_acc is 1.1; no point"):
        profile().at(min_acc=1.1)
    with pytest.raises(UsageError, match="fastest point makes 70 tokens/s"):
        profile().at(min_speed=71)
    with pytest.raises(UsageError, match="exactly one"):
        profile().at()
    with pytest.raises(UsageError, match="exactly one"):
        profile().at(min_acc=0.9, min_speed=3)
