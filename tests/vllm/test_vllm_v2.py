"""A profile in vLLM's V2 model runner, run on a CPU with interpreted kernels. No GPU has run it."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker
from vllm.version import __version__ as vllm_version

from fsd_calib.vllm_plugin.supported_vllm import RUNNER_V2, check_vllm
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import divergence
from fsd_decoding.text import token_bytes
from support import vllm_v2
from support.phases import inside_before
from support.vllm_engine import DRAFT, TARGET, logits, tokenizer
from support.vllm_v2 import CASES, END, GRAMMAR, MARKERS, OVER, START, Served

ALL = [name for name in CASES if name.startswith("all")]


def run(folder: Path, *by: str) -> dict[str, list[Served]]:
    """Returns what the engine did, by case."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, vllm_v2.__file__, str(folder), *by], env=environment,
                          capture_output=True, text=True, timeout=400, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return {name: [Served(**each) for each in served] for name, served in found.items()}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Served]]:
    return run(tmp_path_factory.mktemp("v2"))


def threshold(name: str, place: int) -> float:
    """T of a case at a place of the completion: the schedule scales that of the request, too."""
    own = CASES[name].get("extra_args", {}).get("fsd_threshold", START)
    return float(own) * (1 + (END / START - 1) * min(place / OVER, 1))


def decisions(served: Served) -> Iterator[tuple[int, int, bool, Sequence[float]]]:
    """Yields (place in the completion, token, accepted, facts) of the drafted tokens that a text's rounds decided."""
    place = 1  # the first token came with the prompt
    for accepted, emitted, facts in served.rounds:
        for i in range(min(accepted + 1, len(facts[0]))):
            yield place + i, emitted[i], i < accepted, [fact[i] for fact in facts]
        place += len(emitted)


def test_all_hooked_names_are_there() -> None:
    check_vllm(vllm_version, RUNNER_V2)


def test_hooked_functions_take_what_is_given_to_them() -> None:
    verify = list(inspect.signature(RejectionSampler._verify).parameters)
    assert (verify[1], verify[-1]) == ("logits", "verify_draft_sampled")
    assert re.search(r"self\._verify\([^=]*verify_draft_sampled\[lo:hi\],\s*\)", inspect.getsource(RejectionSampler))
    assert list(inspect.signature(RejectionSampler.__call__).parameters)[1:3] == ["logits", "input_batch"]
    assert list(inspect.signature(Sampler.apply_sampling_params).parameters)[1] == "logits"
    grammar = inspect.signature(StructuredOutputsWorker.apply_grammar_bitmask).parameters
    assert list(grammar)[1:3] == ["logits", "input_batch"]


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
    assert {(accepted, len(facts[0])) for accepted, _, facts in rounds} == {(vllm_v2.LENGTH, vllm_v2.LENGTH)}


@pytest.mark.parametrize("name", ["calibrated", "strict"])
def test_decisions_equal_those_from_uncached_logits_in_fp64(ran: dict[str, list[Served]], name: str) -> None:
    outcomes = set()
    for served in ran[name]:
        every = [*served.prompt, *served.tokens]
        target, draft = logits("target", every), logits("draft", every)
        exact = divergence("js", target, draft).tolist()
        for place, token, accepted, facts in decisions(served):
            at = len(served.prompt) + place - 1
            if place >= len(served.tokens):
                continue  # behind the text's end, so not in it
            assert facts[0] == pytest.approx(exact[at], abs=1e-4)
            bound, argmax = threshold(name, place), int(target[at].argmax())
            outcomes.add((accepted, token == argmax))
            if abs(exact[at] - bound) > 1e-4:
                assert bool(facts[1]) == (exact[at] <= bound)
            assert facts[1] or token == argmax
    assert (False, True) in outcomes
    assert name == "strict" or (True, False) in outcomes


def test_each_token_is_judged_by_the_t_of_its_phase(tmp_path: Path) -> None:
    texts, judged = token_bytes(tokenizer()), set()
    for served in run(tmp_path, "phase")["calibrated"]:
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
    """vLLM drafts nothing in some steps of such requests, so rounds are looked for in the text, in order."""
    accepted = 0
    for served in ran["grammar"]:
        assert re.fullmatch(GRAMMAR, served.text)
        every = [*served.prompt, *served.tokens]
        exact = divergence("js", logits("target", every), logits("draft", every))[len(served.prompt) - 1 : -1].tolist()
        place = 1
        for kept, emitted, facts in served.rounds:
            accepted += kept
            seen = facts[0][: kept + 1]
            left = {p: len(served.tokens) - p for p in range(place, len(served.tokens))}  # the last round may be cut
            here = [p for p, n in left.items() if served.tokens[p : p + len(emitted)] == emitted[:n]
                    and exact[p : p + len(seen)] == pytest.approx(seen[:n], abs=1e-4)]  # fmt: skip
            assert here
            place = here[0] + len(emitted)
    assert accepted > 10


def test_logprobs_are_the_targets(ran: dict[str, list[Served]]) -> None:
    for served in ran["logprobs"]:
        rows = logits("target", [*served.prompt, *served.tokens])[len(served.prompt) - 1 : -1]
        own = rows.log_softmax(-1).gather(1, torch.tensor(served.tokens).unsqueeze(1)).squeeze(1)
        assert served.logprobs == pytest.approx(own.tolist(), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("score", ["fly@1", "typical"])
def test_texts_by_scores_of_processed_logits_are_those_of_our_engine(score: str, tmp_path: Path) -> None:
    """Behind the first token of a text, which comes with the prompt."""
    (served,) = run(tmp_path, score, "0.6").values()
    ours = SpeculativeDecoder.from_pretrained(
        TARGET, DRAFT, rule="fsd-coupled", draft_length=vllm_v2.LENGTH, device="cpu", dtype="float32"
    )
    ours.target.generation_config.eos_token_id = []
    prompts = [[*each.prompt, each.tokens[0]] for each in served]
    expected = ours.generate(prompts, vllm_v2.TOKENS - 1, score=score, threshold=0.6)
    assert [each.tokens[1:] for each in served] == [result.tokens for result in expected]
    assert any(facts[1][i] and not facts[2][i] for each in served for accepted, _, facts in each.rounds
               for i in range(accepted))  # fmt: skip
