"""Drafters that read the target's hidden states (EAGLE, EAGLE-3, MTP), run by vLLM itself and followed at a profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm.entrypoints.llm import LLM
from vllm.sampling_params import SamplingParams

from fsd_calib import load_task
from fsd_calib.vllm_plugin.telemetry.steps import Step
from fsd_data import pair_paths
from fsd_decoding.divergence import divergence
from fsd_decoding.loading import load_model
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from support.calibration.profiles import profile
from support.models.draft_heads import (
    DraftHead,
    Eagle3Head,
    EagleHead,
    MtpHead,
    mimo_target,
    save_head,
    save_mimo,
    trained_head,
)
from support.vllm_engine import worker

_alive: list[LLM] = []  # an engine that is deleted takes what all engines of a process share with it
LENGTH, TOKENS = 4, 18
PROMPTS = ["Tom has 3 apples and 4 pears. How many", "What is 12 + 7?", "Anna reads 5 pages a day. In"]
HEADS: Mapping[str, tuple[type[DraftHead], Mapping[str, Any]]] = {
    "eagle": (EagleHead, {}),
    "eagle3": (Eagle3Head, {}),
    "eagle3-of-some-tokens": (Eagle3Head, {"drafted": torch.arange(3, 979, 2)}),
    "mtp": (MtpHead, {}),
}


@dataclass
class Seen:
    """The judged steps of an engine: what its workers logged, and the drafts' logits that they judged by."""

    steps: list[Step] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)  # (N, V) each

    def add(self, step: Step) -> None:
        if step.facts.shape[1]:
            self.steps.append(step)

    def finish(self, ids: Sequence[str]) -> None: ...


class Served:
    """An engine of vLLM that follows a profile of a target and a head, in this process."""

    def __init__(self, target: Path, head: DraftHead, folder: Path | None, place: Path) -> None:
        self.head = head
        draft = folder or target
        served = load_model(str(target), "cpu", torch.float32)
        facts = {"vocab_size": served.config.vocab_size, "fingerprint": model_fingerprint(served)}
        changes = {f"target.{name}": value for name, value in facts.items()} | {
            "target.id": str(target), "draft.id": str(draft), "draft_length": LENGTH,
            "tokenizer": tokenizer_fingerprint(AutoTokenizer.from_pretrained(target)),
        }  # fmt: skip
        profile(changes).save(place / "profile.json")
        spec = {
            "method": head.method,
            "num_speculative_tokens": LENGTH,
            "model": None if folder is None else str(folder),
        }
        given = {name: value for name, value in spec.items() if value is not None}
        self.llm = engine(target, given, {"fsd": {"profile": str(place / "profile.json")}})

    def generate(self, options: Mapping[str, Any]) -> tuple[list[Any], Seen]:
        """Returns the outputs of `PROMPTS`, and what was judged meanwhile."""
        serving, seen = worker(self.llm).serving, Seen()
        judge, listeners = serving._judge, serving._telemetry.log._listeners

        def recording(step: Any, thresholds: Sequence[float], measures: Any) -> Any:
            judged = judge(step, thresholds, measures)
            if judged is not None:
                layout = judged.layout
                seen.kept.append(serving._drafts.at(layout.rows[layout.owner], layout.place).clone())
            return judged

        recording.needs_places, recording.needs_all = False, True  # type: ignore[attr-defined]
        serving._judge, serving._telemetry.log._listeners = recording, [*listeners, seen]
        try:
            outputs = generate(self.llm, options)
            serving._telemetry.log.flush()
            return outputs, seen
        finally:
            serving._judge, serving._telemetry.log._listeners = judge, listeners


def engine(target: Path, speculation: Mapping[str, Any] | None, additional: Mapping[str, Any]) -> LLM:
    _alive.append(LLM(str(target), dtype="float32", max_model_len=200, enforce_eager=True, max_num_seqs=4,
                      kv_cache_memory_bytes=64 << 20, speculative_config=speculation,
                      additional_config=dict(additional)))  # fmt: skip
    return _alive[-1]


def generate(llm: LLM, options: Mapping[str, Any]) -> list[Any]:
    wanted = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, extra_args=dict(options))
    return list(llm.generate(PROMPTS, wanted, use_tqdm=False))


def problems() -> list[list[int]]:
    """Returns texts that heads are trained on."""
    tokenizer = AutoTokenizer.from_pretrained(pair_paths()[0])
    return [tokenizer(problem.prompt)["input_ids"] for problem in load_task("arithmetic", seed=0, limit=300).problems]


def texts(outputs: Sequence[Any]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module", params=HEADS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Served, Any]:
    """An engine with a head, and the outputs of vLLM's own engine, without drafts and plugin, of its target."""
    kind, options = HEADS[request.param]
    place = tmp_path_factory.mktemp(request.param)
    bundled = Path(pair_paths()[0])
    if kind is MtpHead:
        head: Any = trained_head(kind, mimo_target(64, 979, seed=1), problems(), seed=2)
        target, folder = save_mimo(head, bundled, place / "model"), None
    else:
        loaded = AutoModelForCausalLM.from_pretrained(bundled, dtype=torch.float32).eval().requires_grad_(False)
        head = trained_head(kind, loaded, problems(), seed=2, **options)
        target, folder = bundled, save_head(head, place / "head")
    own = generate(engine(target, None, {}), {})
    return Served(target, head, folder, place), own


@pytest.mark.parametrize("options", [{"fsd": "off"}, {"fsd_threshold": -1.0}])
def test_exact_requests_get_vllms_own_texts(served: tuple[Served, Any], options: Mapping[str, Any]) -> None:
    engine, own = served
    outputs, seen = engine.generate(options)
    assert texts(outputs) == texts(own)
    assert not seen.steps  # nothing is judged


def test_a_large_threshold_accepts_every_draft(served: tuple[Served, Any]) -> None:
    engine, own = served
    outputs, seen = engine.generate({"fsd_threshold": 1.0})  # js is at most ln 2
    assert texts(outputs) != texts(own)
    assert seen.steps
    for step, kept in zip(seen.steps, seen.kept, strict=True):
        drafting = step.layout.counts > 0
        assert step.accepted[drafting].tolist() == step.layout.counts[drafting].tolist()
        emitted = [row[:count] for row, count in zip(step.sampled.tolist(), step.layout.counts, strict=True)]
        assert kept.argmax(-1).tolist() == [token for row in emitted for token in row]  # greedy: the drafts' argmax


@pytest.mark.parametrize("quantile", [0.3, 0.7])
def test_judged_by_the_logits_of_the_head(served: tuple[Served, Any], quantile: float) -> None:
    """Kept logits, D and decisions are those of the head and the target in plain PyTorch, at every decided token."""
    engine, _ = served
    _, every = engine.generate({"fsd_threshold": 1.0})
    threshold = torch.cat([torch.tensor(step.scores) for step in every.steps]).quantile(quantile).item()
    outputs, seen = engine.generate({"fsd_threshold": threshold})
    decided = sorted(decisions(engine.head, outputs, seen))
    assert {True, False} == {accepted for _, _, accepted, _ in decided}
    for expected, found, accepted, exact in decided:
        assert found == pytest.approx(expected, abs=2e-4)
        if abs(expected - threshold) > 2e-4:
            assert accepted == (exact or expected <= threshold)


def decisions(head: DraftHead, outputs: Sequence[Any], seen: Seen) -> Iterator[tuple[float, float, bool, bool]]:
    """Yields D computed anew and as vLLM's worker found it, whether the token was accepted, and whether it is argmax p.

    Of every drafted token that was accepted or is its round's first rejected one; checks its kept logits, too.
    """
    tokens = {output.request_id: [*output.prompt_token_ids, output.outputs[0].token_ids[0]] for output in outputs}
    for step, kept in zip(seen.steps, seen.kept, strict=True):
        begins = step.layout.counts.cumsum() - step.layout.counts
        for row, (name, count) in enumerate(zip(step.ids, step.layout.counts.tolist(), strict=True)):
            known = tokens[name.split("-")[0]]
            accepted = int(step.accepted[row])
            emitted = step.sampled[row, : accepted + 1].tolist()
            for place in range(min(accepted + 1, count)):
                here = int(begins[row]) + place
                draft = head.drafts(known, [*emitted[:place], 0])[-1]
                torch.testing.assert_close(kept[here], draft, atol=2e-3, rtol=1e-3)
                with torch.inference_mode():
                    target = head.target(torch.tensor([[*known, *emitted[:place]]])).logits[0, -1]
                found = float(step.scores[here])
                exact = int(target.argmax()) == int(draft.argmax())
                yield float(divergence("js", target, draft)), found, place < accepted, exact
            known += emitted
