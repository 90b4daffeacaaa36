"""A T by the phase of the text in engines of vLLM: each drafted token is judged by the T of what stands before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from fsd_decoding.adaptive import Phase
from fsd_decoding.profile.parts import PolicyInfo
from fsd_decoding.text import token_bytes
from support.phases import inside_before
from support.vllm_async import async_engine
from support.vllm_decisions import Decision, agrees, decisions
from support.vllm_engine import Recorded, arithmetic, engine, metric, sampling, saved, tokenizer

MARKERS = "=", " "  # of the result of each calculation
INSIDE, OUTSIDE = 0.5, 0.02
SCARCE: dict[str, Any] = {
    "block_size": 32, "num_gpu_blocks_override": 15, "enable_prefix_caching": False, "disable_log_stats": False,
}  # fmt: skip
"""Room for a few texts: later ones are thrown out again and again."""
MAKES = pytest.mark.parametrize("make", [engine, async_engine], ids=["synchronous", "asynchronous"])


def saved_with(folder: Path, phase: Phase) -> str:
    policy = PolicyInfo.of(str(phase.identity)).model_dump()
    return saved(folder, {"policy": policy, "threshold": phase.threshold})


def served(llm: Any, count: int) -> Iterable[tuple[Decision, bool]]:
    """Serves problems; yields every decision, and whether its token is inside the phase."""
    recorded, texts = Recorded(llm), token_bytes(tokenizer())
    outputs = llm.generate([p.prompt for p in arithmetic(count).problems], sampling(), use_tqdm=False)
    for output in outputs:
        prompt = list(output.prompt_token_ids)
        emitted = [token for each in recorded.of(output.request_id) for token in each.emitted]
        inside = inside_before([*prompt, *emitted], texts, MARKERS)[len(prompt) :]
        for decision in decisions(recorded, output):
            yield decision, inside[decision.place]


def assert_followed(found: Iterable[tuple[Decision, bool]], inside: float, outside: float) -> None:
    decided = list(found)
    assert [d for d, within in decided if not agrees(d, inside if within else outside)] == []
    assert sum(d.rejected and d.exact < inside for d, within in decided if not within) > 20
    assert sum(d.fuzzy and d.exact > outside for d, within in decided if within) > 5


@MAKES
@pytest.mark.parametrize("more", [{}, SCARCE, {"max_num_seqs": 8, "max_num_batched_tokens": 40}], ids=len)
def test_tokens_are_judged_by_the_t_of_their_phase(tmp_path: Path, make: Callable[..., Any], more: Any) -> None:
    llm = make(saved_with(tmp_path, Phase(INSIDE, OUTSIDE, *MARKERS)), **more)
    assert_followed(served(llm, 40), INSIDE, OUTSIDE)
    assert more is not SCARCE or metric(llm, "vllm:num_preemptions") > 3


def test_a_phase_without_a_t_is_decoded_exactly(tmp_path: Path) -> None:
    """Also where both distributions are the same to the last bit."""
    found = list(served(engine(saved_with(tmp_path, Phase(INSIDE, -1, *MARKERS))), 40))
    assert_followed(found, INSIDE, -1.0)
    assert not any(d.fuzzy for d, within in found if not within)
