"""Decoding with a profile whose setting drafts trees: what is read from it, and what goes in place of its shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fsd_common.errors import UsageError
from fsd_decoding.profile.io import digest_of
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.tree_shape import TreeShape
from support.calibration.profiles import UNCERTIFIED, values
from support.messages import usage_error
from support.models.followed_pair import DOES_NOT_APPLY, NEW, PROMPTS, by_transformers, followed, load, warned
from support.models.stop_policies import Unsure

SHAPE = {"top_k": 2, "nodes": 6}
OWN = TreeShape(**SHAPE)
OTHER = TreeShape(top_k=3, nodes=4)
TREES: dict[str, Any] = {"tree": SHAPE, **{f"curve.{place}.setting.tree": SHAPE for place in range(5)}}


def test_what_a_profile_and_a_choice_say_of_trees_is_what_decoders_take() -> None:
    found = followed(TREES | {"draft_length": 5})  # what the bound of its curve is of
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
    content = values({"tree": shape})
    (tmp_path / "profile.json").write_text(json.dumps(content | {"digest": digest_of(content)}))
    with pytest.raises(UsageError, match=rf"is not valid: .*{named}"):
        ThresholdProfile.load(tmp_path)


def by_loading(**given: Any) -> None:
    load(TREES, **given)


def by_with_config(**given: Any) -> None:
    load(TREES).with_config(**given)


def by_a_call(**given: Any) -> None:
    load(TREES).generate(PROMPTS, NEW, **given)


def by_a_stream(**given: Any) -> None:
    list(load(TREES).stream(PROMPTS[0], NEW, **given))


def by_generate_of_transformers(**given: Any) -> None:
    by_transformers(TREES, **{f"fsd_{name}": value for name, value in given.items()})


OURS = [by_loading, by_with_config, by_a_call, by_a_stream]
WAYS = [*OURS, by_generate_of_transformers]


@pytest.mark.parametrize("way", WAYS)
def test_chains_go_in_place_of_a_profiles_trees(way: Any) -> None:
    assert warned(way, tree="chain") == [f"tree is 'chain' instead of {OWN!r}: {DOES_NOT_APPLY}"]
    assert warned(way, tree=OTHER) == [f"tree is {OTHER!r} instead of {OWN!r}: {DOES_NOT_APPLY}"]
    assert warned(way, tree=OWN) == []


def test_chains_decode_as_without_a_tree() -> None:
    with pytest.warns(UserWarning, match=DOES_NOT_APPLY):
        loaded = load(TREES, tree="chain")
    with pytest.warns(UserWarning, match=DOES_NOT_APPLY):
        called = load(TREES).generate(PROMPTS, NEW, tree="chain")
    assert loaded.tree is None
    assert loaded.generate(PROMPTS, NEW) == called == load().generate(PROMPTS, NEW)
    assert load().generate(PROMPTS, NEW) != load(TREES).generate(PROMPTS, NEW)


@pytest.mark.parametrize(
    "given",
    [{"rule": "ensemble", "threshold": 0.3}, {"repetition_penalty": 1.1}, {"stop_policy": Unsure()}],
    ids=lambda given: next(iter(given)),
)
@pytest.mark.parametrize("way", OURS)
def test_what_does_not_go_with_the_profiles_trees_says_the_way_out_and_goes_with_chains(way: Any, given: Any) -> None:
    message = usage_error(lambda: way(**given))
    assert message.startswith(f"tree is {OWN!r}, and ")
    assert message.endswith("or give tree='chain'")
    (warning,) = warned(way, **given, tree="chain")
    assert "tree is 'chain' instead of" in warning


SD: dict[str, Any] = {**TREES, "lossless.tree": {"top_k": 3, "nodes": 4}, "lossless.draft_length": 2}
SD_OF_CHAINS: dict[str, Any] = {**TREES, "lossless.draft_length": 7}


@pytest.mark.parametrize(("changes", "length", "tree"), [(SD, 2, OTHER), (SD_OF_CHAINS, 7, None)])
def test_lossless_rules_draft_what_sd_was_timed_with(changes: dict[str, Any], length: int, tree: TreeShape) -> None:
    loaded = load(changes, rule="sd")
    other = load(changes).with_config(rule="sd")
    assert (loaded.draft_length, loaded.tree) == (other.draft_length, other.tree) == (length, tree)
    assert load(changes).generate(PROMPTS, NEW, rule="sd") == loaded.generate(PROMPTS, NEW)
    assert loaded.generate(PROMPTS, NEW) != load(changes, rule="sd", tree=OWN).generate(PROMPTS, NEW)
    back = loaded.with_config(rule="fsd-coupled")
    assert (back.draft_length, back.tree) == (3, OWN)  # as certified, so without a warning


def test_what_is_given_goes_before_what_sd_was_timed_with() -> None:
    for tree, shape in ((OWN, OWN), ("chain", None)):
        loaded = load(SD, rule="sd", tree=tree)
        assert (loaded.draft_length, loaded.tree) == (3, shape)
        other = loaded.with_config(rule="coupled")
        assert (other.draft_length, other.tree) == (3, shape)
        assert loaded.generate(PROMPTS, NEW, rule="coupled") == other.generate(PROMPTS, NEW)
    longer = load(SD, rule="sd", draft_length=4)
    assert (longer.draft_length, longer.tree) == (4, OTHER)
    with pytest.warns(UserWarning, match="draft_length is 4 instead of 3"):
        deep = load(SD, draft_length=4)
    assert (deep.with_config(rule="sd").draft_length, deep.with_config(rule="sd").tree) == (4, OTHER)


def test_of_chains_alone_sd_keeps_the_length_of_the_chosen_setting() -> None:
    assert load({"lossless.draft_length": 7}, rule="sd").draft_length == 3


def test_a_profile_without_a_threshold_drafts_as_sd_under_every_rule() -> None:
    with pytest.warns(UserWarning, match="certifies no threshold"):
        loaded = load(SD | UNCERTIFIED)
    with pytest.warns(UserWarning, match="certifies no threshold"):
        fuzzy = loaded.with_config(rule="fsd-coupled", threshold=0.1)
    assert loaded.tree == fuzzy.tree == OTHER


@pytest.mark.parametrize("tree", [{"top_k": 2, "nodes": 6}, "2,6", (OWN, OTHER), 5], ids=str)
def test_a_decoder_says_how_a_shape_is_written(tree: Any) -> None:
    for way in WAYS:
        message = usage_error(lambda: way(tree=tree))  # noqa: B023
        assert f"tree is {tree!r:.60}; write a shape as TreeShape(top_k=4, nodes=16), and chains as 'chain'" in message


def test_a_choice_of_chains_replaces_the_trees_of_the_profile() -> None:
    chains = {**TREES, "curve.1.setting.tree": None, "curve.1.retention": 0.995}
    choice = followed(chains).at(min_acc=0.991, certified=False)
    assert choice.tree == "chain"
    decoder = load(TREES)
    assert decoder.tree == OWN
    assert decoder.with_config(tree=choice.tree).tree is None


def test_lossless_rules_do_not_take_the_shape_of_another_draft() -> None:
    """`sd` was timed with chains of a draft that is not the profile's own."""
    other = {**TREES, "lossless.draft": "other", "lossless.draft_length": 9}
    assert load({**TREES, "lossless.draft_length": 9}, rule="sd").tree is None
    assert (load(other, rule="sd").tree, load(other, rule="sd").draft_length) == (OWN, load(TREES).draft_length)
