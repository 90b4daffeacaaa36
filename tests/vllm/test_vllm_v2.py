"""A profile in vLLM's V2 model runner, run on a CPU with interpreted kernels, beside V1. No GPU has run V2."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.version import __version__ as vllm_version

from fsd_calib.vllm_plugin.supported_vllm import RUNNER_V2, check_vllm
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import divergence
from fsd_decoding.text import token_bytes
from support import vllm_v2
from support.phases import inside_before
from support.vllm_engine import DRAFT, TARGET, logits, tokenizer
from support.vllm_v2 import AGAIN, CASES, END, GRAMMAR, MARKERS, OVER, START, Served, Trouble

ALL = [name for name in CASES if name.startswith("all")]
GREEDY = [name for name, case in CASES.items() if "temperature" not in case]


class Ran(NamedTuple):
    """What an engine did, by case, and what befell it."""

    served: dict[str, list[Served]]
    trouble: Trouble


SCORES = ("fly@1", "typical", "margin", "relaxed@10")
WAYS = {1: ("cases", "asynchronous", "tight"), 2: ("cases", "asynchronous", "tight", "skipping", "phase", *SCORES)}


def run(runner: int, folder: Path) -> dict[str, Ran]:
    """Returns what engines with a model runner, 1 or 2, did, by way; see `vllm_v2.py`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, vllm_v2.__file__, str(runner), str(folder), *WAYS[runner]], env=environment,
                          capture_output=True, text=True, timeout=600, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"served"')]  # vLLM prints, too
    return {way: _ran(json.loads(line)) for way, line in zip(WAYS[runner], lines, strict=True)}


def _ran(found: dict[str, Any]) -> Ran:
    served = {name: [Served(**each) for each in of_case] for name, of_case in found["served"].items()}
    return Ran(served, Trouble(**found["trouble"]))


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """What V2 did, by way."""
    return run(2, tmp_path_factory.mktemp("v2"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """What V1 did."""
    return run(1, tmp_path_factory.mktemp("v1"))


@pytest.fixture(scope="module")
def ran(second: dict[str, Ran]) -> dict[str, list[Served]]:
    return second["cases"].served


@pytest.fixture(scope="module")
def ran_in_v1(first: dict[str, Ran]) -> dict[str, list[Served]]:
    return first["cases"].served


def threshold(name: str, place: int) -> float:
    """T of a case at a place of the completion: the schedule scales that of the request, too."""
    own = CASES[name].get("extra_args", {}).get("fsd_threshold", START)
    return float(own) * (1 + (END / START - 1) * min(place / OVER, 1))


def decisions(served: Served) -> Iterator[tuple[int, int, bool, Sequence[float]]]:
    """Yields (place in the completion, token, accepted, facts) of the drafted tokens that a text's rounds decided."""
    for place, accepted, emitted, facts in served.rounds:
        for i in range(min(accepted + 1, len(facts[0]))):
            yield place + i, emitted[i], i < accepted, [fact[i] for fact in facts]


def check_decisions(served: Sequence[Served], name: str) -> set[tuple[bool, bool]]:
    """Compares decisions with logits without caches in fp64; returns which there were: accepted, target's argmax."""
    outcomes = set()
    for each in served:
        every = [*each.prompt, *each.tokens]
        target, draft = logits("target", every), logits("draft", every)
        exact = divergence("js", target, draft).tolist()
        for place, token, accepted, facts in decisions(each):
            at = len(each.prompt) + place - 1
            if place >= len(each.tokens):
                continue  # behind the text's end, so not in it
            assert token == each.tokens[place]
            assert facts[0] == pytest.approx(exact[at], abs=1e-4)
            bound, argmax = threshold(name, place), int(target[at].argmax())
            outcomes.add((accepted, token == argmax))
            if abs(exact[at] - bound) > 1e-4:
                assert bool(facts[1]) == (exact[at] <= bound)
            assert facts[1] or token == argmax
    return outcomes


def assert_alike(first: Sequence[Served], second: Sequence[Served]) -> None:
    """Two runners wrote the same texts in the same rounds."""
    for one, other in zip(first, second, strict=True):
        assert one.tokens == other.tokens
        assert [each[:3] for each in one.rounds] == [each[:3] for each in other.rounds]


def test_all_hooked_names_are_there() -> None:
    check_vllm(vllm_version, RUNNER_V2)


def test_the_tokens_to_verify_are_given_last() -> None:
    assert re.search(r"self\._verify\([^=]*verify_draft_sampled\[lo:hi\],\s*\)", inspect.getsource(RejectionSampler))


@pytest.mark.parametrize("name", GREEDY)
def test_decisions_are_those_of_v1(ran: dict[str, list[Served]], ran_in_v1: dict[str, list[Served]], name: str) -> None:
    assert_alike(ran_in_v1[name], ran[name])
    assert [each.logprobs for each in ran[name]] == [pytest.approx(each.logprobs, abs=1e-3) for each in ran_in_v1[name]]


def test_decisions_are_those_of_v1_under_asynchronous_scheduling(first: dict[str, Ran], second: dict[str, Ran]) -> None:
    assert_alike(*(ran["asynchronous"].served["calibrated"] for ran in (first, second)))


def test_decisions_are_those_of_v1_with_chunks_and_cached_prefixes_and_preempted_requests(
    first: dict[str, Ran], second: dict[str, Ran]
) -> None:
    one, other = first["tight"], second["tight"]
    for name in ("calibrated", *AGAIN):
        assert_alike(one.served[name], other.served[name])
        check_decisions(other.served[name], "calibrated")
    assert one.trouble == other.trouble
    assert other.trouble.preemptions > 0 < other.trouble.placeholders


def test_steps_that_draft_nothing_are_followed(second: dict[str, Ran]) -> None:
    served = second["skipping"].served["calibrated"]
    assert {(True, False), (False, True)} <= check_decisions(served, "calibrated")
    for each in served:
        places = [(place, place + len(emitted)) for place, _, emitted, _ in each.rounds]
        assert any(end < begin for (_, end), (begin, _) in pairwise(places))  # tokens of steps without drafts


@pytest.mark.parametrize("name", ["off", "negative"])
def test_exact_requests_get_the_targets_own_texts(ran: dict[str, list[Served]], name: str) -> None:
    for served in ran[name]:
        rows = logits("target", [*served.prompt, *served.tokens])[len(served.prompt) - 1 : -1]
        assert served.tokens == rows.argmax(-1).tolist()
        assert served.rounds == []  # nothing is judged


@pytest.mark.parametrize("name", ALL)
def test_a_large_threshold_accepts_every_draft(ran: dict[str, list[Served]], name: str) -> None:
    rounds = [each for served in ran[name] for each in served.rounds]
    assert len(rounds) >= 5 * len(ran[name])
    assert {(accepted, len(facts[0])) for _, accepted, _, facts in rounds} == {(vllm_v2.LENGTH, vllm_v2.LENGTH)}


@pytest.mark.parametrize("name", ["calibrated", "strict"])
def test_decisions_equal_those_from_uncached_logits_in_fp64(ran: dict[str, list[Served]], name: str) -> None:
    outcomes = check_decisions(ran[name], name)
    assert (False, True) in outcomes
    assert name == "strict" or (True, False) in outcomes


def test_each_token_is_judged_by_the_t_of_its_phase(second: dict[str, Ran]) -> None:
    texts, judged = token_bytes(tokenizer()), set()
    for served in second["phase"].served["calibrated"]:
        every = [*served.prompt, *served.tokens]
        inside = inside_before(every, texts, MARKERS)
        for place, token, accepted, (found, fuzzy, argmax) in decisions(served):
            at = len(served.prompt) + place
            if at >= len(every):
                continue  # behind the text's end, so not in it
            assert bool(fuzzy) == (found <= (START if inside[at] else END))
            assert accepted == bool(fuzzy or argmax)
            assert not accepted or token == every[at]
            judged.add((inside[at], END < found <= START))
    assert len(judged) == 4


def test_sampled_requests_accept_what_is_near_enough(ran: dict[str, list[Served]]) -> None:
    found = [each for served in ran["calibrated, sampled"] for each in decisions(served)]
    assert len(found) > 50
    assert all(accepted for _, _, accepted, (_, fuzzy, _) in found if fuzzy)


def test_a_grammar_is_kept_and_scores_are_of_unmasked_logits(ran: dict[str, list[Served]]) -> None:
    """In some steps of such requests vLLM drafts nothing."""
    accepted = 0
    for served in ran["grammar"]:
        assert re.fullmatch(GRAMMAR, served.text)
        every = [*served.prompt, *served.tokens]
        exact = divergence("js", logits("target", every), logits("draft", every))[len(served.prompt) - 1 : -1].tolist()
        for place, kept, _, facts in served.rounds:
            accepted += kept
            seen = facts[0][: kept + 1][: len(served.tokens) - place]  # the last round may be cut
            assert exact[place : place + len(seen)] == pytest.approx(seen, abs=1e-4)
    assert accepted > 10


def test_logprobs_are_the_targets(ran: dict[str, list[Served]]) -> None:
    for served in ran["logprobs"]:
        rows = logits("target", [*served.prompt, *served.tokens])[len(served.prompt) - 1 : -1]
        own = rows.log_softmax(-1).gather(1, torch.tensor(served.tokens).unsqueeze(1)).squeeze(1)
        assert served.logprobs == pytest.approx(own.tolist(), abs=1e-3)


@pytest.mark.parametrize("score", SCORES)
def test_texts_by_scores_of_the_target_are_those_of_our_engine(score: str, second: dict[str, Ran]) -> None:
    """Behind the first token of a text, which comes with the prompt."""
    (served,) = second[score].served.values()
    ours = SpeculativeDecoder.from_pretrained(
        TARGET, DRAFT, rule="fsd-coupled", draft_length=vllm_v2.LENGTH, device="cpu", dtype="float32"
    )
    ours.target.generation_config.eos_token_id = []
    prompts = [[*each.prompt, each.tokens[0]] for each in served]
    expected = ours.generate(prompts, vllm_v2.TOKENS - 1, score=score, threshold=vllm_v2.SCORED)
    assert [each.tokens[1:] for each in served] == [result.tokens for result in expected]
    assert any(facts[1][i] and not facts[2][i] for each in served for _, accepted, _, facts in each.rounds
               for i in range(accepted))  # fmt: skip
