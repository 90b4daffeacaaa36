"""Calibrations of servers, of stand-ins whose loss at each value is known: what is certified, kept and resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsd_calib.calibration.run_file import read_run_file
from fsd_calib.cli.calibrate import app
from fsd_calib.cli.console import run
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.options.server import ServerDescription
from fsd_calib.servers import client as client_module
from fsd_calib.servers.calibration import ServerCalibration
from fsd_calib.servers.report import export
from fsd_common.errors import UsageError
from fsd_common.progress.base import Silent
from fsd_decoding.profile.server_profile import ServerProfile, load_any
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from lib.common.forked_programs import environment
from support.messages import usage_error
from support.paths import ROOT
from support.ports import answers, free_port
from support.servers.stand_in import StandIn, standing_in
from support.small_disks import small_disk


class Notes(Silent):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


VALUES = [0.1, 0.3, 0.5, 0.8, 1.0]
REQUEST: dict[str, Any] = {"vllm_xargs": {"fsd_threshold": "{T}"}}
OFF: dict[str, Any] = {"vllm_xargs": {"fsd": "off"}}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are short, and settings follow one another at once."""
    monkeypatch.setattr(client_module, "_PAUSE", 0.01)
    monkeypatch.setattr(client_module, "_RETRIES", 2)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("fsd_calib.servers.timer._REST", 0.0)
    monkeypatch.setattr("fsd_calib.servers.timer._LONG_REST", 0.0)


def described(server: StandIn, **changes: Any) -> ServerDescription:
    knob = {"name": "fsd_threshold", "values": VALUES, "request": REQUEST}
    usual = {"url": server.url, "model": "model", "knob": knob, "reference": {"request": OFF}, "at_once": 4}
    return ServerDescription.model_validate({**usual, **changes})


def calibration(server: ServerDescription, tmp_path: Path, limit: int = 300, **more: Any) -> ServerCalibration:
    of_goal: dict[str, Any] = {name: more.pop(name) for name in ("rate", "slo", "explore") if name in more}
    goal = Goal(min_acc=0.9, **of_goal)
    folders = {name: tmp_path / name for name in ("out", "cache", "state")}
    given: dict[str, Any] = {**folders, **more}
    config = RunConfig(engine="server", limit=limit, **given)
    return ServerCalibration("arithmetic", server, goal, SearchSpace(), config)


@pytest.mark.parametrize("endpoint", ["chat", pytest.param("completions", marks=pytest.mark.slow)])
def test_the_loosest_value_that_loses_nothing_is_certified(tmp_path: Path, endpoint: str) -> None:
    """Up to .5 nothing is lost; at .8 and 1 a third and a half is. False-alarm probability .05 by the certificate."""
    with standing_in() as server:
        profile = calibration(described(server, endpoint=endpoint), tmp_path).run()
        chats = any("messages" in body for body in server.behaviour.asked)
    assert chats == (endpoint == "chat")
    assert profile.outcome in ("certified-faster", "certified-speed-unknown")
    assert profile.value == 0.5
    assert profile.certificate.certified
    assert profile.certificate.counts.lost == 0
    assert profile.accuracy.target == 1.0
    assert profile.speed is not None
    assert profile.speed.streams == 1
    told = [figures.acceptance for figures in (profile.speed.reference, profile.speed.chosen)]
    assert [each and each.mean_acceptance_length for each in told] == pytest.approx([20 / 10, 20 / 6])
    assert {point.value for point in profile.curve if point.source == "certification"} == {0.5, None} - {None}
    assert profile.numerical_churn is not None
    assert profile.numerical_churn.texts_changed == 0
    saved = load_any(tmp_path / "out")
    assert saved == profile
    assert export(profile).endswith('{"vllm_xargs": {"fsd_threshold": 0.5}}')


def test_nothing_is_certified_where_every_value_loses(tmp_path: Path) -> None:
    with standing_in(wrong=lambda value: 0.4 if value else 0.0) as server:
        profile = calibration(described(server), tmp_path, limit=200).run()
    assert profile.outcome in ("not-certified", "lossless")
    assert profile.value is None
    assert not profile.met or profile.outcome == "lossless"
    assert export(profile).splitlines()[-1] == json.dumps(profile.reference)


@pytest.mark.slow
def test_a_live_knob_that_falls_is_turned_and_left_lossless(tmp_path: Path) -> None:
    """As SGLang's, whose fields the stand-in has: 1 is exact, and lower is looser."""
    with standing_in(flavour="sglang") as server:
        body = {"server_args": {"speculative_accept_threshold_single": "{T}"}}
        knob = {"name": "single", "values": [1.0, 0.7, 0.5, 0.1],
                "live": {"url": f"{server.root}/set_internal_state", "body": body}}  # fmt: skip
        profile = calibration(described(server, knob=knob, reference={"value": 1.0}), tmp_path).run()
        assert server.behaviour.value == 0.0
    assert profile.value == 0.5
    assert profile.knob.values == (1.0, 0.7, 0.5, 0.1)


@pytest.mark.slow
def test_a_server_is_started_for_each_value_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    command = f"{sys.executable} -m support.servers.stand_in --port {port} --value {{T}}"
    root = f"http://127.0.0.1:{port}"
    knob = {"name": "value", "values": [0.0, 0.4, 1.0], "restart": {"command": command, "health": f"{root}/health"}}
    server = ServerDescription.model_validate(
        {"url": f"{root}/v1", "model": "model", "knob": knob, "reference": {"value": 0.0}, "at_once": 4}
    )
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    profile = calibration(server, tmp_path, limit=150, timing="none").run()
    assert profile.value == 0.4
    assert not answers(port)


@pytest.mark.slow
def test_a_knob_in_a_file_of_options_is_set_by_rewriting_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As TensorRT-LLM's, whose command is the page's but for the program."""
    page = (ROOT / "docs" / "servers.md").read_text()
    (written,) = re.findall(r"(sed .*now\.yaml &&)\n +trtllm-serve MODEL (.*)", page)
    port = free_port()
    program = f"{sys.executable} -m support.servers.stand_in --port {port}"
    (tmp_path / "base.yaml").write_text("speculative_config:\n  decoding_type: MTP\n  relaxed_delta: 0.0\n")
    root = f"http://127.0.0.1:{port}"
    restart = {"command": f"cd {tmp_path} && {written[0]} {program} {written[1]}", "health": f"{root}/health"}
    server = ServerDescription.model_validate(
        {
            "url": f"{root}/v1", "model": "model", "at_once": 4, "reference": {"value": 0.0},
            "knob": {"name": "relaxed_delta", "values": [0.0, 0.4, 1.0], "restart": restart},
        }
    )  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    profile = calibration(server, tmp_path, limit=150, timing="none").run()
    assert profile.value == 0.4
    assert "relaxed_delta: 0" in (tmp_path / "now.yaml").read_text()


def test_explored_values_are_estimates(tmp_path: Path) -> None:
    with standing_in() as server:
        profile = calibration(described(server), tmp_path, explore=True, timing="none").run()
    assert profile.outcome == "untested"
    assert profile.value == 0.5
    assert profile.certificate.attempt is None


def test_speeds_are_of_the_load_that_is_asked_for(tmp_path: Path) -> None:
    with standing_in() as server:
        asked = calibration(described(server), tmp_path, rate=200.0, slo="ttft=1s,itl=1ms")
        profile = asked.run()
    assert profile.speed is not None
    assert (profile.speed.streams, profile.speed.rate) == (None, 200.0)
    assert profile.speed.slo == {"ttft": 1.0, "itl": 0.001}
    assert profile.speed.chosen.goodput is not None


def test_what_only_the_reference_answers_is_lost_and_the_reverse_is_left_out(tmp_path: Path) -> None:
    """One certification problem each: a fault for all requests under a setting, and for all of the reference's."""
    with standing_in() as server:
        asked = calibration(described(server), tmp_path, timing="none")
        parts = asked.parts()
        lost, left = (parts.certification[place].question for place in (0, 1))

        def fault(number: int) -> str | None:
            body = server.behaviour.asked[number]
            question = body["messages"][-1]["content"]
            lossless = body["vllm_xargs"].get("fsd") == "off"
            return "html" if (question == lost and not lossless) or (question == left and lossless) else None

        server.behaviour.fault = fault
        profile = asked.run()
    assert (profile.unanswered.chosen, profile.unanswered.reference) == (1, 1)
    counts = profile.certificate.counts
    assert (counts.lost, counts.both_wrong, counts.gained) == (1, 1, 0)


def test_the_same_command_goes_on_and_asks_nothing_again(tmp_path: Path) -> None:
    with standing_in() as server:
        first = calibration(described(server), tmp_path, timing="none").run()
        before = len(server.behaviour.asked)
        second = calibration(described(server), tmp_path, timing="none").run()
        again = len(server.behaviour.asked) - before
    assert again == 8  # the probes, losslessly and at the loosest value
    assert second.certificate == first.certificate
    assert second.value == first.value


def test_a_server_that_changed_is_noticed_and_nothing_is_reused(tmp_path: Path) -> None:
    """It says the same of itself, and its lossless texts are the same: the probes at the loosest value tell."""
    with standing_in() as server:
        assert calibration(described(server), tmp_path, timing="none").run().value == 0.5
        server.behaviour.wrong = lambda value: 0.6 if value else 0.0
        server.behaviour.changed = lambda value: 0.0
        notes = Notes()
        again = calibration(described(server), tmp_path, timing="none", out=tmp_path / "other", progress=notes).run()
    assert again.value is None
    assert again.effort.total.decoded > 100
    assert any("answers fixed prompts otherwise" in line for line in notes.lines)


def test_another_way_to_set_the_knob_is_another_attempt(tmp_path: Path) -> None:
    with standing_in() as server:
        assert calibration(described(server), tmp_path, timing="none").run().certificate.attempt == 1
        knob = {"name": "fsd_threshold", "values": VALUES, "request": {"vllm_xargs": {"fsd_threshold": "{T}", "x": 1}}}
        more: dict[str, Any] = {"out": tmp_path / "other", "timing": "none"}
        again = calibration(described(server, knob=knob), tmp_path, **more).run()
    assert again.certificate.attempt == 2
    assert again.effort.certification.decoded > 0


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    with standing_in(seconds=lambda value: 1e-3 / (1 + value)) as server:
        whole = calibration(described(server), tmp_path / "whole", timing="none").run()
        file = tmp_path / "server.yaml"
        description = described(server).model_dump(mode="json", exclude_unset=True)
        file.write_text(yaml.safe_dump({"task": "arithmetic", "server": description}))
        folders = [f"--{name}={tmp_path / 'killed' / name}" for name in ("out", "cache", "state")]
        options = ["--config", str(file), "--min-acc=0.9", "--limit=300", "--timing=none", *folders]
        command = [sys.executable, "-c", "from fsd_calib.cli.calibrate import main; main()", *options]
        for after in (150, 400, 600):
            before = len(server.behaviour.asked)
            process = subprocess.Popen(command, env=environment(), start_new_session=True)
            while process.poll() is None and len(server.behaviour.asked) - before < after:
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
            process.wait()
        subprocess.run(command, env=environment(), check=True)
    killed = ServerProfile.load(tmp_path / "killed" / "out")
    assert killed.certificate.counts == whole.certificate.counts
    assert killed.certificate.attempt == 1
    assert killed.value == whole.value


@pytest.mark.slow
def test_a_run_on_a_full_disk_says_so_and_goes_on_with_what_it_has(tmp_path: Path) -> None:
    with standing_in() as server:
        whole = calibration(described(server), tmp_path / "whole", timing="none").run()
        asked = len(server.behaviour.asked)
        with small_disk(tmp_path / "disk", 96) as enlarge:
            again = calibration(described(server), tmp_path / "disk", timing="none")
            said = usage_error(again.run)
            assert re.search("No space left on device.*the same command resumes", said)
            enlarge()
            found = again.run()
        assert len(server.behaviour.asked) < 2 * asked + 50  # beside what was asked as the disk was filled
    assert found.certificate.counts == whole.certificate.counts
    assert found.certificate.attempt == 1


def test_a_server_that_stops_answering_ends_the_run_with_what_it_has(tmp_path: Path) -> None:
    with standing_in() as server:
        server.behaviour.fault = lambda number: "503" if number > 300 else None
        with pytest.raises(UsageError, match=r"unanswered, the last: .*run the same command"):
            calibration(described(server), tmp_path, timing="none").run()
        server.behaviour.fault = lambda number: None
        assert calibration(described(server), tmp_path, timing="none").run().value == 0.5


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"device": "cpu"}, "device is given, and a server decodes as it was started"),
        ({"timing": "careful"}, "a server is none"),
    ],
)
def test_what_a_server_cannot_do_is_refused(tmp_path: Path, more: dict[str, Any], rule: str) -> None:
    with standing_in() as server, pytest.raises(UsageError, match=rule):
        calibration(described(server), tmp_path, **more)


def test_the_command_saves_what_it_was_asked_and_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEY", "hidden")
    with standing_in() as server:
        description = described(server, headers={"Authorization": "Bearer ${KEY}"})
        content = {"task": "arithmetic", "goal": {"min_acc": 0.9}, "run": {"limit": 200, "timing": "none"},
                   "server": description.model_dump(mode="json", exclude_unset=True)}  # fmt: skip
        Path("server.yaml").write_text(yaml.safe_dump(content))
        assert run(app, "fsd-calibrate", ["--config", "server.yaml"]) == 0
        assert run(app, "fsd-calibrate", ["--config", "fsd-profile/arithmetic-server", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "Certified at 95% confidence: fsd_threshold = 0.5 keeps at least 90%" in printed
    saved = read_run_file(Path("fsd-profile/arithmetic-server"))
    assert saved.job["server"].knob == description.knob
    assert not any(b"hidden" in file.read_bytes() for file in Path("fsd-profile").rglob("*") if file.is_file())
    with pytest.raises(UsageError, match="of a server's knob"):
        ThresholdProfile.load("fsd-profile/arithmetic-server")


@pytest.mark.parametrize("option", ["--rate=4", "--slo=ttft=1s"])
def test_a_load_of_servers_is_refused_for_other_engines(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, "fsd-calibrate", ["--task", "arithmetic", "--min-acc", "0.9", option]) == 2
    assert "is of a server's load" in capsys.readouterr().err


def test_another_server_that_says_the_same_is_told_by_what_it_answers(tmp_path: Path) -> None:
    """At another address, with the same cache and ledger."""
    with standing_in() as server, standing_in(wrong=lambda value: 0.6 if value else 0.0) as other:
        other.behaviour.changed = lambda value: 0.0
        assert calibration(described(server), tmp_path, timing="none").run().value == 0.5
        again = calibration(described(other), tmp_path, timing="none", out=tmp_path / "other").run()
    assert again.value is None
    assert again.effort.total.decoded > 100


def test_engine_server_needs_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, "fsd-calibrate", ["--engine", "server", "--task", "arithmetic", "--min-acc", "0.9"]) == 2
    assert "needs a description of the server" in capsys.readouterr().err
