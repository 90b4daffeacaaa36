"""What drafts: the draft model, the text itself (n-grams) or a head of the target, under the same rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fsd_calib import Eagle, NGram, SpeculativeDecoder
from fsd_calib.engines.own import RoundClock, undisturbed_clock
from fsd_calib.tasks.base import Problem
from lib.real.blocks import RULE, Blocks

_SCORE = "margin"  # which reads p alone, so that a T means the same whatever drafts
_TIMED = 2  # problems, one at a time


def beside(blocks: Blocks, head: str | None, draft_length: int) -> Iterator[dict[str, Any]]:
    """Yields tokens a round, outcomes and speed of each drafter on the first block, lossless and at the middle T."""
    problems, decoder = blocks.problems(0), blocks.decoder
    drafters = {"model": decoder.draft, "ngram": NGram(), **({} if head is None else {"eagle": Eagle(head)})}
    middle = blocks.thresholds[_SCORE][len(blocks.thresholds[_SCORE]) // 2]
    for name, draft in drafters.items():
        drafting = SpeculativeDecoder.from_pretrained(
            decoder.target, draft, tokenizer=decoder.tokenizer, temperature=blocks.temperature, seed=decoder.seed,
            draft_length=draft_length, score=_SCORE,
        )  # fmt: skip
        for threshold in (-1.0, middle):
            yield {"drafter": name, "threshold": threshold, **_decoded(drafting, blocks, problems, threshold)}


def _decoded(
    decoder: SpeculativeDecoder, blocks: Blocks, problems: Sequence[Problem], threshold: float
) -> dict[str, Any]:
    task, clock = blocks.task, RoundClock(decoder.device, undisturbed_clock(decoder.device))
    how: dict[str, Any] = {"stop": task.stop, "rule": RULE, "threshold": threshold}
    prompts, ids = [problem.prompt for problem in problems], [problem.id for problem in problems]
    results = decoder.generate(prompts, task.max_new_tokens, ids=ids, batch_size=blocks.size, **how)
    for problem in problems[:_TIMED]:
        clock.restart()
        decoder.generate([problem.prompt], task.max_new_tokens, ids=[problem.id], observer=clock, batch_size=1, **how)
    correct = [task.grade(problem, result.text) for problem, result in zip(problems, results, strict=True)]
    tokens_per_round = sum(result.emitted for result in results) / sum(result.rounds for result in results)
    seconds = float(np.median(clock.seconds))
    return {
        "correct": float(np.mean(correct)), "tokens_per_round": tokens_per_round, "seconds_per_round": seconds,
        "tokens_per_second": tokens_per_round / seconds,
    }  # fmt: skip
