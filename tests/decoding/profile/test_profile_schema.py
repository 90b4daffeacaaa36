"""Schemas of profiles: the committed current one, and files of older ones."""

from __future__ import annotations

import copy
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from fsd_decoding.errors import UsageError
from fsd_decoding.profile.io import SCHEMA_VERSION, upgrade
from fsd_decoding.profile.json_schema import schema_text
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import (
    FAST_ENOUGH,
    FRONT,
    LOSSLESS,
    SLOWER,
    TOO_SLOW,
    UNCERTIFIED,
    UNKNOWN,
    UNTESTED,
    profile,
    values,
)
from support.json_schema import schema_errors
from support.paths import FILES

NOW = {"schema_version": 4, "outcome": "certified-speed-unknown"}  # what older files say of speed is not read
OLD = FILES / "profile-1.json"  # as schema 1 wrote it
LAST = FILES / "profile-3.json"  # before there was a digest
EARLIER = FILES / "profile-2.json"  # of a real calibration, before its schema's later fields


def committed(version: int) -> str:
    return (resources.files("fsd_decoding") / "schemas" / f"profile-{version}.json").read_text(encoding="utf-8")


def old() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(OLD.read_text(encoding="utf-8"))
    return content


def not_granted(wanted_speed: float | None) -> dict[str, Any]:
    content = old() | {"threshold": None, "lossy": False}
    content["certificate"]["certified"] = False
    content["speed"]["wanted"] = wanted_speed
    return content


def test_the_committed_schema_is_the_current_one() -> None:
    assert json.loads(committed(SCHEMA_VERSION)) == json.loads(schema_text()), (
        "regenerate it: python -m fsd_decoding.profile.json_schema > decoding/fsd_decoding/schemas/"
        f"profile-{SCHEMA_VERSION}.json; if files written before would no longer load, increase SCHEMA_VERSION"
    )


def test_the_schema_names_its_dialect_and_itself() -> None:
    schema = json.loads(committed(SCHEMA_VERSION))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("https://github.com/fsd-calib/fsd-calib/")
    assert schema["$id"].endswith(f"decoding/fsd_decoding/schemas/profile-{SCHEMA_VERSION}.json")


def test_every_property_is_described() -> None:
    described = _descriptions(json.loads(committed(SCHEMA_VERSION)))
    assert len(described) > 150
    assert [name for name, description in described.items() if not str(description or "").strip()] == []


def _descriptions(schema: Any, path: str = "$") -> dict[str, Any]:
    """Returns the description of each property, at any depth, by its path in the schema."""
    if isinstance(schema, list):
        return {k: v for i, one in enumerate(schema) for k, v in _descriptions(one, f"{path}.{i}").items()}
    if not isinstance(schema, dict):
        return {}
    own = {f"{path}.{name}": one.get("description") for name, one in schema.get("properties", {}).items()}
    return own | {k: v for key, one in schema.items() for k, v in _descriptions(one, f"{path}.{key}").items()}


@pytest.mark.parametrize(
    "changes", [{}, UNKNOWN, SLOWER, UNCERTIFIED, TOO_SLOW, FAST_ENOUGH, LOSSLESS, UNTESTED, FRONT]
)
def test_saved_profiles_match_the_schema(changes: dict[str, Any]) -> None:
    assert schema_errors(json.loads(profile(changes).model_dump_json()), json.loads(committed(SCHEMA_VERSION))) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"outcome": "splendid"}, "$.outcome"),
        ({"speed.sd": "fast"}, "$.speed.sd"),
        ({"accuracy.target": 1.5}, "$.accuracy.target"),
        ({"surprise": 1}, "$.surprise"),
        ({"speed.intervals.sd": [50.0]}, "$.speed.intervals"),
        ({"schema_version": 1}, "$.schema_version"),
        ({"digest": "5"}, "$.digest"),
    ],
)
def test_the_schema_refuses(changes: dict[str, Any], fault: str) -> None:
    assert fault in " ".join(schema_errors(values(changes), json.loads(committed(SCHEMA_VERSION))))


@pytest.mark.parametrize("name", ["schema_version", "digest"])
def test_a_file_must_have_what_python_sets_by_itself(name: str) -> None:
    content = values()
    del content[name]
    assert schema_errors(content, json.loads(committed(SCHEMA_VERSION))) == [f"$.{name} is missing"]


@pytest.mark.parametrize("changes", [{}, UNCERTIFIED, FRONT])
def test_a_full_validator_agrees(changes: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(committed(SCHEMA_VERSION))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(profile(changes).model_dump_json()))


def test_the_schema_of_old_files_still_describes_them() -> None:
    schema = json.loads(committed(1))
    assert schema_errors(old(), schema) == []
    assert schema_errors(values(), schema)  # the present one is another
    broken = copy.deepcopy(old())
    del broken["rule"]
    assert schema_errors(broken, schema) == ["$.rule is missing"]


def test_old_files_load() -> None:
    loaded = ThresholdProfile.load(OLD)
    assert (loaded.schema_version, loaded.outcome) == (4, "certified-speed-unknown")
    assert not loaded.met  # nothing binds it
    assert (loaded.threshold, loaded.sd_draft_length, loaded.seeds) == (0.0625, 5, 1)
    assert (loaded.certificate.acc, loaded.certificate.guarantee) == ("retention", "population")
    assert (loaded.acceptance, loaded.effort, loaded.certificate.attempt) == (None, None, None)
    kept = old()
    del kept["schema_version"]
    assert json.loads(loaded.model_dump_json()).items() >= {k: kept[k] for k in ("rule", "threshold", "seed")}.items()
    assert loaded.certificate.level == pytest.approx(0.05)


def test_files_of_schema_2_load_and_mean_the_same() -> None:
    content, loaded = json.loads(EARLIER.read_text(encoding="utf-8")), ThresholdProfile.load(EARLIER)
    assert schema_errors(content, json.loads(committed(2))) == []
    assert [p.forecast for p in loaded.curve] == [p.pop("tokens_per_second") for p in content["curve"]]
    assert _kept(content | NOW, json.loads(loaded.model_dump_json())) == []
    assert (loaded.effective_rule, loaded.effective_draft_length, loaded.lossy) == ("fsd-coupled", 2, True)
    assert (loaded.threshold, loaded.certificate.certified) == (0.9942314547331697, True)
    assert not loaded.at(min_acc=0.7, certified=False).certified


def test_files_of_schema_3_load_and_mean_the_same() -> None:
    content, loaded = json.loads(LAST.read_text(encoding="utf-8")), ThresholdProfile.load(LAST)
    assert schema_errors(content, json.loads(committed(3))) == []
    assert _kept(content | NOW, json.loads(loaded.model_dump_json())) == []
    assert loaded.digest is None


def _kept(before: Any, now: Any, name: str = "$") -> list[str]:
    """Where `now` does not hold what `before` does; it may hold more."""
    if isinstance(before, dict):
        return [fault for key in before for fault in _kept(before[key], now.get(key), f"{name}.{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = zip(before, now, strict=True)
        return [fault for i, (b, n) in enumerate(pairs) for fault in _kept(b, n, f"{name}.{i}")]
    return [] if before == now else [f"{name} was {before!r} and is {now!r}"]


@pytest.mark.parametrize(("speed", "outcome"), [(None, "not-certified"), (90.0, "too-slow")])
def test_old_files_without_a_threshold_load(tmp_path: Path, speed: float | None, outcome: str) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(not_granted(speed)))
    loaded = ThresholdProfile.load(tmp_path / "profile.json")
    assert loaded.outcome == outcome
    assert not loaded.met


def test_upgrading_does_not_change_its_argument_nor_the_current_schema() -> None:
    content = old()
    upgrade(content)
    assert content == old()
    assert upgrade(values()) == values()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [({"schema_version": 1}, "created: Field required"), (old() | {"speed": 3}, "speed: Input should be")],
)
def test_a_bad_old_file_is_one_line(tmp_path: Path, content: dict[str, Any], complaint: str) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=complaint) as raised:
        ThresholdProfile.load(tmp_path / "profile.json")
    assert "\n" not in str(raised.value)
