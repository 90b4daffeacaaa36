"""A real server of vLLM that follows a profile, asked over HTTP by the openai client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import BadRequestError

from fsd_calib.cli.check import app
from fsd_calib.cli.console import run
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.options.server import ServerDescription
from fsd_calib.servers.calibration import ServerCalibration
from support.vllm_engine import arithmetic, engine, sampling, saved
from support.vllm_server import Server, following, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with following(folder, {"fsd": {"profile": saved(folder)}}) as started:
        yield started


def test_mixed_requests_get_the_texts_of_an_engine_in_one_process(server: Server, tmp_path: Path) -> None:
    """Asked at once, streaming and not: lossy, exact and stricter ones; sampled ones that are exact beside them."""
    task, offline = arithmetic(32), engine(saved(tmp_path))
    kinds: list[dict[str, Any] | None] = [None, {"fsd": "off"}, {"fsd_threshold": 0.02}]
    prompts = [problem.prompt for problem in task.problems]
    expected = [offline.generate(prompts, sampling(options), use_tqdm=False) for options in kinds]

    def ask(i: int) -> str:
        prompt = prompts[i]
        if i % 4 == 3:
            return str(server.complete(prompt, {"fsd": "off"}, temperature=0.7).choices[0].text)
        if i % 8 < 4:
            return str(server.complete(prompt, kinds[i % 4]).choices[0].text)
        return "".join(part.choices[0].text for part in server.complete(prompt, kinds[i % 4], stream=True))

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(ask, range(32)))
    for i in range(32):
        if i % 4 < 3:
            assert texts[i] == expected[i % 4][i].outputs[0].text
    assert all(texts[3::4])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"fsd": "maybe"}, "fsd in vllm_xargs is 'maybe'"),
        ({"fsd_threshold": "a lot"}, "fsd_threshold in vllm_xargs is 'a lot'"),
        ({"fsd_treshold": 0.1}, "vllm_xargs has 'fsd_treshold'"),
        ({"fsd": "off", "fsd_threshold": 0.1}, "give one of them"),
    ],
    ids=str,
)
def test_options_that_are_wrong_are_answered_400_in_one_line(
    server: Server, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        server.complete("What", options)
    assert caught.value.status_code == 400
    message = str(caught.value.body["message"] if isinstance(caught.value.body, dict) else caught.value.body)
    assert named in message
    assert len(message.splitlines()) == 1


def test_sampled_requests_need_a_probabilistic_draft(server: Server) -> None:
    with pytest.raises(BadRequestError, match="'probabilistic' in --speculative-config"):
        server.complete("What", temperature=0.7)
    assert server.complete("What", {"fsd": "off"}, temperature=0.7).choices[0].text


def test_chat_requests_take_the_same_options(server: Server) -> None:
    message: Any = [{"role": "user", "content": arithmetic(1).problems[0].question}]
    answers = [
        server.client.chat.completions.create(
            model=server.model, messages=message, max_tokens=60, temperature=0, extra_body={"vllm_xargs": options}
        ).choices[0].message.content
        for options in ({"fsd": "off"}, {"fsd_threshold": 5.0})
    ]  # fmt: skip
    assert answers[0] != answers[1]
    with pytest.raises(BadRequestError, match="give one of them"):
        server.client.chat.completions.create(
            model=server.model, messages=message, extra_body={"vllm_xargs": {"fsd": "off", "fsd_threshold": 1}}
        )


def test_a_stream_that_the_client_leaves_is_aborted_and_stops_nobody_else(server: Server) -> None:
    """vLLM counts what clients leave neither as finished nor as aborted: it must stop running, and not be counted."""
    task, most, texts = arithmetic(6), 340, 160  # so many that they do not end before a slow client leaves
    alone = [server.complete(p.prompt).choices[0].text for p in task.problems[1:]]
    before = _finished_and_generated(server)
    stream = server.complete(
        [task.problems[0].prompt] * texts, stream=True, max_tokens=most, stop=None, extra={"ignore_eos": True}
    )
    with ThreadPoolExecutor(5) as pool:
        others = pool.map(lambda p: server.complete(p.prompt), task.problems[1:])
        next(iter(stream))
        stream.close()
        answers = list(others)
    assert [answer.choices[0].text for answer in answers] == alone

    def nothing_runs() -> bool:
        answers.append(server.complete("What", max_tokens=1))  # vLLM tells what runs only as steps end
        return server.total("vllm:num_requests_running") == 0

    wait_until(nothing_runs)
    finished, generated = (now - then for now, then in zip(_finished_and_generated(server), before, strict=True))
    assert finished == len(answers)
    assert 0 < generated - sum(answer.usage.completion_tokens for answer in answers) < texts * most


def _finished_and_generated(server: Server) -> tuple[float, float]:
    """Numbers of requests and of tokens."""
    return server.total("vllm:request_success_total"), server.total("vllm:generation_tokens_total")


def test_metrics_and_log_tell_what_was_done(server: Server) -> None:
    for problem in arithmetic(12, seed=5).problems:
        server.complete(problem.prompt)
    metrics = server.get("/metrics")
    counted = {
        outcome: server.metric(f'fsd:drafted_tokens_total{{engine="0",order="0",outcome="{outcome}"}}')
        for outcome in ("exact", "fuzzy", "rejected")
    }
    assert counted["exact"] > counted["fuzzy"] > 0
    assert counted["rejected"] > 0
    assert "vllm:spec_decode_num_accepted_tokens_total" in metrics
    assert "fsd:profile_info{" in metrics
    assert (
        0 < server.metric('fsd:accepted_score_mean{engine="0",order="0"}') <= 0.5
    )  # requests of other tests were looser than the profile
    (said,) = [line for line in server.log.splitlines() if "fsd: following profile" in line]
    assert "LOSSY, drafted tokens with js <= 0.075 are accepted" in said


def test_a_refused_server_ends_with_the_reason_as_its_last_line(tmp_path: Path) -> None:
    path = saved(tmp_path, {"target.fingerprint": "2-" + "0" * 64})
    with pytest.raises(RuntimeError) as caught, following(tmp_path, {"fsd": {"profile": path}}):
        pass
    last = str(caught.value).strip().splitlines()[-1]
    assert "UsageError: the profile's target is" in last
    assert "calibrate again" in last


def described(server: Server) -> ServerDescription:
    knob = {"name": "fsd_threshold", "values": [0.05, 0.3, 3.0], "request": {"vllm_xargs": {"fsd_threshold": "{T}"}}}
    reference = {"request": {"vllm_xargs": {"fsd": "off"}}}
    return ServerDescription.model_validate(
        {"url": f"{server.address}/v1", "model": server.model, "knob": knob, "reference": reference, "at_once": 16}
    )


def test_its_knob_is_calibrated_over_http(server: Server, tmp_path: Path) -> None:
    """What accepts everything loses most answers, and what accepts next to nothing none."""
    folders: dict[str, Any] = {name: tmp_path / name for name in ("out", "cache", "state")}
    goal = Goal(min_acc=0.8)
    config = RunConfig(engine="server", limit=120, **folders)
    asked = ServerCalibration("arithmetic", described(server), goal, SearchSpace(), config)
    profile = asked.run()
    assert profile.certificate.certified
    assert profile.value in (0.05, 0.3)
    assert profile.server.version.startswith("0.3")
    assert profile.numerical_churn is not None
    assert profile.numerical_churn.outcomes_flipped == 0
    assert {point.value for point in profile.curve} >= {profile.value}
    assert profile.speed is not None
    assert profile.speed.chosen.failed == 0
    assert profile.speed.over_reference > 0


@pytest.mark.parametrize(("value", "code"), [("0", 0), ("3", 3)])
def test_a_check_tells_a_lossy_setting_from_a_lossless_one(
    server: Server, tmp_path: Path, value: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(yaml.safe_dump({"server": described(server).model_dump(mode="json", exclude_unset=True)}))
    options = ["--config", str(file), "--value", value, "--prompts", "12", "--json"]
    assert run(app, "fsd-check", options) == code
    found = json.loads(capsys.readouterr().out)["result"]
    assert found["lossless"] == (code == 0)
    if code:
        gaps = [parting["gap"] for parting in found["partings"] if parting["gap"] is not None]
        assert gaps  # vLLM tells log probabilities
        assert min(gaps) >= 0
