"""A predictor's folder: it is restored as saved, and anything else is refused."""

from __future__ import annotations

import io
import json
import os
import pickletools
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fsd_common.addons import addon
from fsd_common.errors import UsageError
from fsd_decoding.scores import SCORES_VERSION
from fsd_predictors import files
from fsd_predictors.features import FEATURES
from fsd_predictors.models.registry import MODELS
from fsd_predictors.predictor import Predictor
from support.messages import usage_error, usage_error_of
from support.models.tiny_models import word_tokenizer
from support.models.tiny_predictors import MODELS_IN_HAND, TOKENIZER, facts, predictor, rows
from support.own_code import on_path
from support.paths import EXAMPLES


@pytest.mark.parametrize("kind", MODELS)
def test_a_predictor_is_restored_as_saved(kind: str, tmp_path: Path) -> None:
    saved = predictor(kind)
    saved.save(tmp_path / "new" / "folder", {"card.md": b"# card"})
    loaded = Predictor.load(tmp_path / "new" / "folder")
    assert loaded.facts == saved.facts
    assert loaded.fingerprint == saved.fingerprint
    assert loaded.scale.to_json() == saved.scale.to_json()
    values, _ = rows(len(FEATURES), seed=2)
    for mine, theirs in ((saved.accepting, loaded.accepting), (saved.next, loaded.next)):
        assert np.array_equal(mine.predict_proba(values), theirs.predict_proba(values))


def test_the_fingerprint_is_of_all_but_the_card(tmp_path: Path) -> None:
    saved = predictor()
    saved.save(tmp_path, {"card.md": b"# card"})
    (tmp_path / "card.md").write_text("a remark of mine")
    assert Predictor.load(tmp_path).fingerprint == saved.fingerprint
    others = [predictor(seed=1), replace(saved, accepting=predictor().next), predictor(rule="fsd")]
    assert len({saved.fingerprint, *(other.fingerprint for other in others)}) == 4


def test_no_file_is_a_pickle(tmp_path: Path) -> None:
    predictor().save(tmp_path)
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match=r"."):
            pickletools.dis(path.read_bytes(), out=io.StringIO())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", MODELS)
def test_a_missing_file_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    predictor(kind).save(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(UsageError, match=rf"{path.name} cannot be read \(No such file"):
            Predictor.load(tmp_path)
        path.write_bytes(whole)
    Predictor.load(tmp_path)


def test_an_altered_description_is_refused(tmp_path: Path) -> None:
    predictor().save(tmp_path)
    path = tmp_path / "predictor.json"
    path.write_text(path.read_text().replace('"trees": 7', '"trees": 8'))
    with pytest.raises(UsageError, match=r"predictor\.json was altered since it was written"):
        Predictor.load(tmp_path)


def resealed(folder: Path, **changes: Any) -> None:
    """Changes the content of predictor.json and its checksum."""
    content = json.loads((folder / "predictor.json").read_text()) | changes
    (folder / "predictor.json").write_text(json.dumps(content | {"sha256": files.checksum(content)}))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"schema_version": 2}, "has schema_version 2, but this fsd-calib reads 1; upgrade fsd-calib"),
        ({"schema_version": 0}, "predictor.json is not valid: its schema_version is 0"),
        ({"schema_version": "1"}, "predictor.json is not valid: its schema_version is '1'"),
        ({"facts": {}}, "is not valid: kind: Field required"),
        ({"models": {}}, "is not valid: KeyError"),
        ({"models": {"accepting": {"kind": "oracle"}, "next": {}}}, "is not valid: KeyError"),
    ],
)
def test_an_invalid_description_is_refused(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    predictor().save(tmp_path)
    resealed(tmp_path, **changes)
    with pytest.raises(UsageError) as refusal:
        Predictor.load(tmp_path)
    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ('{"schema_version": 1, "schema_version": 1}', "'schema_version' is there twice"),
        ('{"schema_version": NaN}', "NaN is not a number of JSON"),
    ],
)
def test_a_description_that_is_not_plain_json_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "predictor.json").write_text(text)
    assert usage_error(lambda: Predictor.load(tmp_path)).endswith(f"predictor.json is not JSON: {complaint}")


@pytest.mark.parametrize("name", ["predictor.json", "accepting.txt"])
def test_a_file_of_a_terabyte_is_refused(name: str, tmp_path: Path) -> None:
    predictor().save(tmp_path)
    os.truncate(tmp_path / name, 1 << 40)
    assert f"{name} cannot be read (it has 1,099,511,627,776 bytes" in usage_error(lambda: Predictor.load(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["predictor.json", "accepting.txt"])
def test_a_fifo_is_refused_at_once(name: str, tmp_path: Path) -> None:
    """Nothing writes to it, so reading it would wait for ever."""
    predictor().save(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    load = "from fsd_predictors.predictor import Predictor\nPredictor.load(sys.argv[1])"
    assert f"{name} cannot be read (it is not a regular file)" in usage_error_of(load, tmp_path)


def test_no_folder_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"predictor\.json cannot be read \(No such file"):
        Predictor.load(tmp_path / "nowhere")


def test_a_predictor_replaces_only_a_predictor(tmp_path: Path) -> None:
    first, second = predictor(seed=1), predictor(seed=2)
    first.save(tmp_path, {"card.md": b"1", "old.png": b"1"})
    second.save(tmp_path, {"card.md": b"2"})
    assert Predictor.load(tmp_path).fingerprint == second.fingerprint
    assert names(tmp_path) == ["accepting.txt", "card.md", "next.txt", "predictor.json"]
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match=r"holds 'thesis\.tex', which is not a file of a predictor; choose another"):
        first.save(tmp_path)
    assert Predictor.load(tmp_path).fingerprint == second.fingerprint


def test_a_failed_save_leaves_the_earlier_predictor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = predictor(seed=1)
    first.save(tmp_path)
    before = names(tmp_path)
    full = OSError(28, "No space left on device")

    def sync(file: Any) -> None:
        raise full

    monkeypatch.setattr("fsd_common.files.sync", sync)
    with pytest.raises(UsageError, match=r"cannot be written \(No space left on device\); free space or choose"):
        predictor(seed=2).save(tmp_path)
    assert names(tmp_path) == before
    assert Predictor.load(tmp_path).fingerprint == first.fingerprint


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        predictor().save(tmp_path / "file")


def test_its_own_models_and_rule_pass() -> None:
    for rule in ("fsd-coupled", "coupled"):  # the second is the first at T < 0
        predictor().check(*MODELS_IN_HAND, TOKENIZER, rule, "js")


@pytest.mark.parametrize("rule", ["fsd", "fsd-sd", "sd", "target", "sd-block"])
def test_another_rule_is_refused(rule: str) -> None:
    with pytest.raises(UsageError, match=f"is for rule 'fsd-coupled', not '{rule}'"):
        predictor().check(*MODELS_IN_HAND, TOKENIZER, rule, "js")


def test_other_models_are_refused_by_name() -> None:
    target, draft = MODELS_IN_HAND
    mine = predictor()
    with pytest.raises(UsageError, match=r"predictor's target is .* with fingerprint .*, this target has"):
        mine.check(draft, draft, TOKENIZER, "fsd-coupled", "js")
    with pytest.raises(UsageError, match=r"predictor's draft is .* with fingerprint .*, this draft has"):
        mine.check(target, target, TOKENIZER, "fsd-coupled", "js")
    with pytest.raises(UsageError, match="predictor was trained with another tokenizer"):
        mine.check(target, draft, word_tokenizer(39), "fsd-coupled", "js")
    with pytest.raises(UsageError, match="knows scores js, not 'tv'"):
        mine.check(target, draft, TOKENIZER, "fsd-coupled", "tv")


def test_another_version_of_the_scores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = predictor(scores_version=SCORES_VERSION + 1)
    with pytest.raises(UsageError, match="predictor's scores are version 2, these are version 1; train again"):
        mine.check(*MODELS_IN_HAND, TOKENIZER, "fsd-coupled", "js")


def test_a_predictor_of_other_features_is_refused(tmp_path: Path) -> None:
    swapped = {"accepting": FEATURES, "next": (*FEATURES[:-2], *reversed(FEATURES[-2:]))}
    predictor(features=swapped).save(tmp_path / "other")
    with pytest.raises(UsageError, match="was trained with other features than this version's; train again"):
        Predictor.load(tmp_path / "other")


def test_a_predictor_is_for_the_code_that_it_was_trained_with() -> None:
    with on_path(EXAMPLES):
        known = addon("score", "new_score:Behind")
        assert known is not None
        for then, fits in ((known, True), (replace(known, source="0" * 64), False)):
            own = facts(scores=("js", "new_score:Behind@9"), addons=(then,))
            own.check(own.target, own.draft, TOKENIZER, "fsd-coupled", "js")
            with (
                nullcontext() if fits else pytest.raises(UsageError, match="the predictor was made with another source")
            ):
                own.check(own.target, own.draft, TOKENIZER, "fsd-coupled", "new_score:Behind@9")
