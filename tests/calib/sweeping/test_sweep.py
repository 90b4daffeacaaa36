"""Sweeps of the bundled pair: rows are what decoding shows, nothing is decoded twice, what was seen is recorded."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.session import DECODINGS
from fsd_calib.cli import sweep as sweep_app
from fsd_calib.cli.console import run
from fsd_calib.measuring.speed import Interval
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.sweeping.sweep import Grid, Row, sweep
from fsd_calib.sweeping.tables import as_csv, as_json, as_latex, records
from fsd_calib.tasks.split import tuning_of
from fsd_data import pair_paths
from support.messages import error_line

GRID = Grid("fsd-coupled", ("js", "doubt"), (0.05, 0.4, math.inf), (3, 5))
LIMIT = 80


def calibration(tmp_path: Path, **space: Any) -> Calibration:
    config = RunConfig(limit=LIMIT, workers=1, timing="none", cache=tmp_path / "cache", state=tmp_path / "state")
    space = {"score": GRID.scores, "draft_length": GRID.draft_lengths, **space}
    target, draft = map(str, pair_paths())
    goal = Goal(min_acc=0.5, explore=True)
    return Calibration("arithmetic", target, draft, goal, SearchSpace(**space), config)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return sweep(calibration(tmp_path_factory.mktemp("sweep")), GRID)


def test_rows_are_the_target_and_of_each_length_the_lossless_rule_and_every_score_and_threshold(
    rows: list[Row],
) -> None:
    asked = [(row.setting.rule, row.setting.score, row.setting.threshold, row.setting.draft_length) for row in rows[1:]]
    expected = [
        each
        for length in (3, 5)
        for each in [
            ("coupled", "js", None, length),
            *(("fsd-coupled", score, threshold, length) for score in ("js", "doubt") for threshold in GRID.thresholds),
        ]
    ]
    assert rows[0].setting.rule == "target"
    assert asked == expected
    assert len({row.problems for row in rows}) == 1


def test_a_row_is_what_a_decoder_shows_of_the_same_problems(rows: list[Row]) -> None:
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths())
    task = load_task("arithmetic", limit=LIMIT, tokenizer=decoder.tokenizer)
    problems = tuning_of(task)
    prompts, ids = [problem.prompt for problem in problems], [problem.id for problem in problems]

    def decoded(threshold: float | None, rule: str) -> tuple[list[bool], float]:
        results = decoder.generate(
            prompts, task.max_new_tokens, ids=ids, stop=task.stop, rule=rule, threshold=threshold, draft_length=3
        )
        right = [task.grade(problem, result.text) for problem, result in zip(problems, results, strict=True)]
        return right, sum(result.emitted for result in results) / sum(result.rounds for result in results)

    alone, _ = decoded(None, "target")
    (_, exact), (right, lossy) = decoded(None, "coupled"), decoded(0.4, "fsd-coupled")
    row = next(row for row in rows if row.setting.threshold == 0.4 and row.setting.draft_length == 3)
    assert row.accuracy.value == pytest.approx(sum(right) / len(right))
    assert row.retention is not None
    assert row.retention.value == pytest.approx(sum(right) / sum(alone))
    assert row.churn == pytest.approx(sum(a != b for a, b in zip(right, alone, strict=True)) / len(right))
    assert row.tokens_per_round is not None
    assert row.tokens_per_round.value == pytest.approx(lossy)
    assert row.gain is not None
    assert row.gain.value == pytest.approx(lossy / exact)
    lossless = next(row for row in rows if row.setting.rule == "coupled")
    assert lossless.gain == Interval(1.0, 1.0, 1.0)


def test_nothing_is_decoded_again_and_a_larger_sweep_decodes_what_is_new(tmp_path: Path) -> None:
    small, larger = (Grid("fsd-coupled", ("js",), thresholds, (3,)) for thresholds in ((0.05,), (0.05, 0.4)))
    before = sweep(calibration(tmp_path), small)
    kept = stored(tmp_path)
    assert sweep(calibration(tmp_path), small) == before
    assert stored(tmp_path) == kept
    more = sweep(calibration(tmp_path), larger)
    assert more[: len(before)] == before
    assert kept < stored(tmp_path) <= kept + more[-1].problems  # some texts are the same at both T


def stored(tmp_path: Path) -> int:
    """How many texts the cache has."""
    with sqlite3.connect(tmp_path / "cache" / DECODINGS) as cache:
        ((count,),) = cache.execute("SELECT count(*) FROM decodings")
    return int(count)


def test_problems_that_were_decoded_lossily_do_not_certify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the tuning part a calibration of the same models still has all of the others; of all problems it has none."""
    from fsd_calib.cli.calibrate import NAME, app

    plan = ["--task=arithmetic", "--min-acc=0.8", f"--limit={LIMIT}", "--workers=1", "--plan", "--quiet"]
    plan += [f"--cache={tmp_path / 'cache'}", f"--state={tmp_path / 'state'}"]
    sweep(calibration(tmp_path), Grid("fsd-coupled", ("js",), (0.4,), (3,)))
    assert run(app, NAME, plan) == 0
    sweep(calibration(tmp_path), Grid("fsd-coupled", ("js",), (0.4,), (3,), part="all"))
    capsys.readouterr()
    assert run(app, NAME, plan) == 2
    assert re.search(r"there are 0 problems to certify on \(\d+ of \d+ were tuned on before: .*\)", error_line(capsys))


def test_csv_latex_and_json_have_the_same_figures(rows: list[Row]) -> None:
    found = list(csv.DictReader(io.StringIO(as_csv(rows, 0.9))))
    assert json.loads(as_json(rows, 0.9), parse_constant=pytest.fail) == {"rows": records(rows, 0.9)}
    for row, record, line in zip(rows, records(rows, 0.9), found, strict=True):
        assert record["task"] == line["task"] == "arithmetic"
        assert float(line["accuracy"]) == record["accuracy"] == row.accuracy.value
        assert line["threshold"] == ("" if row.setting.threshold is None else str(row.setting.threshold))
        assert (line["confidence"], line["seeds"]) == ("0.9", "1")
    hostile = [row._replace(task=r"a_b{1}~^\$#&%") for row in rows]
    assert r"a\_b\{1\}\textasciitilde{}\textasciicircum{}\textbackslash{}\$\#\&\%, " in as_latex(hostile, 0.9)
    latex = as_latex(rows, 0.9)
    assert latex.isascii()
    body = [line for line in latex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert len(body) == len(rows) + 1
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {7}
    assert not [line for line in latex.splitlines() if re.search(r"(?<!\\)%", line) and not line.startswith("% ")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--thresholds", "0.1,x"], "--thresholds is '0.1,x'; it must be numbers of at least 0"),
        (["--thresholds", "-1"], "it must be numbers of at least 0"),
        (["--thresholds", "1", "--rule", "sd"], "--rule is 'sd'; it must be one of fsd"),
        (["--thresholds", "1", "--score", "jz"], "--score is 'jz'"),
        (["--thresholds", "1", "--out", "x.csv"], "--out takes --format csv, latex or json"),
        (["--thresholds", "1", "--format", "xml"], "--format is 'xml'"),
        (["--thresholds", "1", "--json", "--format", "csv"], "--json prints the result on stdout"),
        (["--thresholds", "1", "--engine", "server"], "--engine is 'server'; a sweep has one of fsd-calib and vllm"),
        (["--thresholds", "1", "--engine", "fsd-calib,vllm"], "--engine is 'fsd-calib,vllm'"),
        (["--thresholds", "1", "--format", "csv", "--out", "/proc/none/x.csv"], "cannot be written"),
        (["--thresholds", "1", "--confidence", "1"], "--confidence is 1.0"),
        (["--thresholds", "1", "--target", "x"], "--draft is missing"),
    ],
)
def test_mistakes_are_said_in_a_line(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(sweep_app.app, sweep_app.NAME, ["--tasks", "arithmetic", *options]) == 2
    assert says in error_line(capsys)


def test_the_command_writes_what_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "--tasks",
        "arithmetic",
        "--thresholds",
        "0.1",
        "--limit",
        "40",
        "--engine",
        "fsd-calib",
        "--workers",
        "1",
        "--quiet",
    ]
    asked += [f"--cache={tmp_path / 'cache'}", f"--state={tmp_path / 'state'}"]
    assert run(sweep_app.app, sweep_app.NAME, asked) == 0
    assert "fsd-coupled" in capsys.readouterr().out
    assert run(sweep_app.app, sweep_app.NAME, [*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["result"]["rows"]
    out = tmp_path / "tables" / "sweep.csv"
    assert run(sweep_app.app, sweep_app.NAME, [*asked, "--format", "csv", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert [float(line["accuracy"]) for line in csv.DictReader(out.open())] == [row["accuracy"] for row in told]


def test_a_later_task_that_cannot_be_read_is_refused_before_the_first_is_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(f'data: {tmp_path}/none.jsonl\nprompt: "{{{{ question }}}}"\ngrader: exact\n')
    target, draft = map(str, pair_paths())
    models = ["--target", target, "--draft", draft, "--workers", "1"]
    folders = ["--cache", str(tmp_path / "cache"), "--state", str(tmp_path / "state")]
    asked = [
        "--tasks",
        f"arithmetic,{own}",
        "--thresholds",
        "0.1",
        "--limit",
        "20",
        *models,
        *folders,
    ]
    assert run(sweep_app.app, sweep_app.NAME, asked) == 2
    assert "none.jsonl" in error_line(capsys)
    assert not (tmp_path / "state").exists()
