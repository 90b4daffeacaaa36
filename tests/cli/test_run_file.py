"""The run file: what it takes is what the command takes, from one declaration, and its mistakes are told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.output_folder import identity_of
from fsd_calib.calibration.run_file import save_run
from fsd_calib.cli import calibrate, in_turn
from fsd_calib.cli.console import run
from fsd_calib.search.max_speed import MaxSpeed
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape
from support.calibration.profiles import profile
from support.messages import error_line
from support.models import tiny_calibration

# `fsd_calib.options.run_config` with one line more, before anything imports it.
PROGRAM = """
import inspect, sys, tempfile, types
from importlib.util import find_spec
from pathlib import Path

path = Path(find_spec("fsd_calib.options.run_config").origin)
field = '    colour: Annotated[str, Option("What colour it has.", DECODING)] = "red"\\n'
before = "    device: Device = None\\n    dtype: Dtype = None\\n    data"
source = path.read_text(encoding="utf-8")
assert source.count(before) == 1
module = types.ModuleType("fsd_calib.options.run_config")
module.__file__ = str(path)
sys.modules["fsd_calib.options.run_config"] = module
exec(compile(source.replace(before, field + before), str(path), "exec"), module.__dict__)

import typer
from fsd_calib import RunConfig, calibrate
from fsd_calib.calibration.run_file import read_run_file, saved
from fsd_calib.cli.calibrate import app
from fsd_calib.cli.request import Request
from fsd_decoding.model_options import USUAL_LOADING

options = {option: each for each in typer.main.get_command(app).params for option in each.opts}
assert options["--colour"].help == "What colour it has."
assert (options["--colour"].default, options["--colour"].rich_help_panel) == ("red", "Decoding")
file = Path(tempfile.mkdtemp()) / "run.yaml"
file.write_text("run: {colour: blue}")
assert read_run_file(file).run.given == {"colour": "blue"}
assert inspect.signature(calibrate).parameters["colour"].default == "red"
assert RunConfig.over({}, {"colour": "green"}).colour == "green"
assert saved(RunConfig(colour="green"))["colour"] == "green"
# An option goes before the file, and the file before the default.
asked = [Request({"colour": "green"}, USUAL_LOADING, file=read_run_file(file)),
         Request({}, USUAL_LOADING, file=read_run_file(file)), Request({}, USUAL_LOADING)]
assert [each.run.colour for each in asked] == ["green", "blue", "red"]
"""


@pytest.mark.slow
def test_a_field_in_one_place_is_found_in_all_four() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr


EVERYTHING = [
    "--task", "arithmetic", "--min-acc", "0.9", "--confidence", "0.9", "--target", "t", "--draft", "a", "--draft", "b",
    "--attn", "sdpa", "--draft-attn", "eager", "--rule", "fsd,fsd-sd", "--score", "tv", "--draft-length", "2-4",
    "--threshold-policy", "constant,schedule", "--temperature", "0.6", "--top-k", "9", "--seed", "7", "--seeds", "2",
    "--limit", "500", "--timing", "none", "--compile", "off", "--workers", "1", "--storage", "study.db",
    "--dtype", "float32",
]  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Calibration]:
    """The calibrations that commands ask for, none of which is run."""
    found: list[Calibration] = []

    def only_note(calibration: Calibration, engines: Sequence[str], **_: Any) -> tuple[list[Any], list[str]]:
        found.append(replace(calibration, config=calibration.config.changed(progress=None)))
        return [], []

    monkeypatch.setattr(in_turn, "run", only_note)
    monkeypatch.chdir(tmp_path)
    return found


def calibrated(*arguments: str | Path) -> int:
    return run(calibrate.app, calibrate.NAME, [str(argument) for argument in arguments])


def test_what_is_saved_asks_for_the_same(asked: list[Calibration], tmp_path: Path) -> None:
    assert calibrated(*EVERYTHING, "--out", "out") == 0
    saved = (tmp_path / "out" / "run.yaml").read_text()
    assert calibrated("--config", tmp_path / "out") == 0
    first, again = asked
    assert (again.goal, again.decoding, again.draft) == (first.goal, first.decoding, first.draft)
    assert identity_of(again) == identity_of(first)
    assert again.config.changed(out=None, storage=None) == first.config.changed(out=None, storage=None)
    assert (again.config.path("out"), again.config.storage) == (tmp_path / "out", str(tmp_path / "study.db"))
    assert (tmp_path / "out" / "run.yaml").read_text() == saved


def test_shapes_of_trees_are_saved_and_read(asked: list[Calibration]) -> None:
    assert calibrated("--task", "arithmetic", "--min-acc", "0.9", "--tree", "chain", "--tree", "2,6", "--out", "o") == 0
    assert calibrated("--config", "o") == 0
    assert [each.decoding.tree for each in asked] == [(None, TreeShape(2, 6))] * 2


@pytest.mark.parametrize(("written", "shapes"), [
    ("2,6", TreeShape(2, 6)), ("chain", None), ("[chain, '2,6']", (None, TreeShape(2, 6))),
])  # fmt: skip
def test_shapes_of_trees_are_written_as_on_the_command_line(
    asked: list[Calibration], tmp_path: Path, written: str, shapes: Any
) -> None:
    (tmp_path / "mine.yaml").write_text(f"task: arithmetic\ngoal: {{min_acc: 0.9}}\ndecoding:\n  tree: {written}\n")
    assert calibrated("--config", tmp_path / "mine.yaml") == 0
    assert asked[0].decoding.tree == (shapes if isinstance(shapes, tuple) else (shapes,))


def test_options_go_before_the_file(asked: list[Calibration], tmp_path: Path) -> None:
    assert calibrated(*EVERYTHING, "--out", "out") == 0
    options = ["--min-speed", "60", "--limit", "40", "--score", "js", "--temperature", "0", "--timing", "run",
               "--draft", "c", "--seed", "0", "--out", "other", "--attn", "eager"]  # fmt: skip
    assert calibrated("--config", "out/run.yaml", *options) == 0
    file, mixed = asked
    assert (mixed.goal.min_acc, mixed.goal.min_speed, mixed.goal.confidence) == (None, 60, 0.9)
    assert (mixed.config.limit, mixed.config.timing, mixed.config.seeds) == (40, "run", 2)
    assert (mixed.decoding.score, mixed.decoding.rule) == (("js",), file.decoding.rule)
    assert (mixed.decoding.sampling, mixed.decoding.seed, mixed.draft) == (Sampling(), 0, ["c"])
    assert (mixed.config.path("out"), mixed.config.loading.target.attn) == (Path("other"), "eager")


def test_a_file_may_say_little_and_what_no_option_says(asked: list[Calibration], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("goal: {min_acc: 0.9}\nrun: {trials: 3, engine: [fsd-calib]}\n")
    assert calibrated("--config", "mine.yaml", "--task", "arithmetic", "--temperature", "0.6") == 0
    assert calibrated("--task", "arithmetic", "--temperature", "0.6", "--min-acc", "0.9") == 0
    of_file, of_options = asked
    assert of_file.config.trials == 3
    assert replace(of_file, config=of_file.config.changed(trials=30)) == of_options


def test_a_setting_to_certify_may_be_named_in_a_file(asked: list[Calibration], tmp_path: Path) -> None:
    profile({"task": "arithmetic", "score": "js", "threshold": 0.05}).save(tmp_path / "found.json")
    options = ["--certify", "found.json", "--min-acc", "0.5", "--limit", "400", "--out", "out"]
    for engines in ([], ["--engine", "fsd-calib,vllm", "--engine-args", '{"max_model_len": 512}']):
        assert calibrated(*options, *engines) == 0
        assert calibrated("--config", "out/run.yaml") == 0
    first, again, of_two, of_two_again = asked
    assert again.fixed == first.fixed
    assert (again.goal, again.decoding) == (first.goal, first.decoding)
    assert yaml.safe_load((tmp_path / "out" / "run.yaml").read_text())["run"]["engine"] == ["fsd-calib", "vllm"]
    assert (of_two_again.config.engine, of_two_again.config.engine_args) == ("vllm", of_two.config.engine_args)
    assert calibrated("--config", "out/run.yaml", "--rule", "fsd") == 2


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("goal: {minacc: 1}", "key 'goal.minacc' is not known; the keys there are min_acc, min_speed, pareto, acc"),
        ("{a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1}", "; and 2 more; see docs/commands.md"),
        ("goal: {min_acc: '0.9'}", "key 'goal.min_acc' is '0.9'; input should be a valid number"),
        ("goal: {min_acc: true}", "key 'goal.min_acc' is True; input should be a valid number"),
        ("run: {limit: 0}", "key 'run.limit' is 0; input should be greater than or equal to 1"),
        ("run: {timing: fast}", "key 'run.timing' is 'fast'; input should be 'run', 'careful' or 'none'"),
        ("decoding: {draft_length: [2, two]}", "key 'decoding.draft_length.1' is 'two'"),
        (
            "decoding: {sampling: {temp: 1}}",
            "key 'decoding.sampling.temp' is not known; the keys there are temperature",
        ),
        (
            "decoding: {tree: [2, 6]}",
            "key 'decoding.tree' is [2, 6]; write a shape as '2,6', in quotes (top_k,nodes), or chain",
        ),
        (
            "decoding: {tree: 6}",
            "key 'decoding.tree' is 6; write a shape as '2,6'",
        ),
        (
            "decoding: {tree: {top_k: 2, nodes: 6}}",
            "key 'decoding.tree' is {'top_k': 2, 'nodes': 6}; write a shape as",
        ),
        ("certify: x\ndecoding: {rule: fsd}", "certify takes the profile's own setting and searches nothing"),
        ("goal: [", "line 1: not YAML"),
        ("- 1", "it holds no keys; see docs/commands.md"),
        ("task: arithmetic\ntask: gsm8k", "line 2: not YAML (key 'task' is written twice)"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_mistake_is_told_with_file_key_and_rule(
    content: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_text(content)
    assert calibrated("--config", path) == 2
    line = error_line(capsys)
    assert line.startswith(f"fsd-calibrate: error: run file {path}")
    assert complaint in line


def test_a_password_is_not_saved(asked: list[Calibration], tmp_path: Path) -> None:
    assert calibrated(*EVERYTHING, "--out", "out", "--storage", "postgresql://me:secret@host/db") == 0
    saved = (tmp_path / "out" / "run.yaml").read_text()
    assert "secret" not in saved
    assert "--storage is not repeated here" in saved
    assert "storage" not in yaml.safe_load(saved)["run"]


def test_what_no_file_can_name_is_not_saved_and_replaces_what_was(asked: list[Calibration], tmp_path: Path) -> None:
    assert calibrated(*EVERYTHING, "--out", "out") == 0
    (named,) = asked
    for changes in ({"target": tiny_calibration.far_apart()[0]}, {"task": tiny_calibration.task(8)},
                    {"config": named.config.changed(model_kwargs={"other": MaxSpeed})}):  # fmt: skip
        save_run(named)
        assert (tmp_path / "out" / "run.yaml").exists()
        save_run(replace(named, **changes))
        assert not (tmp_path / "out" / "run.yaml").exists()
