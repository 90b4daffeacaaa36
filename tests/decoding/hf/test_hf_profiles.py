"""`fsd_generate` with a profile."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.hf import fsd_generate
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import UNCERTIFIED, profile
from support.models.hf_pair import (
    DRAFT,
    NEW,
    TARGET,
    batch,
    fsd,
    one,
    plain,
    plain_batch,
    same,
)
from support.models.tiny_models import VOCABULARY, word_tokenizer


def pair_profile(changes: dict[str, Any] | None = None) -> ThresholdProfile:
    values: dict[str, Any] = {"tokenizer": tokenizer_fingerprint(word_tokenizer()), "dtype": "float64"}
    for role, model in (("target", TARGET), ("draft", DRAFT)):
        values |= {f"{role}.fingerprint": model_fingerprint(model), f"{role}.vocab_size": VOCABULARY}
        values |= {f"{role}.dtype": "float64"}
    return profile(values | (changes or {}))


def profiled(inputs: dict[str, Tensor], fsd_profile: Any, **options: Any) -> Any:
    """Calls `generate` itself, since warnings name the file of that call."""
    return TARGET.generate(
        **inputs,
        max_new_tokens=NEW,
        custom_generate=fsd_generate,
        draft_model=DRAFT,
        fsd_profile=fsd_profile,
        **options,
    )


@pytest.mark.parametrize("fsd_tokenizer", [None, word_tokenizer()])
def test_a_profile_sets_rule_threshold_and_draft_length(tmp_path: Path, fsd_tokenizer: Any) -> None:
    saved = pair_profile({"rule": "fsd", "score": "tv", "threshold": 0.9, "draft_length": 3})
    saved.save(tmp_path / "profile.json")
    by_hand = fsd(
        batch(),
        return_dict_in_generate=True,
        fsd_rule="fsd",
        fsd_score="tv",
        fsd_threshold=0.9,
        fsd_draft_length=3,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for source in (saved, tmp_path / "profile.json"):
            output = profiled(batch(), source, fsd_tokenizer=fsd_tokenizer, return_dict_in_generate=True)
            assert same(output.sequences, by_hand.sequences)
            assert same(output.rounds, by_hand.rounds)
            assert not same(output.sequences, plain(batch()))


def test_what_is_followed_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    lossy = pair_profile({"rule": "fsd", "score": "tv", "threshold": 0.7, "task": "said-once"})
    for _ in range(2):
        profiled(batch(), lossy)
    (record,) = caplog.records
    assert record.getMessage().startswith("following profile of task 'said-once': LOSSY, drafted tokens with tv <= 0.7")
    profiled(batch(), lossy, fsd_threshold=-1.0)
    assert caplog.records[-1].getMessage().startswith("lossless: following profile of task 'said-once'")


def test_without_a_certificate_a_profile_is_lossless() -> None:
    with pytest.warns(UserWarning, match="certifies no threshold for 'arithmetic'") as caught:
        assert same(profiled(batch(), pair_profile(UNCERTIFIED)), plain_batch())
    assert caught[0].filename == __file__


def test_other_sampling_than_the_profiles_warns() -> None:
    hot = pair_profile({"sampling.temperature": 0.8, "sampling.top_k": 5})
    with pytest.warns(UserWarning, match="temperature is 0.0 instead of 0.8, .* does not apply") as caught:
        profiled(one(), hot)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        profiled(one(), hot, do_sample=True, temperature=0.8, top_k=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target.fingerprint": "b"}, "the profile's target is 'big'"),
        ({"draft.fingerprint": "s"}, "the profile's draft is 'small'"),
        ({"scores_version": 99}, "version 99 of the scores"),
    ],
)
def test_profiles_of_other_models_are_refused(changes: dict[str, Any], message: str) -> None:
    for fsd_tokenizer in (None, word_tokenizer()):
        with pytest.raises(UsageError, match=message):
            profiled(one(), pair_profile(changes), fsd_tokenizer=fsd_tokenizer)


def test_a_tokenizer_given_is_held_against_the_profile() -> None:
    with pytest.raises(UsageError, match="another tokenizer"):
        profiled(one(), pair_profile(), fsd_tokenizer=word_tokenizer(30))


def test_an_edited_profile_is_followed_only_where_that_is_allowed(tmp_path: Path) -> None:
    edited = pair_profile().model_copy(update={"threshold": 0.5})
    edited.save(tmp_path / "profile.json")
    for source in (edited, tmp_path / "profile.json"):
        with pytest.raises(UsageError, match="was changed after the calibration"):
            profiled(one(), source)
        with pytest.warns(UserWarning, match="its certificate does not cover this decoding") as caught:
            profiled(one(), source, fsd_allow_edited=True)
        assert caught[0].filename == __file__
        with pytest.raises(UsageError, match="was changed after the calibration"):
            SpeculativeDecoder.from_pretrained(TARGET, DRAFT, source, tokenizer=word_tokenizer())
        with pytest.warns(UserWarning, match="its certificate does not cover this decoding") as caught:
            decoder = SpeculativeDecoder.from_pretrained(
                TARGET, DRAFT, source, tokenizer=word_tokenizer(), allow_edited=True
            )
        assert caught[0].filename == __file__
        assert decoder.threshold == 0.5


def test_a_profile_without_a_digest_is_followed_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="has no digest") as caught:
        profiled(one(), pair_profile().model_copy(update={"digest": None}))
    assert caught[0].filename == __file__
