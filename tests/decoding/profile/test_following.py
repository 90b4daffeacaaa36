"""The line that says what is followed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.following import following
from fsd_decoding.profile.parts import ModelInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import UNCERTIFIED, UNTESTED, profile
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related

OWN = "following profile 'p.json' of task 'arithmetic': LOSSY, drafted tokens with js <= 0.0625 are accepted; "


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, OWN + "certified to keep retention of at least 0.98"),
        (
            {"certificate.acc": "absolute", "certificate.wanted": 0.9},
            OWN + "certified to keep accuracy of at least 0.9",
        ),
        (UNTESTED, OWN + "nothing is certified"),
        (UNCERTIFIED, "lossless: following profile 'p.json' of task 'arithmetic', which has no threshold"),
    ],
)
def test_a_line_says_whether_texts_may_change_and_what_is_certified(
    changes: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profile({"score": "js"} | changes).save("p.json")
    assert following(ThresholdProfile.load("p.json")).startswith(line)


def test_an_edited_profile_certifies_nothing() -> None:
    edited = profile().model_copy(update={"draft_length": 2})
    assert following(edited).endswith("nothing is certified")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "following profile of task 'arithmetic': LOSSY, drafted tokens with js <= 0.0625 are accepted; certified"),
        (
            {"threshold": 0.5},
            "following profile of task 'arithmetic', with another setting than its own: LOSSY, drafted tokens with "
            "js <= 0.5 are accepted; nothing is certified",
        ),
        ({"threshold": -1.0}, "lossless: following profile of task 'arithmetic', with another setting than its own"),
    ],
)  # fmt: skip
def test_a_line_is_of_what_the_decoder_runs(changes: dict[str, Any], line: str) -> None:
    own, decoder = followed()
    assert following(own, decoder.reconfigured(decoder.decoding.override(changes))).startswith(line)


def followed() -> tuple[ThresholdProfile, SpeculativeDecoder]:
    target, draft = related(seed=1, spread=0.05)
    info = {role: ModelInfo.of(m).model_dump() for role, m in (("target", target), ("draft", draft))}
    own = profile({"score": "js", "prompt": None, "tokenizer": tokenizer_fingerprint(word_tokenizer()), **info})
    return own, SpeculativeDecoder.from_pretrained(target, draft, own, tokenizer=word_tokenizer())


def test_each_decoder_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    own, decoder = followed()
    for _ in range(2):
        decoder.generate([[1, 2]], 3)
        list(decoder.stream([1, 2], 3))
    assert caplog.messages == [following(own, decoder)]
    lossless = decoder.with_config(threshold=-1.0)
    list(lossless.stream([1, 2], 3))
    assert caplog.messages[1:] == [following(own, lossless)]
    told = decoder.with_config(draft_length=decoder.draft_length)
    assert told.announcement() == following(own, told)
    told.generate([[1, 2]], 3)
    assert told.announcement() is None
    assert len(caplog.messages) == 2


def test_beams_are_announced_and_certified_by_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Unless all of them are lossless: at each T, and with W beams in every layer."""
    own, decoder = followed()
    warning = "a profile certifies single texts; nothing certifies these beams"
    lossy: list[dict[str, Any]] = [
        {},
        {"threshold": [-1.0, 0.5]},
        {"rule": "sd", "temperature": 1.0, "replacement": True, "chance": 0.7},
    ]
    for given in lossy:
        with pytest.warns(UserWarning, match=warning):
            decoder.generate_beams([[1, 2], [3]], 2, 3, **given)
    assert caplog.messages == [following(own, decoder)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoder.generate_beams([[1, 2], [3]], 2, 3, threshold=-1.0)
        decoder.generate_beams([[1, 2], [3]], 2, 3, 1.0, rule="sd", replacement=True)


def test_without_a_profile_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    decoder = SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), threshold=0.3)
    decoder.generate([[1, 2]], 3)
    assert caplog.messages == []
