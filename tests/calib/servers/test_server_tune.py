"""`fsd-tune`: the number of drafted tokens that a stand-in is fastest with, whose starts are real processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from fsd_calib.cli.console import run
from fsd_calib.cli.tune import app
from fsd_calib.measuring.speed import Interval
from fsd_calib.servers.load import Load
from fsd_calib.servers.tune import Cell, Found, Launch
from lib.common.forked_programs import environment
from support.ports import answers, free_port


@pytest.mark.slow
def test_the_fastest_number_of_drafted_tokens_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 4 a token takes 2.8e-4 s; at 1 and 8 half as much more for each one away. Error probability: .05 a load."""
    port = free_port()
    root = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    command = f"{sys.executable} -m support.servers.stand_in --port {port} --length {{K}}"
    launches = {"commands": {"draft": command}, "lengths": [1, 4, 8], "health": f"{root}/health"}
    file = tmp_path / "server.yaml"
    server = {"url": f"{root}/v1", "model": "model", "launches": launches, "reference": {"request": {"x": 1}}}
    file.write_text(yaml.safe_dump({"server": server}))
    asked = ["--config", str(file), "--batch", "1,4", "--out", str(tmp_path / "tune")]
    assert run(app, "fsd-tune", [*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["result"]
    for load in ("1 stream, lossless", "4 streams, lossless"):
        ways = [way for way in found["ways"] if f"{way['load']}, {way['mode']}" == load]
        assert ways[0]["length"] == 4
        assert ways[0]["command"] == command.replace("{K}", "4")
        assert [way["may_be_fastest"] for way in ways] == [True, False, False]
    assert Path(found["plot"]).read_bytes().startswith(b"<svg")
    assert not answers(port)


def test_ways_are_dropped_once_they_are_shown_to_be_slower() -> None:
    fast, near, slow = (Launch("draft", length) for length in (4, 3, 1))
    rates = [100.0, 110.0, 95.0, 105.0, 98.0, 120.0, 101.0, 99.0]
    found = Found(
        {fast: rates, near: [rate * 1.001 for rate in rates[::-1]], slow: [rate / 2 for rate in rates]},
        left=[fast, near, slow],
    )
    found.drop_slower()
    assert found.left == [fast, near]
    ratio = found.times_best()[slow]
    assert isinstance(ratio, Interval)
    assert ratio.high < 1


def test_after_one_start_only_what_is_much_slower_is_dropped() -> None:
    """Starts of one command differ, which the pieces of one start do not show."""
    fast, near = Launch("draft", 4), Launch("draft", 3)
    once = Found({fast: [100.0] * 8, near: [97.0] * 8}, left=[fast, near])
    once.drop_slower()
    assert once.left == [fast, near]
    twice = Found({fast: [100.0] * 16, near: [97.0] * 16}, left=[fast, near])
    twice.drop_slower()
    assert twice.left == [fast]


def test_ways_without_a_place_for_the_number_are_one_way_each() -> None:
    from fsd_calib.options.server import Launches
    from fsd_calib.servers.tune import launches_of

    launches = Launches(commands={"ngram": "serve --k {K}", "none": "serve"}, lengths=[5, 2], health="http://a")
    assert launches_of(launches) == [Launch("ngram", 2), Launch("ngram", 5), Launch("none", None)]
    assert [way.command(launches) for way in launches_of(launches)] == ["serve --k 2", "serve --k 5", "serve"]
    assert str(Cell(Load(4), "lossless")) == "4 streams, lossless"
