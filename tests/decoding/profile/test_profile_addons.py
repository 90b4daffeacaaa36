"""Profiles of code that is not of fsd-calib: followed where it is the same, else refused in one line before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fsd_common.addons import addon
from fsd_common.errors import UsageError
from fsd_decoding.drafters.named import drafter_named
from fsd_decoding.policies.stopping import stop_policy_named
from fsd_decoding.profile.drafts import info_of
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.models.followed_pair import NEW, PAIR, PROMPTS, followed, load
from support.models.tiny_models import word_tokenizer
from support.own_code import on_path
from support.paths import EXAMPLES

SCORE, RULE, DRAFTER, STOP = "new_score:Behind", "new_rule:OneSwap", "new_drafter:Lookup", "own_stop:Shy"
STOPPING = """
from fsd_decoding.policies.stopping import StopPolicy

class Shy(StopPolicy):
    def goes_on(self, state):
        return [len(state.logits) < 2] * len(state.rows)
"""


@pytest.fixture(scope="module", autouse=True)
def own() -> Iterator[None]:
    with on_path(EXAMPLES, own_stop=STOPPING):
        yield


def facts(**other: str) -> list[dict[str, Any]]:
    """What profiles record of all of it; `other` changes the record of each."""
    named = (("score", SCORE), ("rule", RULE), ("drafter", DRAFTER), ("stop policy", STOP))
    found = (addon(kind, name) for kind, name in named)  # type: ignore[arg-type]
    return [each.facts | other for each in found if each is not None]


def made_with(**more: Any) -> dict[str, Any]:
    return {"score": f"{SCORE}@10", "rule": RULE, "stop_policy": STOP, "addons": facts(), **more}


def test_a_profile_is_followed_with_code_of_ones_own() -> None:
    decoder = load(made_with())
    assert (decoder.rule, decoder.score, decoder.threshold) == (RULE, f"{SCORE}@10", 0.0625)
    assert decoder.stop_policy is not None
    assert decoder.stop_policy.identity == stop_policy_named(STOP).identity
    results = decoder.generate(PROMPTS, NEW)
    assert all(result.drafted <= 2 * result.rounds for result in results)
    with pytest.warns(UserWarning, match=f"rule is '{RULE}' instead of 'fsd-coupled'"):
        plain = load(None, rule=RULE, score=f"{SCORE}@10", threshold=0.0625)
    assert [result.tokens for result in plain.generate(PROMPTS, NEW)] == [result.tokens for result in results]


def test_a_profile_names_a_drafter_of_ones_own() -> None:
    draft = drafter_named(DRAFTER)
    changes = {"draft": info_of(draft, PAIR[0]).model_dump(), "addons": facts(), "draft_length": 3}
    profile = followed(changes)
    assert (profile.draft.id, profile.draft.kind) == (DRAFTER, "addon")
    loaded = type(load()).from_pretrained(PAIR[0], draft, profile, tokenizer=word_tokenizer())
    assert loaded.generate(PROMPTS, NEW)[0].tokens
    with pytest.raises(UsageError, match=f"calibrated with the drafter '{DRAFTER}', but this draft is"):
        load(changes)
    with pytest.raises(UsageError, match=f"needs '{DRAFTER}', and does not say what code that was; calibrate again"):
        load({**changes, "addons": []})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "0" * 64}, "was made with another source of rule 'new_rule:OneSwap' (its digest was 000000000000,"),
        ({"package": "swaps", "version": "3"}, "was made with rule 'new_rule:OneSwap' of swaps 3, and here it is of"),
    ],
)
def test_other_code_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(made_with(addons=facts(**changes)))
    assert message in str(caught.value)
    assert str(caught.value).startswith("the profile of 'arithmetic' ")


def test_only_what_is_followed_has_to_be_there() -> None:
    """A search may have tried other scores; and a table of a profile needs none of its code."""
    gone = facts()[0] | {"name": "gone:Score"}
    assert load({"addons": [gone]}).generate(PROMPTS, NEW)[0].tokens
    profile = followed({"score": "gone:Score@2", "addons": [gone]})
    assert ThresholdProfile.from_content(profile.model_dump_json()).score == "gone:Score@2"
    assert profile.chosen.score == "gone:Score@2"
    with pytest.raises(
        UsageError, match=r"needs score 'gone:Score', and there is no module gone on Python's path; put"
    ):
        load({"score": "gone:Score@2", "addons": [gone]})
    with pytest.raises(UsageError, match="needs 'gone:Score', and does not say what code that was; calibrate again"):
        load({"score": "gone:Score@2"})
