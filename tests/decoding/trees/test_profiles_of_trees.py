"""Decoding with a profile whose setting drafts trees: what is read from it, and what goes in place of its shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fsd_decoding.errors import UsageError
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.trees.shape import TreeShape
from support.calibration.profiles import values
from support.models.followed_pair import followed, load, warned

SHAPE = {"top_k": 2, "nodes": 6}
OWN = TreeShape(**SHAPE)
TREES: dict[str, Any] = {"tree": SHAPE, **{f"curve.{place}.tree": SHAPE for place in range(5)}}


def test_what_a_profile_and_a_choice_say_of_trees_is_what_decoders_take() -> None:
    found = followed(TREES)
    choice = found.at(min_acc=0.9)
    assert found.tree == choice.tree == OWN
    assert warned(load, tree=choice.tree)  # its certificate is for chains
    assert load(TREES).with_config(tree=choice.tree).tree == OWN


def test_the_file_has_the_shape_as_an_object() -> None:
    found = followed(TREES)
    assert json.loads(found.model_dump_json())["tree"] == SHAPE
    assert ThresholdProfile.from_content(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        ({"top_k": 2}, "nodes"), ({**SHAPE, "depth": 3}, "depth"), ({**SHAPE, "nodes": True}, "nodes"),
        ({**SHAPE, "nodes": 10**6}, "nodes"), ("2,6", "tree"),
    ],
    ids=str,
)  # fmt: skip
def test_a_file_with_another_object_in_its_place_is_refused(tmp_path: Any, shape: Any, named: str) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(values({"tree": shape})))
    with pytest.raises(UsageError, match=rf"is not valid: .*{named}"):
        ThresholdProfile.load(tmp_path)
