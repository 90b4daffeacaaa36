"""Calibrations that choose among chains and trees, and the profiles of trees."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from fsd_calib import SpeculativeDecoder, ThresholdProfile, TreeShape, calibrate
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.recertify import decoding_of, setting_of
from fsd_calib.engines.base import Limits
from fsd_calib.options.goal import Goal
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.vllm_plugin.engine_checks import check_profile
from fsd_common.errors import UsageError
from fsd_decoding.observers.token_sources import DraftedTrees
from fsd_decoding.profile.setting import Setting
from support.calibration.fixed_speeds import fix_speeds
from support.calibration.profiles import profile
from support.messages import usage_error
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer

LIMITS = Limits(12, ())
MODELS: dict[str, Any] = {"target": {}, "draft": {}}
SMALL, LARGE = TreeShape(2, 4), TreeShape(3, 9)


def run(folder: Path, **settings: Any) -> ThresholdProfile:
    return tiny_calibration.run_surely(folder / "out", folder / "cache", **settings)


def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    return tiny_calibration.far_apart()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ThresholdProfile:
    with pytest.MonkeyPatch.context() as patch:
        fix_speeds(patch, 2.0)
        return run(tmp_path_factory.mktemp("trees"), tree=SMALL)


@pytest.mark.slow
def test_a_certified_tree_is_in_the_profile_and_decoders_draft_it(made: ThresholdProfile) -> None:
    assert made.certificate.certified
    assert made.tree == SMALL
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoder = SpeculativeDecoder.from_pretrained(*models(), profile=made, tokenizer=word_tokenizer())
        trees = DraftedTrees(decoder.tokenizer)
        decoder.generate(["w20 w30"], 12, observer=trees)
    assert 1 < max(len(tree) for tree in trees.trees()) <= SMALL.nodes
    with pytest.warns(UserWarning, match="tree is TreeShape.*instead of TreeShape.*the certificate .* does not apply"):
        decoder.with_config(tree=LARGE)


@pytest.mark.slow
def test_chains_and_several_shapes_are_searched_and_certified_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_speeds(monkeypatch, 2.0)
    settings: dict[str, Any] = {"tree": (None, SMALL, LARGE), "draft_length": (2, 3), "pareto": True, "min_acc": None}
    front = run(tmp_path, **settings, trials=12)
    shapes = {point.setting.tree for point in front.curve if point.setting.threshold is not None}
    assert len(shapes) > 1
    assert shapes <= {None, SMALL, LARGE}
    assert ThresholdProfile.load(tmp_path / "out") == front
    again = run(tmp_path, **settings, trials=12)
    assert again.effort is not None
    assert again.effort.total.decoded == 0  # texts of trees and of chains are told apart, and kept
    assert again.curve == front.curve


def test_a_setting_of_trees_is_certified_as_such() -> None:
    found = profile({"tree": {"top_k": 2, "nodes": 4}})
    assert setting_of(found).tree == SMALL
    assert decoding_of(found).tree == (SMALL,)
    assert "trees of 4 nodes, top 2" in str(setting_of(found))


@pytest.mark.parametrize("tree", ["chain", ["chain"], (None,)], ids=str)
def test_chains_may_be_named_and_are_no_trees(tree: Any) -> None:
    calibration = Calibration("arithmetic", "a", "b", Goal(min_acc=0.9), SearchSpace(tree=tree))
    assert calibration._space == Calibration("arithmetic", "a", "b", Goal(min_acc=0.9))._space
    assert SearchSpace(tree=("chain", SMALL)) == SearchSpace(tree=(None, SMALL))
    message = usage_error(
        lambda: calibrate("arithmetic", "a", "b", min_acc=0.9, tree=tree, engine="vllm", device="cpu")
    )
    assert "leave device out" in message  # not that of trees


def test_a_configuration_is_read_back_from_json() -> None:
    for tree in (None, SMALL):
        arm = Setting("fsd-coupled", "js", 4, 0.1, tree=tree)
        assert Setting.of(json.loads(json.dumps(arm.values))) == arm


def test_vllm_is_told_that_it_drafts_no_trees() -> None:
    with pytest.raises(UsageError, match="drafts trees, which vLLM does not; calibrate chains"):
        check_profile(profile({"tree": {"top_k": 2, "nodes": 4}}))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tree": "3,16"}, "tree is '3,16'; write a shape as TreeShape(top_k=2, nodes=6)"),
        ({"tree": (None, 4)}, "tree is (None, 4); write a shape as TreeShape(top_k=2, nodes=6)"),
        ({"tree": {"top_k": 2, "nodes": 6}}, "tree is {'top_k': 2, 'nodes': 6}; write a shape as"),
        pytest.param({"tree": iter([SMALL])}, "tree is <list_iterator object", id="an iterator"),
        ({"tree": ()}, "tree is (); write a shape as"),
        ({"predictor": "auto"}, "tree is given, and a predictor ends chains of draft models early"),
        (
            {"threshold_policy": "schedule"},
            "tree is given, and how fast trees are with policy schedule is not forecast",
        ),
        ({"engine": "vllm"}, "engine is 'vllm'"),
    ],
    ids=str,
)
def test_what_trees_do_not_go_with_is_refused_before_anything_is_loaded(settings: dict[str, Any], named: str) -> None:
    asked = {"tree": SMALL, **settings}
    message = usage_error(lambda: calibrate("arithmetic", target="nowhere", draft="nowhere", min_acc=0.9, **asked))
    assert named in message


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (TreeShape(41, 60), "tree is 41,60, and there are 40 tokens to draft; give a smaller top_k"),
        (TreeShape(2, 4000), "tree is 2,4000, and the models' context is"),
    ],
    ids=str,
)
def test_trees_larger_than_the_models_are_refused_before_anything_is_decoded(
    shape: TreeShape, message: str, tmp_path: Path
) -> None:
    assert usage_error(lambda: run(tmp_path, tree=shape)).startswith(message)
    assert not (tmp_path / "cache").exists()
