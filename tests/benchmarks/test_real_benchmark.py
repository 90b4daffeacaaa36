"""`benchmarks/real.py`, on the bundled pair: its figures are those of the engine, and it goes on where it was."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fsd_calib import CostModel, SpeculativeDecoder, load_task
from fsd_calib.tasks.base import Task
from fsd_calib.tasks.split import tuning_of
from fsd_data import pair_paths
from lib.common.forked_programs import run
from lib.real.blocks import RULE, Blocks
from lib.real.points import Measured
from lib.real.stopping import gains, stopper_of
from lib.rules.stored import Stored
from lib.rules.texts import Texts
from support.paths import BENCHMARKS

SIZE, LENGTH, BLOCKS = 4, 5, (0, 1)
COSTS = CostModel(draft_step=1.0, verify=5.0)


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(*pair_paths(), draft_length=LENGTH, device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def task(decoder: SpeculativeDecoder) -> Task:
    return load_task("arithmetic", seed=5, limit=SIZE * len(BLOCKS), tokenizer=decoder.tokenizer)


@pytest.mark.parametrize(("temperature", "score"), [(0.0, "margin"), (0.6, "cactus")])
def test_what_is_measured_at_a_threshold_is_what_the_engine_decodes_there(
    decoder: SpeculativeDecoder, task: Task, tmp_path: Path, temperature: float, score: str
) -> None:
    blocks = Blocks(decoder.with_config(temperature=temperature), task, tmp_path, tmp_path / "traces", SIZE)
    of = next(each for each in blocks.passes(LENGTH) if score in each.scores)
    for block in BLOCKS:
        blocks.decode(block, of)
    measured = Measured(blocks, BLOCKS, of, COSTS)
    prompts, ids = [problem.prompt for problem in task.problems], [problem.id for problem in task.problems]

    def decoded(**how: object) -> tuple[list[bool], float]:
        results = blocks.decoder.generate(prompts, task.max_new_tokens, ids=ids, stop=task.stop, **how)  # type: ignore[arg-type]
        tokens, rounds = sum(result.emitted for result in results), sum(result.rounds for result in results)
        correct = [task.grade(problem, result.text) for problem, result in zip(task.problems, results, strict=True)]
        return correct, tokens / rounds

    target, _ = decoded(rule="target")
    assert measured.target.tolist() == target
    points = [point for point in measured.points() if point["score"] == score]
    assert all(point["replayed"] > 1 for point in points)
    assert points[-1]["threshold"] == math.inf
    assert [point["threshold"] for point in points] == sorted({point["threshold"] for point in points})
    for point in points:
        correct, tokens_per_round = decoded(rule=RULE, score=score, threshold=point["threshold"])
        assert point["tokens_per_round"][0] == pytest.approx(tokens_per_round)
        assert point["lost"] == np.sum(np.array(target) & ~np.array(correct))
        assert point["gained"] == np.sum(~np.array(target) & np.array(correct))


def test_a_block_is_decoded_once_and_joins_those_before(
    decoder: SpeculativeDecoder, task: Task, tmp_path: Path
) -> None:
    blocks = Blocks(decoder, task, tmp_path, tmp_path / "traces", SIZE)
    of = blocks.passes(LENGTH)[0]
    blocks.decode(0, of)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    shutil.rmtree(tmp_path / "traces")  # as on another machine
    again = Blocks(decoder, task, tmp_path, tmp_path / "traces", SIZE)
    for block in BLOCKS:
        again.decode(block, of)
    files = {path: changed for path, changed in files.items() if path.exists()}
    assert files
    assert files.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}.items()
    assert again.thresholds == blocks.thresholds  # which the first block tells
    base, texts, *_ = again.texts(BLOCKS, of).values()
    assert base["problem"].tolist() == list(range(len(task.problems)))
    assert sorted(set(texts["problem"].tolist())) == list(range(len(task.problems)))


def test_a_block_that_was_cut_off_keeps_what_is_finished_and_counts_when_it_is_whole(
    decoder: SpeculativeDecoder, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = Blocks(decoder, task, tmp_path, tmp_path / "traces", SIZE)
    of = blocks.passes(LENGTH)[0]
    blocks.decode(0, of, until=0.0)
    assert not blocks.stored(0, of).numbers

    def cut_off(own: Stored, finished: Sequence[tuple[int, Texts]]) -> None:
        if list(blocks.stored(0, of).numbers):
            raise KeyboardInterrupt
        store(own, finished)

    store = Stored._store
    monkeypatch.setattr(Stored, "_store", cut_off)
    with pytest.raises(KeyboardInterrupt):
        blocks.decode(0, of)
    monkeypatch.undo()
    (kept,) = blocks.stored(0, of).numbers
    assert not blocks.is_whole(0, of)
    before = blocks.stored(0, of).columns()[0]["tokens"].tolist()
    blocks.decode(0, of)
    assert blocks.is_whole(0, of)
    texts = blocks.stored(0, of).columns()[0]
    assert texts["tokens"][texts["problem"] == kept].tolist() == before


def test_processes_that_share_a_folder_lose_and_double_nothing(
    decoder: SpeculativeDecoder, task: Task, tmp_path: Path
) -> None:
    blocks = Blocks(decoder, task, tmp_path, tmp_path / "traces", SIZE)
    of = blocks.passes(LENGTH)[0]
    blocks.decode(0, of)
    texts = blocks.stored(0, of).columns()[0]
    again = Blocks(decoder, task, tmp_path / "again", tmp_path / "traces", SIZE)
    again.decode(0, of)
    for part in sorted(again.stored(0, of)._folder.glob("*.parquet")):  # as another process would, meanwhile
        shutil.copy(part, blocks.stored(0, of)._folder / part.name)
    assert blocks.stored(0, of).columns()[0]["problem"].tolist() == texts["problem"].tolist()


@pytest.mark.slow
def test_a_predictor_of_other_problems_ends_drafts_no_worse_than_a_fixed_length(
    decoder: SpeculativeDecoder, task: Task, tmp_path: Path
) -> None:
    blocks = Blocks(decoder, task, tmp_path, tmp_path / "traces", SIZE)
    others = load_task("arithmetic", seed=6, limit=300, tokenizer=decoder.tokenizer)
    training = replace(others, problems=tuple(tuning_of(others)))
    assert not {problem.id for problem in training.problems} & {problem.id for problem in task.problems}
    found = gains(blocks, BLOCKS, stopper_of(blocks, training, COSTS, tmp_path / "stopping"), COSTS)
    assert [each["threshold"] for each in found] == [-1.0, *blocks.thresholds["js"]]
    assert found[0]["fixed"] == (1.0, 1.0, 1.0)  # which is compared with itself
    assert all(each["stopped_over_fixed"].value > 0.95 for each in found)


@pytest.mark.slow
def test_the_smoke_run_measures_all_scores_and_goes_on_where_it_was(tmp_path: Path) -> None:
    out, texts = tmp_path / "found.json", tmp_path / "texts"
    folders = ("--seen", str(texts), "--traces", str(tmp_path / "traces"))
    given = ("--quick", "--pair", *map(str, pair_paths()), *folders, "--out", str(out))
    first = run(BENCHMARKS / "real.py", *given)
    assert first.returncode == 0, first.stderr
    assert str(tmp_path) not in out.read_text()
    cells = json.loads(out.read_text())["cells"]
    assert [cell["temperature"] for cell in cells] == [0.0] * 3 + [0.6] * 4  # a table for each pass
    parts = sorted(texts.rglob("*.parquet"))
    assert run(BENCHMARKS / "real.py", *given).returncode == 0
    assert sorted(texts.rglob("*.parquet")) == parts
    assert [cell["points"][0]["lost"] for cell in json.loads(out.read_text())["cells"]] == [
        cell["points"][0]["lost"] for cell in cells
    ]


@pytest.mark.slow
def test_the_smoke_run_of_other_drafters_compares_them(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    folders = ("--seen", str(tmp_path / "seen"), "--traces", str(tmp_path / "traces"))
    done = run(BENCHMARKS / "real_drafts.py", "--quick", "--pair", *map(str, pair_paths()), *folders, "--out", str(out))
    assert done.returncode == 0, done.stderr
    drafters = json.loads(out.read_text())["drafters"]
    assert [each["drafter"] for each in drafters] == ["model", "model", "ngram", "ngram"]
    assert drafters[0]["tokens_per_round"] > drafters[2]["tokens_per_round"]
