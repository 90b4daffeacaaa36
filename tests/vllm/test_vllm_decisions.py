"""Decisions beside fp64 logits in uneven batches: drafts are cut or thrown out, requests are of different kinds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import regex
import torch
from torch import Tensor
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from support.vllm_async import async_engine
from support.vllm_decisions import Decision, agrees, agrees_sampled, decisions
from support.vllm_engine import (
    LENGTH,
    THRESHOLD,
    Recorded,
    arithmetic,
    engine,
    metric,
    own_texts,
    sampling,
    saved,
    served,
    tokenizer,
)

CLOSE = 1e-4  # of D in fp32
PENALTY = 1.3
GRAMMAR = "[A-DF-Za-df-z0-9 .,]{60,90}"  # there is no e

Make = Callable[..., Any]
MAKES = pytest.mark.parametrize("make", [engine, async_engine], ids=["synchronous", "asynchronous"], scope="module")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def crowded(path: str, make: Make) -> Any:
    """An engine whose steps have too few tokens for all drafts of 8 requests, so that some are cut."""
    return make(path, max_num_seqs=8, max_num_batched_tokens=40, disable_log_stats=False)


def long(**keywords: Any) -> SamplingParams:
    """Parameters of texts of 100 tokens."""
    return sampling(**{"stop": None, "max_tokens": 100, "ignore_eos": True, **keywords})


def ask(llm: Any, parameters: SamplingParams | Sequence[SamplingParams], count: int) -> tuple[Recorded, list[Any]]:
    """Serves problems; returns what was recorded, and vLLM's outputs."""
    recorded = Recorded(llm)
    return recorded, llm.generate([p.prompt for p in arithmetic(count).problems], parameters, use_tqdm=False)


def assert_close(found: Sequence[Decision]) -> None:
    """Asserts that D is known of these tokens, where they were drafted, and is that of raw logits."""
    assert [d for d in found if d.drafted and not abs(d.recorded - d.exact) < CLOSE] == []


def wrong(found: Sequence[Decision], threshold: float = THRESHOLD) -> list[Decision]:
    return [d for d in found if not agrees(d, threshold)]


@MAKES
class TestCutDrafts:
    """Requests with different numbers of drafts in one step."""

    def test_of_plain_requests(self, crowded: Any, make: Make) -> None:
        before = metric(crowded, "vllm:spec_decode_num_draft_tokens")
        recorded, outputs = ask(crowded, long(), 24)
        self.assert_cut(recorded)
        missed = metric(crowded, "vllm:spec_decode_num_draft_tokens") - before - recorded.judged
        assert missed == 0 if make is engine else missed <= 0  # asynchronous steps go on when a text has ended
        found = [d for output in outputs for d in decisions(recorded, output)]
        assert wrong(found) == []
        assert sum(d.fuzzy for d in found) > 50
        assert sum(d.rejected for d in found) > 50

    def test_of_requests_whose_logits_are_changed_beside_plain_ones(self, crowded: Any) -> None:
        """D is of raw logits, and only the exact choice is from changed ones."""
        recorded, outputs = ask(crowded, [long(), long(repetition_penalty=PENALTY)] * 12, 24)
        self.assert_cut(recorded)
        plain = [d for output in outputs[::2] for d in decisions(recorded, output)]
        penalized = [d for output in outputs[1::2] for d in decisions(recorded, output, penalize)]
        for found in (plain, penalized):
            assert wrong(found) == []
            assert sum(d.fuzzy for d in found) > 20
            assert sum(d.rejected for d in found) > 20
        beside = {name for step in recorded.steps if not all(r.plain for r in step.requests) for name in step.ids}
        assert len(beside) == 24
        assert_close([d for d in penalized if d.fuzzy or d.rejected])
        assert wrong([d for output in outputs[1::2] for d in decisions(recorded, output)]), "the penalty does nothing"

    @staticmethod
    def assert_cut(recorded: Recorded) -> None:
        numbers = [{int(count) for count in step.layout.counts if count} for step in recorded.steps]
        assert sum(len(different) > 1 for different in numbers) > 2


def penalize(prompt: Sequence[int], emitted: Sequence[int], target: Tensor) -> Tensor:
    """Does what the repetition penalty does."""
    changed, seen = target.clone(), torch.zeros(target.shape[1], dtype=torch.bool)
    seen[list(prompt)] = True
    for row, token in zip(changed, emitted, strict=True):
        row[seen] = torch.where(row > 0, row / PENALTY, row * PENALTY)[seen]
        seen[token] = True
    return changed


@MAKES
def test_texts_go_on_to_the_models_length(path: str, make: Make) -> None:
    """vLLM drafts nothing for a whole batch where one text has no room for L tokens, and its drafter misses a step.

    So its logits are not those of the whole context from then on; what is accepted must follow from D as computed.
    """
    length = 110
    llm = make(path, max_model_len=length, max_num_seqs=8)
    recorded, outputs = ask(llm, long(max_tokens=None), 16)
    for output in outputs:
        assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == length
        found = list(decisions(recorded, output))
        assert all(d.own or (d.accepted and d.recorded <= THRESHOLD) for d in found)
        assert not found[-1].drafted
    for problem in (2, 9):  # alone, nothing is missed before its own end
        recorded = Recorded(llm)
        (output,) = llm.generate([arithmetic(10).problems[problem].prompt], long(max_tokens=None), use_tqdm=False)
        found = list(decisions(recorded, output))
        assert wrong(found) == []
        assert sum(d.drafted for d in found) > len(found) / 2


@MAKES
def test_preempted_requests_go_on_by_the_rule(path: str, make: Make) -> None:
    """With room for a few texts, later ones are thrown out again and again, and their drafts with them.

    A text begins its next round where it was thrown out, so it may differ from that of an engine with more room.
    """
    llm = make(path, block_size=32, num_gpu_blocks_override=15, enable_prefix_caching=False, disable_log_stats=False)
    recorded, outputs = ask(llm, sampling(), 24)
    thrown_out = metric(llm, "vllm:num_preemptions")
    assert thrown_out > 3
    found = [list(decisions(recorded, output)) for output in outputs]
    assert [d for of_text in found for d in wrong(of_text)] == []
    assert sum(d.fuzzy for of_text in found for d in of_text) > 20
    exact = served(llm, arithmetic(24), sampling({"fsd": "off"}))
    assert metric(llm, "vllm:num_preemptions") > thrown_out
    assert exact == own_texts(24)


@MAKES
def test_a_cached_prompt_that_joins_leaves_drafts_of_others_judged(path: str, make: Make) -> None:
    """vLLM gives a request that joins with one token left to read L drafts of padding; those beside it are real."""
    llm = make(path, block_size=32, enable_prefix_caching=True)
    running, joining = (tokenizer()(problem.prompt)["input_ids"] for problem in arithmetic(2).problems)
    cached = {"prompt_token_ids": joining[:33]}  # a block, and a token
    llm.generate([cached], long(), use_tqdm=False)
    recorded, core = Recorded(llm), llm.llm_engine
    core.add_request("running", {"prompt_token_ids": running}, long())
    while core.has_unfinished_requests():
        core.step()
        if len(recorded.steps) == 3 and "joining" not in core.output_processor.external_req_ids:
            core.add_request("joining", cached, long())
    assert recorded.of("joining")
    assert [each.facts.shape[1] for each in recorded.of("running")[1:]] == [LENGTH] * (len(recorded.of("running")) - 1)


@pytest.mark.usefixtures("mended_expansion")
def test_sampled_requests_beside_greedy_ones(path: str) -> None:
    llm = engine(path, speculative_config={"draft_sample_method": "probabilistic"}, max_num_seqs=12)
    strict = 0.02
    kinds = [long(), long(temperature=0.8), long(options={"fsd_threshold": strict}), long(options={"fsd": "off"})]
    recorded, outputs = ask(llm, kinds * 9, 36)
    found = [list(decisions(recorded, output)) for output in outputs]
    for turn, threshold in ((0, THRESHOLD), (2, strict), (3, -1.0)):
        assert [d for of_text in found[turn::4] for d in wrong(of_text, threshold)] == []
    sampled = [d for of_text in found[1::4] for d in of_text]
    assert_close(sampled)
    assert [d for d in sampled if not agrees_sampled(d, THRESHOLD)] == []
    assert sum(d.rejected for d in sampled) > 20
    assert sum(d.accepted and not d.drafts for d in sampled) > 20, "drafts are not sampled"


@MAKES
def test_a_grammar_binds_its_requests_and_leaves_others_free(path: str, make: Make) -> None:
    """At a T that accepts everything the grammar alone holds drafts back, and D is of logits before its mask."""
    llm = make(path)
    alone = served(llm, arithmetic(16), sampling())
    bound = SamplingParams(temperature=0, max_tokens=60, extra_args={"fsd_threshold": 10.0},
                           structured_outputs=StructuredOutputsParams(regex=GRAMMAR))  # fmt: skip
    recorded, outputs = ask(llm, [sampling(), bound] * 8, 16)
    assert any(len({request.plain for request in step.requests}) == 2 and step.layout.count for step in recorded.steps)
    free = [d for output in outputs[::2] for d in decisions(recorded, output)]
    assert wrong(free) == []
    assert [list(output.outputs[0].token_ids) for output in outputs[::2]] == alone[::2]
    held_back = fuzzy = 0
    for output in outputs[1::2]:
        (text,) = output.outputs
        assert regex.fullmatch(GRAMMAR, text.text)
        found = list(decisions(recorded, output, mask))[: len(text.token_ids)]  # nothing is masked behind the end
        assert_close([d for d in found if d.fuzzy or d.rejected])
        assert wrong(found, 10.0) == []
        held_back += sum(d.forbidden for d in found)
        fuzzy += sum(d.fuzzy for d in found)
    assert held_back > 20
    assert fuzzy > 10


def mask(prompt: Sequence[int], emitted: Sequence[int], target: Tensor) -> Tensor:
    """Forbids what `GRAMMAR` does."""
    pieces = [tokenizer().decode([token], skip_special_tokens=True) for token in range(target.shape[1])]
    changed, text = target.clone(), ""
    for row, token in zip(changed, emitted, strict=True):
        allowed = [bool(piece and regex.fullmatch(GRAMMAR, text + piece, partial=True)) for piece in pieces]
        allowed[tokenizer().eos_token_id] = bool(regex.fullmatch(GRAMMAR, text))
        row[~torch.tensor(allowed)] = -math.inf
        text += pieces[token]
    return changed
