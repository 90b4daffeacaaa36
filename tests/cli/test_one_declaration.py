"""A field that is added to a model in one place is an option, a key of files, a keyword, and saved."""

from __future__ import annotations

import subprocess
import sys

import pytest

# `fsd_calib.calibrate_options` with one line more, before anything imports it.
PROGRAM = """
import inspect, sys, tempfile, types
from importlib.util import find_spec
from pathlib import Path

path = Path(find_spec("fsd_calib.calibrate_options").origin)
field = '    colour: Annotated[str, Option("What colour it has.", DECODING)] = "red"\\n'
before = "    device: Device = None\\n    dtype: Dtype = None\\n    data"
source = path.read_text(encoding="utf-8")
assert source.count(before) == 1
module = types.ModuleType("fsd_calib.calibrate_options")
module.__file__ = str(path)
sys.modules["fsd_calib.calibrate_options"] = module
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
