"""The digest of a profile: no other content loads as certified, and what is edited says so."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fsd_common.errors import UsageError
from fsd_decoding.adaptive.per_domain import PerDomain
from fsd_decoding.adaptive.speed_budget import SpeedBudget
from fsd_decoding.profile.following import profile_config
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import FAST_ENOUGH, FRONT, UNCERTIFIED, UNTESTED, profile, values


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    profile().save(tmp_path / "profile.json")
    return tmp_path / "profile.json"


def edit(path: Path, **changes: Any) -> Path:
    """Changes fields of a file, as an editor does."""
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | changes, indent=2), encoding="utf-8")
    return path


def same(first: ThresholdProfile, second: ThresholdProfile) -> bool:
    """Whether all fields are equal, wherever the profiles come from."""
    return first.model_dump() == second.model_dump()


def test_a_typed_threshold_is_refused(saved: Path) -> None:
    """It used to load as certified."""
    with pytest.raises(UsageError, match=r"profile\.json' was changed after the calibration") as raised:
        ThresholdProfile.load(edit(saved, threshold=0.9))
    for way_out in ("nothing certifies its threshold", "restore the file", "calibrate again", "allow_edited"):
        assert way_out in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_edited_file_loads_where_that_is_allowed_and_certifies_nothing(saved: Path) -> None:
    loaded = ThresholdProfile.load(edit(saved, threshold=0.0626), allow_edited=True)
    assert (loaded.threshold, loaded.edited, loaded.met) == (0.0626, True, False)
    assert not loaded.at(min_acc=0.9, certified=False).certified
    with pytest.raises(UsageError, match=r"no point of the curve is certified"):
        loaded.at(min_acc=0.9)


def test_a_file_as_it_was_saved_is_not_edited(saved: Path) -> None:
    loaded = ThresholdProfile.load(saved)
    assert same(loaded, profile())
    assert (loaded.edited, loaded.at(min_acc=0.98).certified) == (False, True)


def test_anyone_can_compute_the_digest(saved: Path) -> None:
    content = json.loads(saved.read_text(encoding="utf-8"))
    digest = content.pop("digest")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert digest == hashlib.sha256(canonical.encode()).hexdigest()


def test_another_layout_of_the_same_content_is_no_edit(saved: Path) -> None:
    content = json.loads(saved.read_text(encoding="utf-8"))
    saved.write_text(json.dumps(dict(reversed(content.items()))))
    assert same(ThresholdProfile.load(saved), profile())
    text = saved.read_text()
    assert "1.0" in text
    saved.write_text(text.replace(" 1.0", " 1"))  # as JavaScript writes it
    assert same(ThresholdProfile.load(saved), profile())


def test_a_file_without_its_digest_is_refused(saved: Path) -> None:
    content = json.loads(edit(saved, digest=None).read_text(encoding="utf-8"))
    with pytest.raises(UsageError, match="has no digest"):
        ThresholdProfile.load(saved, allow_edited=True)
    del content["digest"]
    saved.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="has no digest"):
        ThresholdProfile.load(saved, allow_edited=True)


@pytest.mark.parametrize("digest", ["", "0" * 63, "G" * 64, 5, True, ["0" * 64]])
def test_a_digest_is_64_hexadecimal_digits(saved: Path, digest: Any) -> None:
    with pytest.raises(UsageError, match="is not valid: digest"):
        ThresholdProfile.load(edit(saved, digest=digest), allow_edited=True)


# Objects


def test_a_changed_copy_is_edited_and_stays_so_in_its_file(tmp_path: Path) -> None:
    copy = profile().model_copy(update={"threshold": 0.9})
    assert copy.edited
    copy.save(tmp_path / "profile.json")
    with pytest.raises(UsageError, match="was changed after the calibration"):
        ThresholdProfile.load(tmp_path / "profile.json")
    assert ThresholdProfile.load(tmp_path / "profile.json", allow_edited=True) == copy


def test_a_profile_made_by_hand_has_no_digest_until_it_is_sealed(tmp_path: Path) -> None:
    made = ThresholdProfile.model_validate(values())
    assert (made.digest, made.edited) == (None, False)
    with pytest.raises(UsageError, match="has no digest, without which its file would be refused"):
        made.save(tmp_path / "profile.json")
    assert list(tmp_path.iterdir()) == []
    assert same(made.sealed(), profile())


def test_a_saved_profile_that_moves_its_predictor_is_not_edited(tmp_path: Path) -> None:
    rates = {"js": {"shares": [0.0], "tokens_per_second": [1.0]}}
    stop = {"predictor": "predictor", "fingerprint": "f", "draft_step": 1e-3, "verify": 4e-3, "position": 0.0,
            "rates": rates}  # fmt: skip
    made = profile({"early_stop": stop})
    made.save(tmp_path / "a" / "profile.json")
    made.save(tmp_path / "b" / "profile.json")
    moved = ThresholdProfile.load(tmp_path / "b" / "profile.json")
    assert moved.early_stop is not None
    assert (moved.early_stop.predictor, moved.edited) == ("../a/predictor", False)
    changed = made.model_copy(update={"seed": 5})
    changed.save(tmp_path / "c" / "profile.json")
    assert ThresholdProfile.load(tmp_path / "c" / "profile.json", allow_edited=True).edited


# Decoders


class Unread:
    """Stands for models that must not be looked at, as the profile is refused first."""


def test_decoders_refuse_what_is_edited(saved: Path) -> None:
    edited = profile().model_copy(update={"threshold": 0.9})
    edit(saved, threshold=0.9)
    for source in (edited, saved, str(saved)):
        with pytest.raises(UsageError, match="was changed after the calibration"):
            profile_config(source, (Unread(), Unread()), None)
        with pytest.raises(UsageError, match="was changed after the calibration"):
            PerDomain({"sums": source}, ["sums"])
    with pytest.raises(UsageError, match="was changed after the calibration"):
        SpeedBudget(10, profile=edited)


def test_a_warning_says_what_the_digest_does_not_show() -> None:
    edited = profile().model_copy(update={"threshold": 0.9})
    assert "does not cover" in str(edited.digest_doubt())
    for changes in ({}, UNCERTIFIED, FAST_ENOUGH, FRONT):
        assert "calibrate again" in str(ThresholdProfile.model_validate(values(changes)).digest_doubt())
        assert profile(changes).digest_doubt() is None


@pytest.mark.parametrize("changes", [{}, FAST_ENOUGH, FRONT, UNTESTED], ids=lambda changes: changes.get("outcome"))
def test_a_profile_without_a_digest_certifies_nothing(changes: dict[str, Any]) -> None:
    """`at` used to call the typed bounds of a front certified."""
    unbound = ThresholdProfile.model_validate(values(changes))
    assert (unbound.bound, unbound.edited, unbound.met) == (False, False, False)
    assert "has no digest" in str(unbound.digest_doubt())
    assert not unbound.at(min_acc=0.85, certified=False).certified
    with pytest.raises(UsageError, match="no point of the curve is certified"):
        unbound.at(min_acc=0.85)
