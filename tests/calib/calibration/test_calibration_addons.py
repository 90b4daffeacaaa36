"""Calibrations with a score, a rule and a stop policy that are not of fsd-calib, and what is refused beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import Goal, NGram, SearchSpace, drafter_named
from fsd_calib.calibration.api import Calibration
from fsd_calib.vllm_plugin.engine_checks import check_profile
from fsd_common.addons import addon
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import profile
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer
from support.own_code import on_path
from support.paths import EXAMPLES

OWN = {"score": "new_score:Behind@40", "rule": "new_rule:OneSwap", "stop_policy": "own_endings:Short"}
WRITTEN = """
from fsd_collectors.replay.counting import LengthPolicy
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.rules import Rule, rule_named
import numpy as np

class Short(StopPolicy):
    replayed = LengthPolicy((), lambda columns, most: np.full(len(columns["position"]), min(most, 3)))
    def goes_on(self, state):
        return [len(state.logits) < 3] * len(state.rows)

class Untold(Short):
    replayed = None

class ByThreshold(Short):
    reads_threshold = True

class OfSd(Short):
    rules = frozenset({"fsd-sd"})

class Lossless(Rule):
    def judge(self, proposal):
        return rule_named("coupled").judge(proposal)

class Unknown(Rule):
    lossless, bounds_score = "coupled", True
"""


@pytest.fixture(scope="module", autouse=True)
def own() -> Iterator[None]:
    with on_path(EXAMPLES, own_endings=WRITTEN):
        yield


@pytest.mark.slow
def test_a_calibration_searches_certifies_and_exports_code_of_ones_own(tmp_path: Path) -> None:
    pair = tiny_calibration.far_apart()
    found = tiny_calibration.run_surely(tmp_path / "out", tmp_path / "cache", **OWN, draft_length=(2, 5), trials=5)
    assert (found.rule, found.score, found.stop_policy) == (
        OWN["rule"],
        OWN["score"],
        OWN["stop_policy"],
    )
    assert found.certificate.certified
    assert {(each.kind, each.name) for each in found.addons} == {
        ("score", "new_score:Behind"), ("rule", OWN["rule"]), ("stop policy", OWN["stop_policy"]),
    }  # fmt: skip
    loaded = ThresholdProfile.load(tmp_path / "out")
    assert loaded == found
    decoder = SpeculativeDecoder.from_pretrained(*pair, loaded, tokenizer=word_tokenizer())
    if found.threshold is not None:
        assert decoder.stop_policy is not None
        (result,) = decoder.generate(["w3 w4 w5"], 12)
        assert result.drafted <= 3 * result.rounds
    again = tiny_calibration.run_surely(tmp_path / "out", tmp_path / "cache", **OWN, draft_length=(2, 5), trials=5)
    assert again.effort is not None
    assert again.effort.search.decoded == again.effort.certification.decoded == 0  # all of it is reused


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"rule": "own_endings:Lossless"}, r"rule is 'own_endings:Lossless', whose T bounds no score \(its bounds_"),
        (
            {"rule": "own_endings:Unknown"},
            "rule 'own_endings:Unknown' cannot be replayed: its replayed_as names no rule",
        ),
        (
            {"rule": "own_endings:Short"},
            "rule 'own_endings:Short': it is <class 'own_endings.Short'>; it must be a Rule",
        ),
        ({"stop_policy": "own_endings:Lossless"}, "'own_endings:Lossless': it is .*; it must be a StopPolicy"),
        ({"stop_policy": "own_endings:OfSd"}, "the stop policy own_endings:OfSd is for fsd-sd, and the rule is 'fsd-c"),
        (
            {"stop_policy": "own_endings:ByThreshold", "threshold_policy": "schedule"},
            "the stop policy own_endings:ByThreshold ends drafts by the T they are given, and policy schedule judges",
        ),
        (
            {"stop_policy": "own_endings:Short", "predictor": "auto"},
            "stop_policy is given, and a predictor ends drafts too",
        ),
        (
            {"score": "nowhere:Score"},
            "score 'nowhere:Score': there is no module nowhere on Python's path; put the",
        ),
        (
            {"score": "new_score:Behind@0"},
            "score 'new_score:Behind@0' has k = '0'; it must be a whole number from 1",
        ),
        ({"score": "poetry"}, "score is 'poetry'; it must be one of auto, js, .*, or your own as module:Name"),
        ({"stop_policy": "poetry"}, "stop_policy is 'poetry'; it must be your own as module:Name"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_decoded(space: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Calibration("arithmetic", "target", "draft", Goal(min_acc=0.9), SearchSpace(**space))


def test_vllm_follows_profiles_of_the_same_code_alone() -> None:
    known = addon("score", "new_score:Behind")
    assert known is not None
    changes = {"rule": "fsd-sd", "score": "new_score:Behind@10", "sampling.temperature": 0.8}
    check_profile(profile({**changes, "addons": [known.facts]}))
    with pytest.raises(UsageError, match="was made with another source of score 'new_score:Behind'"):
        check_profile(profile({**changes, "addons": [known.facts | {"source": "0" * 64}]}))
    with pytest.raises(
        UsageError, match="the profile's rule is 'new_rule:OneSwap'; vLLM can follow fsd-sd and fsd-coup"
    ):
        check_profile(profile({"rule": "new_rule:OneSwap"}))


def test_a_drafter_that_no_profile_can_name_says_how_it_gets_a_name() -> None:
    drafter = drafter_named("new_drafter:Lookup")
    Calibration("arithmetic", "target", [NGram(), drafter], Goal(min_acc=0.9))
    source = drafter._source
    with pytest.raises(UsageError, match=r"no profile can name; give a model, .* or drafter_named\('module:Name'\)"):
        Calibration("arithmetic", "target", source, Goal(min_acc=0.9))
    with pytest.raises(UsageError, match="unknown drafter 'lookup'; known: your own as module:Name"):
        drafter_named("lookup")
