"""`fsd-check`: planted lossy servers are found, and honest ones with noise of their own are not called so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsd_calib.cli.check import app
from fsd_calib.cli.console import run
from support.servers.stand_in import standing_in

FEW = ["--prompts", "30", "--times", "3"]


def check(url: str, reference: str, *options: str) -> int:
    return run(app, "fsd-check", ["--url", url, "--reference", reference, "--model", "model", *FEW, *options])


def test_a_lossless_server_is_lossless(capsys: pytest.CaptureFixture[str]) -> None:
    with standing_in() as reference, standing_in() as server:
        assert check(server.url, reference.url) == 0
    assert "Lossless, as far as the noise of both sides lets tell" in capsys.readouterr().out


def test_a_planted_setting_is_found_with_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    with standing_in() as reference, standing_in(value=0.2) as server:
        assert check(server.url, reference.url, "--json") == 3
    found = json.loads(capsys.readouterr().out)["result"]
    assert not found["lossless"]
    assert found["p_value"] <= found["level"] == 0.01
    shares = found["compared"]["texts"]
    assert shares["reference"] == shares["other"] == 0 < shares["between"]
    for parting in found["partings"]:
        assert parting["at"] == 0
        assert (parting["reference"][:4], parting["other"][:2]) == ("Then", "So")
        assert parting["gap"] is None  # the stand-in tells no log probabilities


@pytest.mark.parametrize("temperature", ["0", "0.7"])
def test_noise_that_both_sides_have_is_no_loss(temperature: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Both change half of their texts by chance, and a third of the outcomes' wording. False-alarm probability .01."""
    noisy: dict[str, Any] = {"changed": lambda value: 0.5}
    with standing_in(**noisy) as reference, standing_in(**noisy) as server:
        for one in (reference, server):
            one.behaviour.always_noisy = True
        assert check(server.url, reference.url, "--temperature", temperature) == 0
    assert "Lossless" in capsys.readouterr().out


def test_sampled_texts_are_compared_by_their_beginnings_and_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    with standing_in(changed=lambda value: 0.2) as reference, standing_in(changed=lambda value: 0.6) as server:
        assert check(server.url, reference.url, "--temperature", "0.7") == 3
        bodies = server.behaviour.asked
    printed = capsys.readouterr().out
    assert "beginnings" in printed
    assert "outcomes" in printed
    assert {body["max_tokens"] for body in bodies} == {12, 160}
    assert len({body["seed"] for body in bodies}) == len(bodies)  # else their noise would be that of the other side


def test_a_switch_of_one_server_is_checked_against_its_reference(tmp_path: Path) -> None:
    with standing_in(value=0.3) as server:
        knob = {"name": "t", "values": [0.3], "request": {"vllm_xargs": {"fsd_threshold": "{T}"}}}
        content = {"server": {"url": server.url, "model": "model", "knob": knob,
                              "reference": {"request": {"vllm_xargs": {"fsd": "off"}}}}}  # fmt: skip
        file = tmp_path / "server.yaml"
        file.write_text(yaml.safe_dump(content))
        assert run(app, "fsd-check", ["--config", str(file), *FEW]) == 3  # as it answers by itself
        assert run(app, "fsd-check", ["--config", str(file), "--value", "0", *FEW]) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "either --config"),
        (["--url", "http://a/v1"], "--url takes --reference"),
        (["--url", "nowhere", "--reference", "http://b/v1", "--model", "m"], "must begin with http"),
        (["--url", "http://127.0.0.1:9/v1", "--reference", "http://127.0.0.1:9/v1", "--model", "m"], "does not answer"),
        (
            ["--url", "http://a/v1", "--reference", "http://b/v1", "--model", "m", "--times", "1"],
            "twice from each side",
        ),
        (["--url", "http://a/v1", "--reference", "http://b/v1", "--model", "m", "--level", "2"], "above 0 and below 1"),
    ],
)
def test_mistakes_are_said_in_a_line(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, "fsd-check", options) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fsd-check: error:")
    assert says in last


def test_too_few_prompts_to_show_anything_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with standing_in() as reference, standing_in() as server:
        assert check(server.url, reference.url, "--prompts", "1") == 2
    assert "1 prompts, asked 3 times from each side, show p = 0.1 at least" in capsys.readouterr().err


@pytest.mark.parametrize("way", ["live", "restart"])
def test_a_knob_of_all_requests_is_no_second_side(tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Else the reference would be compared with itself."""
    told: dict[str, Any] = {
        "live": {"url": "http://a/set", "body": {"t": "{T}"}},
        "restart": {"command": "serve {T}", "health": "http://a/health"},
    }
    knob = {"name": "t", "values": [0.0, 0.3], way: told[way]}
    file = tmp_path / "server.yaml"
    content = {"server": {"url": "http://a/v1", "model": "model", "knob": knob, "reference": {"value": 0.0}}}
    file.write_text(yaml.safe_dump(content))
    assert run(app, "fsd-check", ["--config", str(file)]) == 2
    assert "holds for all requests" in capsys.readouterr().err
