"""Models are the same where all their weights are, wherever they were loaded from; caches and the ledger go by that."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from fsd_calib import calibrate
from fsd_calib.calibration.session import Session, open_session
from fsd_calib.engines.own import OwnEngine
from fsd_calib.options.run_config import RunConfig
from fsd_common.progress.chosen import Lines
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.models.fingerprint import family_id
from support.models import tiny_calibration
from support.models.tiny_calibration import far_apart
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related

TASK = tiny_calibration.task(40)


@contextmanager
def session(cache: Path, pair: tuple[Any, Any], log: StringIO | None = None) -> Iterator[Session]:
    decoder = SpeculativeDecoder(*pair, word_tokenizer(), seed=0)
    progress = None if log is None else Lines(log)
    with open_session(OwnEngine(decoder, TASK), TASK, RunConfig(cache=cache, state=cache, progress=progress)) as made:
        yield made


def reused(cache: Path, pair: tuple[Any, Any], log: StringIO | None = None) -> tuple[int, int]:
    """Measures three settings; returns how many decodings the cache had, and how many it had not."""
    with session(cache, pair, log) as made:
        for setting in (
            made.setting("target"), made.setting("sd", 3), made.setting("fsd-coupled", 3).at(0.1)
        ):  # fmt: skip
            made.tuning.measure(setting)
        return made.decode.reused, made.decode.decoded


def edited(role: int) -> tuple[Any, Any]:
    """The pair with half a row of one embedding changed, which no sample of 64 elements holds."""
    pair = related(seed=1, spread=0.05)
    before = family_id(pair[role])
    with torch.no_grad():
        pair[role].model.embed_tokens.weight[7, 17:] *= 1.5
    assert family_id(pair[role]) == before
    return pair


def test_nothing_of_another_model_is_reused(tmp_path: Path) -> None:
    pair = related(seed=1, spread=0.05)
    _, decoded = reused(tmp_path, pair)
    assert reused(tmp_path, related(seed=1, spread=0.05)) == (decoded, 0)
    assert reused(tmp_path, edited(role=0)) == (0, decoded)
    of_target = decoded // 3
    assert reused(tmp_path, edited(role=1)) == (of_target, decoded - of_target)  # the target alone is the same


def test_attempts_with_a_model_that_hardly_differs_count(tmp_path: Path) -> None:
    """One element changed does not make a certification part unused."""
    with session(tmp_path, related(seed=1, spread=0.05)) as made:
        made.tuned.mark(TASK.problems[:5])
        usable = made.holdout.of_run("new").problems
    with session(tmp_path, edited(role=0)) as made:
        assert made.holdout.of_run("new").problems == usable


@pytest.mark.slow
def test_the_same_models_of_another_folder_are_the_same_run(tmp_path: Path) -> None:
    """One cache and one study: the second calibration finds the first one's run, attempt and trials."""
    for name, model in zip(("target", "draft"), far_apart(), strict=True):
        model.save_pretrained(tmp_path / "models" / name)
        word_tokenizer().save_pretrained(tmp_path / "models" / name)
    shutil.copytree(tmp_path / "models/target", tmp_path / "elsewhere/big")
    shutil.copytree(tmp_path / "models/draft", tmp_path / "elsewhere/small")
    torch.set_num_threads(1)
    places = [("models/target", "models/draft"), ("elsewhere/big", "elsewhere/small")]
    first, second = (
        calibrate(
            tiny_calibration.task(240), target=tmp_path / target, draft=tmp_path / draft, out=tmp_path / f"out{number}",
            cache=tmp_path / "cache", state=tmp_path / "cache", storage=f"sqlite:///{tmp_path}/study.sqlite",
            min_acc=0.5, serve_batch=8, draft_length=4, score="js", trials=4, dtype="float64",
        )
        for number, (target, draft) in enumerate(places)
    )  # fmt: skip
    assert first.target.id != second.target.id
    assert first.target.fingerprint == second.target.fingerprint
    same = {"created", "outcome", "threshold", "certificate", "costs", "tokens_per_round"}
    assert second.model_dump(include=same) == first.model_dump(include=same)
    assert first.certificate.attempt == 1
    (run,), (again,) = ([path.name for path in (tmp_path / f"out{number}").glob("run-*.json")] for number in range(2))
    assert run == again
