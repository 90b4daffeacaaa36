"""A custom threshold policy, compared with a constant T on the bundled pair of models.

python examples/own_policy.py [PROBLEMS]
"""

from __future__ import annotations

import sys

import torch

from fsd_calib import SpeculativeDecoder, adaptive, load_task
from fsd_data import pair_paths


class Unsure(adaptive.ScalePolicy):
    """T times the target's probability of all tokens except the most likely one: strict where the target is sure."""

    threshold, least = 0.4, 0.05

    def scales(self, state: adaptive.RoundState) -> torch.Tensor:
        p = state.proposal.target_logits[:, :-1].softmax(-1)  # (B, L, V), at the drafted tokens
        return (1 - p.amax(-1)).clamp_min(self.least)  # (B, L), one per drafted token


def main(problems: int = 64) -> None:
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths())
    task = load_task("arithmetic", limit=problems, tokenizer=decoder.tokenizer)
    for threshold in (0.1, Unsure()):
        results = decoder.generate(
            [problem.prompt for problem in task.problems],
            task.max_new_tokens,
            threshold=threshold,
            stop=task.stop,
        )
        right = sum(task.grade(problem, r.text) for problem, r in zip(task.problems, results, strict=True))
        tokens, rounds = sum(r.emitted for r in results), sum(r.rounds for r in results)
        name = f"T = {threshold}" if isinstance(threshold, float) else type(threshold).__name__
        print(f"{name}: {tokens / rounds:.2f} tokens a round, {right} of {len(results)} right")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
