"""`benchmarks/engines.py --pair`, with the bundled pair; without vLLM, whose claims are then not measured."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from fsd_data import pair_paths
from lib.common.forked_programs import run
from lib.peers import RealPair
from support.paths import BENCHMARKS

_ROOT = BENCHMARKS.parent


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A folder with both models."""
    for name, path in zip(("small", "large"), reversed(pair_paths()), strict=True):
        shutil.copytree(path, tmp_path / "pair" / name)
    return tmp_path / "pair"


def test_of_a_folder_the_larger_model_is_the_target(pair: Path) -> None:
    assert [Path(model).name for model in RealPair.of([pair], None).models] == ["large", "small"]
    chosen = RealPair.of([pair / "small", pair / "large"], None)
    assert [Path(model).name for model in chosen.models] == ["small", "large"]


def test_what_is_no_pair_is_refused(pair: Path) -> None:
    shutil.rmtree(pair / "small")
    with pytest.raises(ValueError, match="two folders"):
        RealPair.of([pair], None)


@pytest.mark.slow
def test_the_smoke_run_on_a_pair_measures_decoding_prefill_and_memory(pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    ran = run(
        BENCHMARKS / "engines.py", "--quick", "--pair", str(pair), "--present", str(_ROOT), "--out", str(out)
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(out.read_text())
    assert str(tmp_path) not in out.read_text()
    assert [one["batch"] for one in found["memory"]] == [1, 16]
    assert all(len(set(one["fingerprints"])) == 2 and one["taken"] > 0 for one in found["memory"])
    assert found["prefill"]["speed_up"]["median"] > 0
    assert set(found["sd_lengths"]) >= {"ours", "transformers"}
    for contest in found["contests"]:
        assert {one["tokens"] for one in contest["speeds"].values()} == {12 * contest["prompts"]}
        assert 0 < contest["speed_up"]["median"] < math.inf
