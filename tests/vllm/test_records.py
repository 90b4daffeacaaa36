"""Records of texts that vLLM itself served with the bundled pair, against its outputs and against fp64 logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pytest
import torch
from torch import Tensor

from fsd_calib.cli import traces as traces_app
from fsd_calib.cli.console import run
from fsd_collectors.store.reading import Traces, load_traces
from fsd_collectors.store.verifying import notes, verify
from fsd_decoding.divergence import divergence
from support.vllm_engine import arithmetic, engine, logits, sampling, saved

PROBLEMS, TEXTS, DRAFTS, THRESHOLD = 60, 55, 6, 0.1
CLOSE = 1e-4  # of D in fp32, over what two attention kernels differ by


@dataclass(frozen=True)
class Served:
    """What vLLM returned, and what was recorded of it."""

    outputs: Sequence[Any]
    traces: Traces
    accepted: int  # drafted tokens, by vLLM's own counter


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("served")
    llm = engine(
        saved(folder, {"threshold": THRESHOLD, "draft_length": DRAFTS}),
        {"records": str(folder / "traces"), "record_texts": TEXTS},
        max_num_seqs=16, disable_log_stats=False, max_num_batched_tokens=64, enable_chunked_prefill=True,
        speculative_config={"num_speculative_tokens": DRAFTS},
    )  # fmt: skip
    prompts = [problem.prompt for problem in arithmetic(PROBLEMS, seed=7).problems]
    outputs = llm.generate(prompts[:TEXTS], sampling(), use_tqdm=False)
    (accepted,) = [each.value for each in llm.get_metrics() if each.name == "vllm:spec_decode_num_accepted_tokens"]
    llm.generate(prompts[TEXTS:], sampling({"fsd": "off"}, max_tokens=20), use_tqdm=False)
    engine_core: Any = llm.llm_engine.engine_core
    engine_core.shutdown()
    return Served(outputs, load_traces(folder / "traces"), accepted)


@pytest.fixture(scope="module")
def of_text(served: Served) -> dict[int, Any]:
    """vLLM's output by the recorded number of its text."""
    unmatched = list(served.outputs)
    found = {}
    for row in _rows(served.traces, "completions"):
        match = next(each for each in unmatched if _same(each, row))
        found[row.problem] = match
        unmatched.remove(match)
    assert not unmatched
    return found


def _same(output: Any, row: Any) -> bool:
    (text,) = output.outputs
    return (text.text, len(output.prompt_token_ids)) == (row.text, row.prompt_tokens)


def _rows(traces: Traces, table: str, where: Any = None) -> list[Any]:
    return list(traces.to_pandas(where=where, table=table).itertuples())


def _texts(traces: Traces) -> dict[int, list[int]]:
    return {row.problem: list(row.tokens) for row in _rows(traces, "completions")}


def test_every_text_is_recorded_as_vllm_returned_it(served: Served, of_text: dict[int, Any]) -> None:
    completions = _rows(served.traces, "completions")
    assert len(completions) == TEXTS
    for row in completions:
        (text,) = of_text[row.problem].outputs
        ended = row.finish_reason == "eos"
        assert row.emitted == len(row.tokens) + ended
        assert list(row.tokens) == list(text.token_ids)[: len(row.tokens)]
        if row.finish_reason != "stop":  # vLLM returns what a step brought behind a stop string, too
            assert row.emitted == len(text.token_ids)
        assert text.finish_reason == ("length" if row.finish_reason == "length" else "stop")


def test_what_vllm_accepted_is_recorded_as_accepted_at_its_place(served: Served) -> None:
    tokens = served.traces.to_pandas()
    assert int(tokens.accepted.sum()) == served.accepted
    texts = _texts(served.traces)
    rows = _rows(served.traces, "tokens")
    inside = [row for row in rows if row.accepted and row.position < len(texts[row.problem])]
    assert len(inside) > 1000
    assert [texts[row.problem][row.position] for row in inside] == [row.drafted for row in inside]
    assert tokens.position.min() == 1  # the first token of a text comes with its prompt
    fuzzy = tokens.js <= THRESHOLD
    assert (tokens.fuzzy == fuzzy).all()
    allowed = (fuzzy | tokens.same_token).groupby([tokens.problem, tokens["round"]]).cummin()
    assert (tokens.accepted == allowed).all()
    assert (tokens.accepted & ~tokens.same_token).sum() > 20


def test_d_and_choices_are_those_of_uncached_fp64_logits(served: Served, of_text: dict[int, Any]) -> None:
    texts, checked = _texts(served.traces), 0
    rows = _rows(served.traces, "tokens", [("problem", "<", 6)])
    for (problem, _), of_round in groupby(rows, lambda row: (row.problem, row.round)):
        drafts = list(of_round)
        drafted = [row.drafted for row in drafts]
        before = [*of_text[problem].prompt_token_ids, *texts[problem][: drafts[0].position]]
        target, draft = (
            logits(role, [*before, *drafted])[-len(drafts) - 1 : -1] for role in ("target", "draft")
        )  # (n, V)
        recorded = torch.tensor([row.js for row in drafts], dtype=torch.float64)
        assert torch.allclose(recorded, divergence("js", target, draft).double(), rtol=0, atol=CLOSE)
        _assert_choices(target, [row.target_choice for row in drafts])
        _assert_choices(draft, drafted)
        checked += len(drafts)
    assert checked > 300


def _assert_choices(found: Tensor, choices: Sequence[int]) -> None:
    own = found.gather(1, torch.tensor(choices).unsqueeze(1)).squeeze(1)
    assert (own >= found.amax(1) - CLOSE).all()


def test_the_folder_is_complete_and_describable(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert served.traces.complete
    assert (verify(served.traces.path), notes(served.traces.path)) == ([], [])
    assert [shard.problems for shard in served.traces.shards] == [50, 5]
    assert run(traces_app.app, traces_app.NAME, ["describe", str(served.traces.path)]) == 0
    assert "served by vLLM: fsd-coupled with js ≤ 0.1, 6 tokens a draft" in " ".join(capsys.readouterr().out.split())
