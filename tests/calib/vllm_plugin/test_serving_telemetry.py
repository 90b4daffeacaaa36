"""What is counted of served tokens and texts, and that a front end of vLLM finds it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from torch import Tensor

from fsd_calib.vllm_plugin.draft_logits import Layout
from fsd_calib.vllm_plugin.judge import JudgedTokens
from fsd_calib.vllm_plugin.running_requests import RunningRequest, RunningRequests, describe
from fsd_calib.vllm_plugin.telemetry.counters import STEPS, read_counters
from fsd_calib.vllm_plugin.telemetry.metrics import NAMES, Acceptance, StepCounters, export_counters
from fsd_calib.vllm_plugin.telemetry.steps import Emitted, Step, StepLog
from fsd_calib.vllm_plugin.telemetry.texts import ServedText, Texts
from fsd_decoding.profile.following import WINDOW, Drift, coverage_of, expected_range
from support.calibration.profiles import profile
from support.models.tiny_models import word_tokenizer

GREEDY = RunningRequest(0.25, True, (), frozenset({9}), ())
SAMPLED = RunningRequest(0.25, False, (), frozenset({9}), ())
DEPARTED = RunningRequest(0.5, True, ("threshold is 0.5 instead of 0.25",), frozenset({9}), ())


class Kept:
    """A listener that keeps what it receives."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.texts: list[ServedText] = []
        self.ids: list[str] = []

    def add(self, step: Step) -> None:
        self.steps.append(step)

    def finish(self, ids: Any) -> None:
        self.ids += ids

    def finished(self, text: ServedText) -> None:
        self.texts.append(text)


def logged(
    log: StepLog, requests: Sequence[RunningRequest], counts: Sequence[int], scores: Sequence[float],
    most_likely: Sequence[bool], sampled: Sequence[Sequence[int]], ids: Sequence[str] | None = None, begin: int = 0,
) -> None:  # fmt: skip
    """Adds a step in which tokens with D <= .25 are accepted by score, and that emits tokens from `begin` on."""
    found = torch.tensor(scores)
    judged = JudgedTokens(Layout(counts, [0] * len(counts)), found, found <= 0.25)
    judged.accepted(torch.tensor(most_likely))
    names = ids or [f"r{i}" for i in range(len(counts))]
    log.add(names, requests, judged, emitted_at(begin, torch.tensor(sampled), counts))
    log.flush()


def emitted_at(begin: int, sampled: Tensor, drafted: Sequence[int]) -> Emitted:
    return Emitted(sampled, begin + torch.tensor(drafted), drafted, np.full(len(sampled), True))


def test_tokens_are_counted_by_what_accepted_them(tmp_path: Path) -> None:
    """Of a greedy request the argmax counts as exact, whatever its D; of a sampled one D <= T counts as fuzzy."""
    counters = StepCounters(tmp_path / "counters")
    log = StepLog([counters])
    scores = [0.1, 0.2, 0.9, 0.1, 0.3]
    logged(log, [GREEDY, SAMPLED], [3, 2], scores, [True, False, False, True, True], [[1, 2, 3, -1], [4, 5, 6, -1]])
    counted = read_counters(tmp_path / "counters", NAMES)
    assert counted["exact"] == 2  # the greedy argmax, and the sampled token that vLLM's own rule accepted at D = .3
    assert counted["fuzzy"] == 2
    assert counted["rejected"] == 1
    assert counted["fuzzy_score"] == pytest.approx(0.3)


def test_tokens_behind_the_first_rejection_are_not_counted(tmp_path: Path) -> None:
    counters = StepCounters(tmp_path / "counters")
    logged(StepLog([counters]), [GREEDY], [3], [0.9, 0.1, 0.1], [False, True, True], [[7, -1, -1, -1]])
    counted = read_counters(tmp_path / "counters", NAMES)
    assert (counted["exact"], counted["fuzzy"], counted["rejected"]) == (0, 0, 1)


def test_what_a_runner_writes_into_its_tensors_later_does_not_change_a_step() -> None:
    kept, sampled = Kept(), torch.tensor([[1, 2]])
    judged = JudgedTokens(Layout([1], [0]), torch.tensor([0.1]), torch.tensor([True]))
    judged.accepted(torch.tensor([True]))
    log = StepLog([kept])
    log.add(["a"], [GREEDY], judged, emitted_at(0, sampled, [1]))
    sampled.fill_(-1)
    log.flush()
    assert kept.steps[0].sampled.tolist() == [[1, 2]]
    assert kept.steps[0].accepted.tolist() == [1]


def test_steps_are_handed_on_together_and_before_the_end_of_their_requests() -> None:
    kept = Kept()
    log = StepLog([kept])
    for number in range(15):
        log.add(["a"], [GREEDY], None, emitted_at(number, torch.tensor([[number]]), [0]))
    assert not kept.steps
    log.add(["a"], [GREEDY], None, emitted_at(15, torch.tensor([[15]]), [0]))
    assert [step.sampled.item() for step in kept.steps] == list(range(16))
    log.add(["a"], [GREEDY], None, emitted_at(16, torch.tensor([[16]]), [0]))
    log.finish(["a"])
    assert (len(kept.steps), kept.ids) == (17, ["a"])


def texts_of(rounds: Sequence[Sequence[int]], request: RunningRequest) -> ServedText:
    """The text whose rounds emitted these tokens, all but the last of which were drafted and accepted, of 3 drafted."""
    kept = Kept()
    log = StepLog([Texts([kept], word_tokenizer())])
    begin = 0
    for emitted in rounds:
        padded = [*emitted, *[-1] * (4 - len(emitted))]
        logged(log, [request], [3], [0.1] * 3, [True] * 3, [padded], begin=begin)
        begin += len(emitted)
    log.finish(["r0"])
    (text,) = kept.texts
    return text


def test_a_text_ends_at_its_end_token_which_may_be_drafted() -> None:
    text = texts_of([[1, 2, 3, 4], [5, 9, 6, 7]], GREEDY)
    assert (len(text.tokens), text.drafted, text.accepted) == (6, 6, 5)
    assert [each.begin for each in text.rounds] == [0, 4]


def test_a_text_without_an_end_counts_whole() -> None:
    text = texts_of([[1, 2], [3, 4, 5]], GREEDY)
    assert (len(text.tokens), text.drafted, text.accepted) == (5, 6, 3)


def test_a_text_ends_where_a_stop_string_is_complete() -> None:
    words: Any = word_tokenizer()
    tokens = [t for t in range(20) if len(words.decode([t]).split()) == 1][:8]
    stop = words.decode(tokens[:6]).split()[-1]
    request = RunningRequest(0.25, True, (), frozenset(), (stop,))
    text = texts_of([tokens[:4], tokens[4:8]], request)
    assert len(text.tokens) == 6
    assert text.accepted == 3 + 2


def test_only_texts_that_are_decoded_as_calibrated_are_put_together() -> None:
    kept = Kept()
    log = StepLog([Texts([kept], word_tokenizer())])
    logged(log, [DEPARTED], [2], [0.1, 0.1], [True, True], [[1, 2, 3]])
    log.finish(["r0"])
    assert kept.texts == []


def test_a_session_that_goes_on_with_another_prompt_begins_a_text_of_its_own() -> None:
    """vLLM then sends the request again, under the same id."""
    kept = Kept()
    log = StepLog([Texts([kept], word_tokenizer())])
    for request, tokens in ((GREEDY, [1, 2, 3]), (replace(GREEDY, limit=2), [4, 5, 6])):
        logged(log, [request], [2], [0.1, 0.1], [True, True], [tokens])
    log.finish(["r0"])
    assert [(text.tokens, text.reason) for text in kept.texts] == [([4, 5], "length")]


def test_acceptance_far_from_the_profiles_is_told_once(tmp_path: Path) -> None:
    """Half of all tokens are accepted, where the profile expects 85 to 91 %."""
    calibrated = profile()
    said: list[str] = []
    counters = StepCounters(tmp_path / "counters")
    assert calibrated.acceptance is not None
    drift = Drift(calibrated.acceptance, coverage_of(calibrated, (None, None), None))
    acceptance = Acceptance(drift, counters, said.append)
    for _ in range(2 * WINDOW):
        text = texts_of([[1, 2, -1]], GREEDY)
        acceptance.finished(text)
    counted = read_counters(tmp_path / "counters", NAMES)
    assert len(said) == counted["drifted"] == 1
    assert "over the last 200 texts" in said[0]
    rate = counted["accepted_share"] / counted["texts"]
    assert rate < expected_range(calibrated.acceptance)[0]


def parameters(**changed: Any) -> Any:
    """What vLLM's `SamplingParams` holds."""
    usual = {
        "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "extra_args": None,
        "ignore_eos": False, "stop_token_ids": [5], "all_stop_token_ids": {5, 9}, "stop": [], "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "logit_bias": None, "allowed_token_ids": None, "bad_words": [], "min_tokens": 0,
        "structured_outputs": None, "max_tokens": 30,
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **changed})


def state(**changed: Any) -> Any:
    """What vLLM's model runner knows of a request."""
    return SimpleNamespace(sampling_params=parameters(**changed), prompt_token_ids=[3, 4, 5], prompt_embeds=None)


@pytest.mark.parametrize(
    ("changed", "departs"),
    [
        ({}, None),
        ({"temperature": 0.5}, "temperature is 0.5 instead of 0.0"),
        ({"top_k": 5}, None),  # greedy decoding has no use for it
        ({"temperature": 0.5, "top_p": 0.9}, "top_p is 0.9 instead of None"),
        ({"repetition_penalty": 1.2}, "repetition_penalty is 1.2 instead of 1.0"),
        ({"bad_words": ["x"]}, "bad_words is set"),
        ({"structured_outputs": "a grammar"}, "structured_outputs is set"),
        ({"extra_args": {"fsd_threshold": 0.5}}, "threshold is 0.5 instead of 0.0625"),
        ({"extra_args": {"fsd": "off"}}, "threshold is -1 instead of 0.0625"),
    ],
    ids=str,
)
def test_in_what_a_request_departs_from_the_profile(changed: dict[str, Any], departs: str | None) -> None:
    described = describe(parameters(**changed), profile())
    assert described.departures == () if departs is None else departs in described.departures


def test_tokens_that_end_a_text() -> None:
    assert describe(parameters(), profile()).ends == {5, 9}
    assert describe(parameters(ignore_eos=True), profile()).ends == {5}


def test_departures_are_told_when_a_request_begins_and_exact_ones_never() -> None:
    told: list[tuple[str, ...]] = []
    states = {
        name: state(extra_args=extra)
        for name, extra in (("loose", {"fsd_threshold": 0.5}), ("exact", {"fsd": "off"}), ("plain", None))
    }
    requests = RunningRequests(states, profile(), told.append)
    for _ in range(2):
        assert [r.threshold for r in requests.of(["loose", "exact", "plain"])] == [0.5, -1.0, 0.0625]
    assert told == [("threshold is 0.5 instead of 0.0625",)]
    requests.forget(["loose"])
    states["loose"] = state()
    assert requests.of(["loose"])[0].as_calibrated


def test_requests_of_a_step_are_those_of_now_though_ids_come_again() -> None:
    states = {"a": state(), "b": state(extra_args={"fsd": "off"}), "c": state(repetition_penalty=1.2)}
    requests, ids = RunningRequests(states, profile(), lambda _: None), ["a", "b"]
    for _ in range(2):
        found = requests.together(ids)
        assert (found.thresholds, found.greedy, found.plain, found.masked) == ([0.0625, -1.0], [True] * 2, True, False)
    ids[1] = "c"  # vLLM changes its own list
    found = requests.together(ids)
    assert (found.thresholds, found.plain, found.all_greedy) == ([0.0625, 0.0625], False, True)
    requests.forget(["a"])
    states["a"] = state(extra_args={"fsd_threshold": 0.5}, temperature=0.7)
    found = requests.together(ids)
    assert (found.thresholds, found.greedy, found.all_greedy) == ([0.5, 0.0625], [False, True], False)


def test_a_text_may_have_as_many_tokens_as_the_request_and_the_context_allow() -> None:
    states = {"short": state(max_tokens=5), "long": state(max_tokens=30)}
    requests = RunningRequests(states, profile(), lambda departures: None, context=20).of(["short", "long"])
    assert [(each.limit, list(each.prompt)) for each in requests] == [(5, [3, 4, 5]), (17, [3, 4, 5])]


def test_counters_are_read_while_they_are_written(tmp_path: Path) -> None:
    counters = StepCounters(tmp_path / "counters")
    for expected in np.arange(1.0, 5.0):
        counters.increase("texts", 1)
        assert read_counters(tmp_path / "counters", NAMES)["texts"] == expected


def test_options_that_no_front_end_checked_are_decoded_exactly_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    states = {
        name: state(extra_args=extra)
        for name, extra in (("text", {"fsd_threshold": "a"}), ("huge", {"fsd_threshold": 10**400}), ("plain", None))
    }
    told: list[tuple[str, ...]] = []
    with caplog.at_level("WARNING", "vllm.fsd"):
        found = RunningRequests(states, profile(), told.append).of(["text", "huge", "plain"])
    assert [request.threshold for request in found] == [-1.0, -1.0, 0.0625]
    assert [request.as_calibrated for request in found] == [False, False, True]
    (line,) = (record.getMessage() for record in caplog.records)
    assert "decoded exactly: fsd_threshold in vllm_xargs is 'a'" in line
    assert told == []


def test_prompts_of_embeddings_have_a_length() -> None:
    prompted = SimpleNamespace(sampling_params=parameters(), prompt_token_ids=None, prompt_embeds=torch.zeros(7, 4))
    (found,) = RunningRequests({"r": prompted}, profile(), lambda _: None, context=20).of(["r"])
    assert (len(found.prompt), found.limit) == (7, 13)


def shown(name: str, *registry: Any) -> list[str]:
    return [line for line in generate_latest(*registry).decode().splitlines() if line.startswith(f"{name}{{")]


def latest() -> str:
    """The label of the engine that was configured last: tests share a process."""
    return f'order="{len(shown("fsd:profile_info")) - 1}"'


def count_exact(folder: str, tokens: int) -> None:
    StepCounters(Path(folder, STEPS.format(0))).increase("exact", tokens)


def test_engines_of_a_process_are_shown_beside_each_other() -> None:
    folders, orders = [], []
    for task in ("one", "another"):
        folders.append(export_counters(profile({"task": task})))
        orders.append(latest())
    for folder, tokens in zip(folders, (3, 4), strict=True):
        count_exact(folder, tokens)
    for order, task, tokens in zip(orders, ("one", "another"), (3, 4), strict=True):
        assert sum(f'task="{task}"' in line for line in shown("fsd:profile_info") if order in line) == 1
        (line,) = (line for line in shown("fsd:drafted_tokens_total") if order in line and 'outcome="exact"' in line)
        assert 'engine="0"' in line
        assert float(line.split()[-1]) == tokens


def test_an_engine_that_fails_to_start_leaves_the_others_metrics() -> None:
    count_exact(export_counters(profile()), 5)
    order = latest()
    export_counters(profile())  # of an engine that never gets a worker
    (line,) = (line for line in shown("fsd:drafted_tokens_total") if order in line and 'outcome="exact"' in line)
    assert float(line.split()[-1]) == 5
    assert not [line for line in shown("fsd:drafted_tokens_total") if latest() in line]


def test_every_sample_has_labels_of_its_own() -> None:
    for _ in range(2):
        count_exact(export_counters(profile()), 1)
    lines = [line.rpartition(" ")[0] for line in generate_latest().decode().splitlines() if line.startswith("fsd:")]
    assert len(lines) == len(set(lines))


def test_they_are_beside_metrics_that_api_servers_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    export_counters(profile())
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    assert shown("fsd:profile_info", registry) == shown("fsd:profile_info")


_PROGRAM = """
from fsd_calib.vllm_plugin.telemetry.metrics import export_counters
from support.calibration.profiles import profile
print(export_counters(profile()))
"""


@pytest.mark.slow
def test_processes_of_one_server_share_a_folder_and_other_programs_do_not() -> None:
    folder = export_counters(profile())
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(export_counters, (profile(),)) == folder
    path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ran.stdout.strip() != folder
