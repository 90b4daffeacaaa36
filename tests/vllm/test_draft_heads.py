"""Drafters that read the target's hidden states, run by vLLM and followed: EAGLE, EAGLE-3, MTP, DFlash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm.entrypoints.llm import LLM
from vllm.sampling_params import SamplingParams

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.vllm_plugin.telemetry.steps import Step
from fsd_data import pair_paths
from fsd_decoding.divergence import divergence
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.drafters.vllm_draft import VllmDraft
from fsd_decoding.loading import load_model
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from support.calibration.profiles import profile
from support.models.draft_heads import (
    DFlashHead,
    DraftHead,
    Eagle3Head,
    EagleHead,
    MtpHead,
    mimo_target,
    random_dflash,
    save_head,
    save_mimo,
    trained_head,
)
from support.models.head_formats import MODELOPT, SPECFORGE, SPECULATORS, Format
from support.vllm_engine import worker

_alive: list[LLM] = []  # an engine that is deleted takes what all engines of a process share with it
LENGTH, TOKENS = 4, 18
PROMPTS = ["Tom has 3 apples and 4 pears. How many", "What is 12 + 7?", "Anna reads 5 pages a day. In"]
Head = DraftHead | DFlashHead
HEADS: Mapping[str, tuple[type[Head], Mapping[str, Any]]] = {
    "eagle": (EagleHead, {}),
    "eagle3": (Eagle3Head, {}),
    "eagle3-of-some-tokens": (Eagle3Head, {"drafted": torch.arange(3, 979, 2)}),
    "mtp": (MtpHead, {}),
    "dflash": (DFlashHead, {}),
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
    """An engine of vLLM that follows a profile of a target and a head, in this process.

    Args:
        target: its folder.
        method: what vLLM calls heads of this kind.
        folder: the head's; None: it is in the target's.
        place: where the profile is written to.
    """

    def __init__(self, target: Path, method: str, folder: Path | None, place: Path) -> None:
        served = load_model(str(target), "cpu", torch.float32)
        facts = {"vocab_size": served.config.vocab_size, "fingerprint": model_fingerprint(served)}
        named = {"method": method} | ({} if folder is None else {"model": str(folder)})
        draft = VllmDraft.of(named)
        changes = {f"target.{name}": value for name, value in facts.items()} | {
            "target.id": str(target), "draft.id": repr(draft), "draft.kind": "vllm",
            "draft.fingerprint": draft.fingerprint(str(facts["fingerprint"])), "draft_length": LENGTH,
            "tokenizer": tokenizer_fingerprint(AutoTokenizer.from_pretrained(target)),
        }  # fmt: skip
        profile(changes).save(place / "profile.json")
        given = {**named, "num_speculative_tokens": LENGTH}
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

        recording.needs_places = False  # type: ignore[attr-defined]
        serving._judge, serving._telemetry.log._listeners = recording, [*listeners, seen]
        serving._looks_first = lambda *_: False  # D of all tokens is computed
        try:
            outputs = generate(self.llm, options)
            serving._telemetry.log.flush()
            return outputs, seen
        finally:
            serving._judge, serving._telemetry.log._listeners = judge, listeners
            del serving._looks_first


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
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Served, Head, Any]:
    """An engine with a head, the head, and what vLLM's own engine, without drafts and plugin, makes of its target."""
    kind, options = HEADS[request.param]
    place = tmp_path_factory.mktemp(request.param)
    bundled = Path(pair_paths()[0])
    if kind is MtpHead:
        head: Any = trained_head(kind, mimo_target(64, 979, seed=1), problems(), seed=2)
        target, folder = save_mimo(head, bundled, place / "model"), None
    elif kind is DFlashHead:
        head = random_dflash(bundled_target(), LENGTH, seed=2)
        target, folder = bundled, head.save(place / "head")
    else:
        assert issubclass(kind, DraftHead)
        head = trained_head(kind, bundled_target(), problems(), seed=2, **options)
        target, folder = bundled, save_head(head, place / "head")
    return Served(target, head.method, folder, place), head, own_outputs(target)


@cache
def own_outputs(target: Path) -> list[Any]:
    """What vLLM's own engine, without drafts and plugin, makes of a target."""
    return generate(engine(target, None, {}), {})


def bundled_target() -> Any:
    return AutoModelForCausalLM.from_pretrained(pair_paths()[0], dtype=torch.float32).eval().requires_grad_(False)


@pytest.mark.parametrize("options", [{"fsd": "off"}, {"fsd_threshold": -1.0}])
def test_exact_requests_get_vllms_own_texts(served: tuple[Served, Head, Any], options: Mapping[str, Any]) -> None:
    engine, _, own = served
    outputs, seen = engine.generate(options)
    assert texts(outputs) == texts(own)
    assert not seen.steps  # nothing is judged


def test_a_large_threshold_accepts_every_draft(served: tuple[Served, Head, Any]) -> None:
    engine, _, own = served
    outputs, seen = engine.generate({"fsd_threshold": 1.0})  # js is at most ln 2
    assert texts(outputs) != texts(own)
    assert seen.steps
    for step, kept in zip(seen.steps, seen.kept, strict=True):
        drafting = step.layout.counts > 0
        assert step.accepted[drafting].tolist() == step.layout.counts[drafting].tolist()
        emitted = [row[:count] for row, count in zip(step.sampled.tolist(), step.layout.counts, strict=True)]
        assert kept.argmax(-1).tolist() == [token for row in emitted for token in row]  # greedy: the drafts' argmax


@pytest.mark.parametrize("quantile", [0.3, 0.7])
def test_judged_by_the_logits_of_the_head(served: tuple[Served, Head, Any], quantile: float) -> None:
    """Kept logits, D and decisions are those of the head and the target in plain PyTorch, at every decided token."""
    engine, head, _ = served
    _, every = engine.generate({"fsd_threshold": 1.0})
    threshold = torch.cat([torch.tensor(step.scores) for step in every.steps]).quantile(quantile).item()
    outputs, seen = engine.generate({"fsd_threshold": threshold})
    decided = sorted(decisions(head, outputs, seen))
    assert {True, False} == {accepted for _, _, accepted, _ in decided}
    for expected, found, accepted, exact in decided:
        assert found == pytest.approx(expected, abs=2e-4)
        if abs(expected - threshold) > 2e-4:
            assert accepted == (exact or expected <= threshold)


def decisions(head: Head, outputs: Sequence[Any], seen: Seen) -> Iterator[tuple[float, float, bool, bool]]:
    """Yields D computed anew and as vLLM's worker found it, whether the token was accepted, and whether it is argmax p.

    Of every drafted token that was accepted or is its round's first rejected one; checks its kept logits, too.
    """
    for known, emitted, begins, step, kept in rounds(outputs, seen):
        accepted = len(emitted) - 1
        for place, logits in enumerate(kept[: accepted + 1]):
            draft = head.drafts(known, [*emitted[:place], 0])[-1]
            torch.testing.assert_close(logits, draft, atol=2e-3, rtol=1e-3)
            with torch.inference_mode():
                target = head.target(torch.tensor([[*known, *emitted[:place]]])).logits[0, -1]
            exact = int(target.argmax()) == int(draft.argmax())
            yield float(divergence("js", target, draft)), float(step.scores[begins + place]), place < accepted, exact


def rounds(outputs: Sequence[Any], seen: Seen) -> Iterator[tuple[list[int], list[int], int, Step, Tensor]]:
    """Yields the judged rounds: the text before, the tokens emitted, and the logits (n, V) of the drafted ones.

    With the step that a round is part of, and where its drafted tokens begin there.
    """
    tokens = {output.request_id: [*output.prompt_token_ids, output.outputs[0].token_ids[0]] for output in outputs}
    for step, kept in zip(seen.steps, seen.kept, strict=True):
        begins = step.layout.counts.cumsum() - step.layout.counts
        for row, (name, begin, count) in enumerate(
            zip(step.ids, begins.tolist(), step.layout.counts.tolist(), strict=True)
        ):
            known = tokens[name.split("-")[0]]
            emitted = step.sampled[row, : int(step.accepted[row]) + 1].tolist()
            yield [*known], emitted, begin, step, kept[begin : begin + count]
            known += emitted


# --- heads as their trainers save them ---------------------------------------------------------------

IDS, SOME = "eagle_aux_hidden_state_layer_ids", torch.arange(3, 979, 2)
SAVED: Mapping[str, tuple[Format, Mapping[str, Any]]] = {
    "speculators": (SPECULATORS, {"known": SOME, "norm_before_fc": True, "norm_output": True, IDS: [9, 1, 5]}),
    "speculators-residual": (SPECULATORS, {"norm_before_residual": True, "fc_norm": True, "attention_bias": True}),
    "speculators-window": (
        SPECULATORS,
        {"layer_types": ["sliding_attention"], "sliding_window": 7, "use_sliding_window": True},
    ),
    "specforge": (
        SPECFORGE,
        {"known": SOME, "fc_norm": True, "norm_output": True, "without": ("embed_tokens.weight",)},
    ),
    # vLLM takes ModelOpt's numbers of layers, of which it reads what comes out, for the layers that states go into.
    "modelopt": (
        MODELOPT,
        {
            "known": SOME, "without": ("embed_tokens.weight", "t2d"), "target_hidden_states": [1, 6, 10],
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
def test_vllm_drafts_what_our_engine_does(name: str, tmp_path: Path) -> None:
    """Of the same file: every draft's logits, and so every token, after the texts that vLLM went on from."""
    of, changes = SAVED[name]
    target = bundled_target()
    folder = of.saved(target, **changes).write(tmp_path / "head")
    outputs, seen = Served(Path(pair_paths()[0]), "eagle3", folder, tmp_path).generate({"fsd_threshold": 1.0})
    drafted = {tuple(known): (emitted, kept) for known, emitted, _, _, kept in rounds(outputs, seen) if len(kept)}
    ours: dict[tuple[int, ...], Tensor] = {}

    def observe(record: Any) -> None:
        proposal = record.proposal
        for row, request in enumerate(record.requests):
            if request is not None:
                text = proposal.tokens[row, : int(proposal.positions[row, 0])].tolist()
                ours[tuple(text)] = proposal.draft_logits[row].clone()

    decoder = SpeculativeDecoder(
        target, Eagle(folder), AutoTokenizer.from_pretrained(pair_paths()[0]), rule="fsd-coupled", threshold=1.0,
        draft_length=LENGTH,
    )  # fmt: skip
    decoder.generate([[*text] for text in drafted], LENGTH, batch_size=len(drafted), observer=observe)
    assert len(drafted) > 6
    for text, (emitted, kept) in drafted.items():
        torch.testing.assert_close(kept, ours[text][: len(kept)], atol=2e-3, rtol=1e-3)
        assert ours[text].argmax(-1).tolist()[: len(kept)] == emitted[: len(kept)]
