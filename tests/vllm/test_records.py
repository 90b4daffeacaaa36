"""Records of texts that vLLM itself served with the bundled pair, against its outputs and against fp64 logits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from fsd_calib import load_task
from fsd_calib.cli import traces as traces_app
from fsd_calib.cli.console import run
from fsd_collectors.store.reading import Traces, load_traces
from fsd_collectors.store.verifying import notes, verify
from fsd_data import pair_paths
from fsd_decoding.divergence import divergence
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.parts import ModelInfo
from support.calibration.profiles import profile

vllm = pytest.importorskip("vllm")

TARGET, DRAFT = pair_paths()
PROBLEMS, TEXTS, DRAFTS, THRESHOLD = 60, 55, 6, 0.1
CLOSE = 1e-4  # of D in fp32, over what two attention kernels differ by


@dataclass(frozen=True)
class Served:
    """What vLLM returned, and what was recorded of it."""

    outputs: Sequence[Any]
    traces: Traces
    accepted: int  # drafted tokens, by vLLM's own counter


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"))
        _profile(folder / "profile.json")
        yield _serve(folder)


def _profile(path: Path) -> None:
    target, draft = (_info(each) for each in (TARGET, DRAFT))
    tokenizer = tokenizer_fingerprint(AutoTokenizer.from_pretrained(TARGET))
    changes = {"target": target, "draft": draft, "tokenizer": tokenizer, "threshold": THRESHOLD, "divergence": "js",
               "draft_length": DRAFTS, "rule": "fsd-coupled"}  # fmt: skip
    profile(changes).save(path)


def _info(path: Path) -> dict[str, Any]:
    return ModelInfo.of(AutoModelForCausalLM.from_pretrained(path, dtype="float32")).model_dump()


def _serve(folder: Path) -> Served:
    settings = {"profile": str(folder / "profile.json"), "records": str(folder / "traces"), "record_texts": TEXTS}
    llm = vllm.LLM(
        str(TARGET), dtype="float32", max_model_len=400, enforce_eager=True, max_num_seqs=16, disable_log_stats=False,
        max_num_batched_tokens=64, enable_chunked_prefill=True, additional_config={"fsd": settings},
        speculative_config={"model": str(DRAFT), "num_speculative_tokens": DRAFTS, "method": "draft_model"},
    )  # fmt: skip
    task = load_task("arithmetic", seed=7, limit=PROBLEMS)
    as_calibrated = vllm.SamplingParams(temperature=0, max_tokens=task.max_new_tokens, stop=list(task.stop))
    exact = vllm.SamplingParams(temperature=0, max_tokens=20, extra_args={"fsd": "off"})
    prompts = [problem.prompt for problem in task.problems]
    outputs = llm.generate(prompts[:TEXTS], as_calibrated, use_tqdm=False)
    (accepted,) = [each.value for each in llm.get_metrics() if each.name == "vllm:spec_decode_num_accepted_tokens"]
    llm.generate(prompts[TEXTS:], exact, use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
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
    models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval() for path in (TARGET, DRAFT)]
    texts, checked = _texts(served.traces), 0
    rows = _rows(served.traces, "tokens", [("problem", "<", 6)])
    for (problem, _), of_round in groupby(rows, lambda row: (row.problem, row.round)):
        drafts = list(of_round)
        drafted = [row.drafted for row in drafts]
        before = [*of_text[problem].prompt_token_ids, *texts[problem][: drafts[0].position]]
        target, draft = (_logits(model, [*before, *drafted])[-len(drafts) - 1 : -1] for model in models)  # (n, V)
        recorded = torch.tensor([row.js for row in drafts], dtype=torch.float64)
        assert torch.allclose(recorded, divergence("js", target, draft).double(), rtol=0, atol=CLOSE)
        _assert_choices(target, [row.target_choice for row in drafts])
        _assert_choices(draft, drafted)
        checked += len(drafts)
    assert checked > 300


def _logits(model: Any, ids: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def _assert_choices(logits: Tensor, choices: Sequence[int]) -> None:
    own = logits.gather(1, torch.tensor(choices).unsqueeze(1)).squeeze(1)
    assert (own >= logits.amax(1) - CLOSE).all()


def test_the_folder_is_complete_and_describable(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert served.traces.complete
    assert (verify(served.traces.path), notes(served.traces.path)) == ([], [])
    assert [shard.problems for shard in served.traces.shards] == [50, 5]
    assert run(traces_app.app, traces_app.NAME, ["describe", str(served.traces.path)]) == 0
    assert "served by vLLM: fsd-coupled with js ≤ 0.1, 6 tokens a draft" in " ".join(capsys.readouterr().out.split())
