"""PerDomain: T per domain of a prompt, from profiles."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from conformance.threshold_policies import (
    DRAFTS,
    NEW,
    PROMPTS,
    counted,
    decode,
    decoder,
)
from fsd_common.errors import UsageError
from fsd_decoding.adaptive import (
    PerDomain,
)
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.tree_shape import TreeShape
from support.calibration.profiles import profile
from support.messages import usage_error
from support.models.tiny_models import llama


@pytest.fixture(scope="module")
def fitting() -> ThresholdProfile:
    """A profile of the tiny pair."""
    pair = decoder()
    models = {"target": ModelInfo.of(pair.target), "draft": ModelInfo.of(pair.draft)}
    made = profile().model_copy(update={**models, "tokenizer": tokenizer_fingerprint(pair.tokenizer)})
    warm = made.sampling.model_copy(update={"temperature": 0.9})  # that of `decode`
    return made.model_copy(update={"draft_length": DRAFTS, "threshold": 0.3, "sampling": warm}).sealed()


TREE = TreeShape(top_k=2, nodes=6)
TAGS = ["sums", "tales", "lossless"] * 8


def domains(fitting: ThresholdProfile, **changes: Any) -> dict[str, object]:
    return {
        "sums": fitting,
        "tales": fitting.model_copy(update={"threshold": 0.05, **changes}).sealed(),
        "lossless": -1,
    }


def test_a_prompts_threshold_is_its_domains(fitting: ThresholdProfile) -> None:
    policy = PerDomain(domains(fitting), TAGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [decode(policy, batch_size=n) for n in (1, 5, 12)]
    wanted = decode([0.3, 0.05, -1.0] * 8)
    for results in found:
        assert counted(results) == counted(wanted)


def test_a_profile_may_be_a_file(fitting: ThresholdProfile, tmp_path: Any) -> None:
    fitting.save(tmp_path / "profile.json")
    for path in (tmp_path / "profile.json", str(tmp_path / "profile.json")):
        assert PerDomain({"sums": path}, ["sums"]).threshold == 0.3


@pytest.mark.parametrize("changes", [{"rule": "fsd"}, {"score": "tv"}, {"draft_length": 7}, {"logits": "processed"}])
def test_profiles_that_mean_something_else_by_a_threshold_are_refused(
    fitting: ThresholdProfile, changes: dict[str, Any]
) -> None:
    (name,) = changes
    with pytest.raises(UsageError, match=f"the profile of 'tales' has {name} .*, but that of 'sums' has"):
        PerDomain(domains(fitting, **changes), TAGS)


def test_a_profile_of_trees_is_refused_by_name(fitting: ThresholdProfile) -> None:
    found = domains(fitting, tree=TREE)
    message = "the profile of 'tales' is for trees of 6 nodes, top 2, and this policy sets T for chains alone"
    assert usage_error(lambda: PerDomain(found, TAGS)).startswith(message)


def test_a_decoder_that_means_something_else_by_a_threshold_is_refused(fitting: ThresholdProfile) -> None:
    policy = PerDomain(domains(fitting), TAGS)
    with pytest.raises(UsageError, match="the profile of 'sums' has rule 'fsd-coupled', but this decoding has 'fsd'"):
        decode(policy, rule="fsd")
    with pytest.raises(UsageError, match="the profile of 'sums' has draft_length 3, but prompt 0 has 5"):
        decode(policy, draft_length=5)
    other = PerDomain({"sums": fitting.model_copy(update={"logits": "processed"}).sealed()}, ["sums"] * len(PROMPTS))
    with pytest.raises(UsageError, match="the profile of 'sums' has logits 'processed', but this decoding has 'raw'"):
        decode(other)


def test_profiles_of_other_models_are_refused_and_what_is_doubtful_is_said(fitting: ThresholdProfile) -> None:
    other = fitting.model_copy(update={"draft": ModelInfo.of(llama(5))}).sealed()
    with pytest.raises(UsageError, match=r"the profile's draft is .* with fingerprint"):
        decode(PerDomain({"sums": other}, ["sums"] * len(PROMPTS)))
    uncertified = fitting.model_copy(update={"outcome": "not-certified", "threshold": None, "lossy": False}).sealed()
    policy = PerDomain({"sums": uncertified}, ["sums"] * len(PROMPTS))
    for _ in range(2):
        with pytest.warns(UserWarning, match="domain 'sums': the profile certifies no threshold") as caught:
            found = decoder().generate(PROMPTS, NEW, 0.9, threshold=policy)
        assert {warning.filename for warning in caught} == {__file__}
        assert counted(found) == counted(decode(-1.0))


def test_an_edited_profile_is_followed_only_where_that_is_allowed(fitting: ThresholdProfile) -> None:
    edited = fitting.model_copy(update={"threshold": 0.4})
    with pytest.raises(UsageError, match="was changed after the calibration"):
        PerDomain({"sums": edited}, ["sums"])
    policy = PerDomain({"sums": edited}, ["sums"] * len(PROMPTS), allow_edited=True)
    with pytest.warns(UserWarning, match="domain 'sums': .* its certificate does not cover this decoding"):
        assert counted(decode(policy)) == counted(decode(0.4))


def test_every_prompt_needs_a_tag_that_is_known() -> None:
    with pytest.raises(UsageError, match="the tag of prompt 1 is 'x'; known: sums, tales"):
        PerDomain({"sums": 0.1, "tales": 0.2}, ["sums", "x"])
    with pytest.raises(UsageError, match="prompt 2 has no tag: tags has 2 entries; pass one tag per prompt"):
        decode(PerDomain({"sums": 0.1}, ["sums"] * 2))
