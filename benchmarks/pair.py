"""Measures the bundled pair and writes the results to its README: `python benchmarks/pair.py`.

All numbers are of held-out problems, which training does not use, and of this machine.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.tasks.base import Task
from fsd_data import pair_paths
from fsd_decoding.models.runner import ModelRunner

_SEED, _LENGTH, _DRAFT_LENGTH, _STEPS = 424_242, 100, 5, 300
_THRESHOLDS = (0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7)


@dataclass(frozen=True)
class Row:
    label: str
    accuracy: float
    retention: float
    tokens_per_round: float
    accepted: float  # share of drafted tokens


def decode(decoder: SpeculativeDecoder, task: Task, temperature: float, rule: str, threshold: float) -> Row:
    results = decoder.generate(
        [p.prompt for p in task.problems], max_new_tokens=task.max_new_tokens, temperature=temperature, rule=rule,
        threshold=threshold, draft_length=_DRAFT_LENGTH, batch_size=64, ids=[p.id for p in task.problems],
        stop=task.stop,
    )  # fmt: skip
    right = sum(task.grade(p, r.text) for p, r in zip(task.problems, results, strict=True))
    tokens = sum(r.emitted for r in results)
    rounds, drafted = sum(r.rounds for r in results), sum(r.drafted for r in results)
    accepted = sum(r.accepted for r in results) / drafted if drafted else 0.0
    label = rule if rule in ("target", "sd") else f"{rule} js <= {threshold}"
    return Row(label, right / len(results), 0.0, tokens / rounds, accepted)


def curve(decoder: SpeculativeDecoder, task: Task, temperature: float) -> list[Row]:
    """Returns rows of the target, of SD and of every threshold, with retention relative to the target."""
    settings = [("target", 0.0), ("sd", 0.0), *(("fsd-coupled", t) for t in _THRESHOLDS)]
    rows = [decode(decoder, task, temperature, *setting) for setting in settings]
    alone = rows[0].accuracy
    return [Row(r.label, r.accuracy, r.accuracy / alone, r.tokens_per_round, r.accepted) for r in rows]


@torch.inference_mode()
def step_milliseconds(models: Sequence[Any]) -> list[list[float]]:
    """Returns milliseconds of single-token steps at batch 1 after 100 cached tokens, the models taking turns."""
    runners = [ModelRunner(m, rows=1, slots=_LENGTH + _STEPS, vocabulary=m.config.vocab_size) for m in models]
    token = torch.zeros((1, 1), dtype=torch.int64)
    taken: list[list[float]] = [[] for _ in models]
    for step in range(_STEPS):
        position = torch.tensor([[_LENGTH + step % 20]])
        for runner, times in zip(runners, taken, strict=True):
            started = time.perf_counter()
            runner.logits(token, position, _LENGTH + 20, keep=1)
            times.append(1000 * (time.perf_counter() - started))
    return [times[_STEPS // 10 :] for times in taken]


def report(decoder: SpeculativeDecoder, task: Task) -> str:
    greedy, sampled = (curve(decoder, task, temperature) for temperature in (0.0, 0.6))
    draft_alone = SpeculativeDecoder(decoder.draft, decoder.draft, decoder.tokenizer)
    draft_accuracy = decode(draft_alone, task, 0.0, "target", 0.0).accuracy
    steps = step_milliseconds([decoder.target, decoder.draft])
    target_ms, draft_ms = (statistics.median(s) for s in steps)
    sd = greedy[1]
    kept = [row for row in greedy[2:] if row.retention >= 0.98]
    best = max(kept, key=lambda row: row.tokens_per_round)
    lines = [
        "# The bundled pair",
        "",
        "A target and a draft small enough for a laptop CPU, trained from nothing on generated word problems by",
        "`python -m fsd_data.train --out DIR` (logs: `target/training.jsonl`, `draft/training.jsonl`).",
        "The pair was made to show what fuzzy speculative decoding is about: the draft was taught another mix of",
        "wordings than the target, so that much of their disagreement is harmless (wording: rejected by exact",
        "speculative decoding, kept by a fuzzy one) and some is harmful (numbers, because the draft calculates",
        "badly). Real pairs have less of the first kind, and gain less. Apache-2.0, like the code.",
        "",
        "An EAGLE-3 head for the target is in `head` (its card says how well it drafts), trained by",
        "`fsd-train-eagle --task arithmetic --limit 24000 --out DIR` with seed 0; calibrations certify on other",
        "problems than those of its tuning part.",
        "",
        f"Measured by `python benchmarks/pair.py` on {len(task.problems):,} held-out problems "
        f"(seed {_SEED}), L = {_DRAFT_LENGTH}, {decoder.dtype}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, {platform.machine()}, {torch.get_num_threads()} threads:",
        "",
        "| what | measured | wanted |",
        "| --- | --- | --- |",
        f"| target solves | {greedy[0].accuracy:.1%} | at least 93 % |",
        f"| draft solves | {draft_accuracy:.1%} | 30 to 75 % |",
        f"| one target step (batch 1, CPU) costs | {target_ms / draft_ms:.1f} draft steps "
        f"({target_ms:.2f} and {draft_ms:.2f} ms, medians) | at least 5 |",
        f"| greedy `sd` accepts | {sd.accepted:.1%} of drafted tokens, {sd.tokens_per_round:.2f} tokens a round "
        "| 60 to 80 % |",
        f"| fastest of the thresholds below with retention >= .98 here | {best.tokens_per_round:.2f} tokens a round, "
        f"{best.tokens_per_round / sd.tokens_per_round:.2f}x `sd` ({best.label}) | at least 1.2x |",
        f"| all files | {megabytes():.1f} MB | at most 12 MB |",
        "",
    ]
    for title, rows in (("Greedy", greedy), ("Temperature 0.6", sampled)):
        lines += [f"## {title}", "", *table(rows), ""]
    return "\n".join(lines)


def table(rows: Sequence[Row]) -> list[str]:
    head = [
        "| rule | accuracy | retention | tokens a round | drafted tokens accepted |",
        "| --- | --- | --- | --- | --- |",
    ]
    return head + [
        f"| `{r.label}` | {r.accuracy:.1%} | {r.retention:.3f} | {r.tokens_per_round:.2f} | {r.accepted:.1%} |"
        for r in rows
    ]


def megabytes() -> float:
    pair = pair_paths()[0].parent
    return sum(f.stat().st_size for f in pair.rglob("*") if f.is_file()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    options = parser.parse_args()
    target, draft = pair_paths()
    decoder = SpeculativeDecoder.from_pretrained(target, draft)
    text = report(decoder, load_task("arithmetic", seed=_SEED, limit=options.problems))
    (target.parent / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
