"""Flipped bits in every kind of file that is read back: what comes out is what was written, or something says so.

Whatever bits of a file are flipped, its reader refuses it in one line, or returns the content as it was written, or
less of it with a warning in one line (caches: without). A file that is set aside keeps its bytes.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsd_calib.calibration.run_facts import Pace, Timings, begin_or_resume
from fsd_calib.certification.holdout import Holdout
from fsd_calib.engines.base import KeyedPrompt
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.report.record import Differences, RunRecord, Step
from fsd_calib.report.run_folder import load_run, save_record
from fsd_collectors.replay.cost import CostModel
from fsd_common.errors import UsageError
from fsd_common.user_folders import CACHE_VARIABLE
from fsd_decoding.loading import load_model
from fsd_decoding.models import weights_digest
from fsd_decoding.models.fingerprint import model_fingerprint
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_predictors.heads.folder import HeadFolder
from fsd_predictors.models.registry import MODELS
from fsd_predictors.predictor import Predictor
from lib.attacks import subjects
from support.calibration.cached_results import KEY, result
from support.calibration.ledgers import content_of, write_ledger
from support.calibration.profiles import profile
from support.calibration.search_worker import run_search, world
from support.models.tiny_models import llama
from support.models.tiny_predictors import predictor
from support.traces.rows import ON_POLICY, manifest, write

Content = dict[str, Any]  # by part


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        make: Writes files into a folder.
        read: Returns their content.
        noticed: Least and largest share of the damaged files that are not read as they were written.
        examples: How many damaged files are read.
        bits: How many of a file are flipped at most.
        forgets: Whether less may come out without a word.
        files: Those that are damaged.
        says: One of them is in a refusal, or the file's name.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], Content]
    noticed: tuple[float, float] = (0.3, 1.0)
    examples: int = 60
    bits: int = 1
    forgets: bool = False
    files: str = "**/*"
    says: tuple[str, ...] = ()
    slow: bool = False


# --- profiles and records ---------------------------------------------------------------------------------


def make_record(folder: Path) -> None:
    profile().save(folder / "profile.json")
    differences = Differences(source="tuning", problems=9, texts=0, shown=())
    steps = (Step(name="baseline", seconds=1.5), Step(name="search", seconds=12.25))
    save_record(
        RunRecord(profile=str(profile().digest), trials=(), rungs=(), steps=steps, scales=(),
                  replayed=(), differences=differences), folder,
    )  # fmt: skip


def read_record(folder: Path) -> Content:
    run = load_run(folder)
    if run.lacks:
        warnings.warn(run.lacks, stacklevel=1)
    return {} if run.record is None else {"record": run.record}


# --- decodings, attempts and facts ------------------------------------------------------------------------

MANY = [KeyedPrompt(i, f"problem {i}") for i in range(300)]
TIMINGS = Timings((CostModel(0.001, 0.004, 0.00002),), Pace(0.01, 0.02))


def make_cache(folder: Path) -> None:
    rng = random.Random(0)
    with ResultCache(folder / "cache") as store:
        for asked in MANY:
            text = "".join(rng.choices("abc \n0123456789é", k=rng.randrange(400)))
            store.add(KEY, asked, 0.2, result(text, rng.random(), 2.0))


def read_cache(folder: Path) -> Content:
    """A tenth of its rows."""
    with ResultCache(folder / "cache") as store:
        return {MANY[i].prompt: kept for i, kept in store.find(KEY, MANY[::10], 0.2).items()}


def read_ledger(folder: Path) -> Content:
    found = content_of(folder / "ledger")
    if isinstance(found, str):
        raise UsageError(found)
    return {"ledger": found}


def make_facts(folder: Path) -> None:
    begin_or_resume(folder, "name", "asked", cast(Holdout, subjects.NoLedger()), lambda: TIMINGS)


def study(name: str, scheme: str) -> Kind:
    """A search of four trials, in a journal or a database."""
    asked: dict[str, Any] = {}

    def make(folder: Path) -> None:
        run_search(f"{scheme}{folder / name}", world(), 4)
        asked.update(subjects.study_in(f"{scheme}{folder / name}"))

    def read(folder: Path) -> Content:
        return subjects.read_study(f"{scheme}{folder / name}", asked)

    return Kind(make, read, (0.1, 1.0), 40, bits=16, forgets=True, files=name, says=("stud",), slow=True)


# --- models -----------------------------------------------------------------------------------------------


def make_digests(folder: Path) -> None:
    llama(3).save_pretrained(folder / "model")
    read_digests(folder)


def read_digests(folder: Path) -> Content:
    return {"fingerprint": model_fingerprint(load_model(folder / "model", "cpu", None))}


def make_training(folder: Path) -> None:
    training = HeadFolder(folder, subjects.HEAD_FACTS)
    with training.held():
        training.add([([n, 1, 2], [3, n]) for n in range(20)])
        training.keep({"weights": torch.arange(300.0), "epoch": 2})


def make_predictor(kind: str, folder: Path) -> None:
    predictor(kind).save(folder)


def read_predictor(folder: Path) -> Content:
    loaded = Predictor.load(folder)
    return {"facts": loaded.facts, "fingerprint": loaded.fingerprint, "scale": loaded.scale.to_json()}


ON = manifest(hidden=4, **ON_POLICY)
KINDS = {
    "profile": Kind(
        lambda folder: profile().save(folder / "profile.json"),
        lambda folder: {"profile": ThresholdProfile.load(folder)}, (0.9, 1.0), 400,
    ),
    "record of a run": Kind(make_record, read_record, (0.9, 1.0), 100, files="run.json"),
    "ledger": Kind(
        lambda folder: write_ledger(folder / "ledger"), read_ledger, (0.33, 1.0), 150,
        says=("is damaged", "is of another version", "cannot be used"),
    ),
    "facts of a run": Kind(
        make_facts, lambda folder: subjects.read_facts(folder, {"runs": ["name"]}), (0.67, 1.0), 150
    ),
    "result cache": Kind(make_cache, read_cache, (0.2, 0.9), 100, bits=16, forgets=True),
    "journal of a study": study("study.log", ""),
    "database of a study": study("study.sqlite", "sqlite:///"),
    "traces": Kind(
        lambda folder: write(folder, ON), lambda folder: subjects.read_traces(folder, {}), (0.1, 1.0), slow=True
    ),
    "verified traces": Kind(
        lambda folder: write(folder, ON), lambda folder: subjects.verify_traces(folder, {}), (0.9, 1.0), slow=True
    ),
    "digests of weights": Kind(make_digests, read_digests, (0.0, 0.0), 20, forgets=True, files="cache/fingerprints/*"),
    "head in training": Kind(
        make_training, lambda folder: subjects.read_training(folder, {}), files="unfinished/*", says=("unfinished",)
    ),
    **{f"predictor, {kind}": Kind(partial(make_predictor, kind), read_predictor, (0.9, 1.0), 30, slow=True)
       for kind in MODELS},
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name, marks=[pytest.mark.slow] * kind.slow) for name, kind in KINDS.items()]
)
def test_flipped_bits_are_noticed_or_harmless(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(weights_digest, "_COARSEST_CLOCK", 0)  # files may be as new as they are here
    kind.make(tmp_path)
    sound = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    original, found = kind.read(tmp_path), Counter[str]()
    assert original
    files = [path for path in sorted(tmp_path.glob(kind.files)) if sound.get(path)]

    @settings(max_examples=kind.examples, derandomize=True, database=None)
    @given(st.data())
    def read(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(files))
        content = bytearray(sound[path])
        anywhere = data.draw(st.randoms(use_true_random=True))  # drawn numbers would be small ones mostly
        for _ in range(data.draw(st.integers(1, kind.bits))):
            bit = anywhere.randrange(8 * len(content))
            content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            found[outcome(kind, tmp_path, path, original)] += 1
            for aside in tmp_path.rglob(f"{path.name}.damaged-*"):
                assert aside.read_bytes() == content
        finally:
            for other in tmp_path.rglob("*"):
                if other.is_file() and other not in sound:
                    other.unlink()
            for other, whole in sound.items():
                if not other.exists() or other.read_bytes() != whole:
                    other.write_bytes(whole)

    read()
    least, most = kind.noticed
    assert least <= 1 - found["harmless"] / found.total() <= most, found


def outcome(kind: Kind, folder: Path, damaged: Path, original: Content) -> str:
    """Returns what came of a reading, which must be one of these."""
    refusal = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            content = kind.read(folder)
        except UsageError as error:
            refusal = str(error)
    if refusal is not None:
        assert refusal.isprintable()  # one line
        assert any(part in refusal for part in (*kind.says, damaged.name)), refusal
        return "refused"
    assert all(original.get(name) == part for name, part in content.items())
    lines = [str(warning.message) for warning in caught]
    assert all(line.isprintable() for line in lines)
    if len(content) == len(original):
        assert not lines
        return "harmless"
    assert kind.forgets or lines
    return "told" if lines else "forgotten"
