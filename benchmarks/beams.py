"""Speed of beams over the target's own, and quality over single texts: `python benchmarks/beams.py`; 10 minutes a core.

On the bundled pair's word problems, one prompt at a time, on one thread, by that thread's own seconds. Every contender
answers the same problems. So each has a speed, in tokens of a beam per second, an accuracy of its best-scored answer,
and one of the answer that most of its texts have.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

import torch
from transformers.utils import logging

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.tasks.base import Problem, Task
from fsd_data import pair_paths
from lib.common.claims import Claim
from lib.common.results import conclude, machine_facts, options_of
from lib.common.timing import Ratio, Run, ratio_of_repeats, take_turns

_SEED = 31_337
_BEAMS = 4
_LOSSLESS, _LOOSE = {"width": 6, "depth": 3}, {"width": 4, "depth": 4}  # fastest of a few on other problems
_LOSSLESS_DRAWN = {"width": 4, "depth": 4}
_THRESHOLDS = 0.02, 0.1
_T, _DRAWN_T = 0.1, 0.02  # of the claims
_FASTER, _KEPT = 1.2, 0.95
_OF_THE_SEED = "1.5 to 1.9 times beam sampling at the same quality (DSBD, arXiv 2409.16560, on GPUs and larger models)"


@dataclass(frozen=True)
class Answered:
    """What a contender made of some problems.

    Args:
        run: tokens of a text, and seconds.
        best, majority: of each problem, whether the best-scored answer is right, and that of most texts.
        rounds: forward passes of the target.
        slots: KV slots behind the prompts at most, in all.
        texts: different texts.
    """

    run: Run
    best: tuple[bool, ...]
    majority: tuple[bool, ...]
    rounds: int
    slots: int
    texts: int

    def __add__(self, other: Answered) -> Answered:
        return Answered(
            self.run + other.run, self.best + other.best, self.majority + other.majority, self.rounds + other.rounds,
            self.slots + other.slots, self.texts + other.texts,
        )  # fmt: skip


Contender = Callable[[Problem], Answered]


def contenders(decoder: SpeculativeDecoder, task: Task) -> dict[str, Contender]:
    """Returns what is compared, by name: each kind of beams by the target, without loss and fuzzily, and texts."""
    beams = partial(_beams, decoder, task)
    found: dict[str, Contender] = {}
    for kind, given in (("beam search", {"temperature": 0.0}), ("stochastic", {"temperature": 1.0})):
        found[f"{kind}, target"] = partial(beams, rule="target", **given)
        found[f"{kind}, coupled"] = partial(beams, rule="coupled", **given, **_LOSSLESS)
        for threshold in _THRESHOLDS:
            found[f"{kind}, T={threshold}"] = partial(beams, rule="fsd-coupled", threshold=threshold, **given, **_LOOSE)
    drawn = partial(beams, temperature=1.0, replacement=True)
    found["drawn, target"] = partial(drawn, rule="target")
    found["drawn, sd"] = partial(drawn, rule="sd", **_LOSSLESS_DRAWN)
    found[f"drawn, T={_DRAWN_T}"] = partial(drawn, rule="fsd-sd", threshold=_DRAWN_T, **_LOOSE)
    found["one greedy text"] = partial(_texts, decoder, task, 1, 0.0)
    for count in (1, _BEAMS, 2 * _BEAMS):
        found[f"{count} sampled"] = partial(_texts, decoder, task, count, 1.0)
    return found


def _beams(decoder: SpeculativeDecoder, task: Task, problem: Problem, **given: Any) -> Answered:
    began = time.thread_time()
    (result,) = decoder.generate_beams(
        [problem.prompt], _BEAMS, task.max_new_tokens, ids=[problem.id], stop=task.stop, **given
    )
    seconds = time.thread_time() - began
    texts = [beam.text for beam in result.beams]
    return _graded(task, problem, texts, Run(result.layers, seconds), result.rounds, result.slots)


def _texts(decoder: SpeculativeDecoder, task: Task, count: int, temperature: float, problem: Problem) -> Answered:
    """Independent texts, decoded together without loss; the first stands for the best."""
    ids = [problem.id + number for number in range(count)]
    began = time.thread_time()
    results = decoder.generate(
        [problem.prompt] * count, task.max_new_tokens, temperature, rule="coupled", ids=ids, stop=task.stop
    )
    seconds = time.thread_time() - began
    tokens = sum(result.emitted for result in results)
    run = Run(tokens / count, seconds)
    return _graded(task, problem, [result.text for result in results], run, max(r.rounds for r in results), tokens)


def _graded(task: Task, problem: Problem, texts: Sequence[str], run: Run, rounds: int, slots: int) -> Answered:
    best, chosen = task.grade(problem, texts[0]), task.grade(problem, most_common(texts))
    return Answered(run, (best,), (chosen,), rounds, slots, len(texts))


def most_common(texts: Sequence[str]) -> str:
    """Returns the first text whose last number most texts end in; of equal ones that which comes first."""
    numbers = [(re.findall(r"-?\d+", text) or [""])[-1] for text in texts]
    return texts[numbers.index(Counter(numbers).most_common(1)[0][0])]


def measure(groups: int, size: int) -> dict[str, Any]:
    """Returns each contender's speed and accuracy, and speeds over the target's own of its kind, group by group."""
    decoder = SpeculativeDecoder.from_pretrained(*pair_paths())
    task = load_task("arithmetic", seed=_SEED, limit=groups * size + 1)
    asked = contenders(decoder, task)
    take_turns(asked, task.problems[-1:], 1)  # warms up
    runs: dict[str, list[Answered]] = {name: [] for name in asked}
    for first in range(0, groups * size, size):
        for name, found in take_turns(asked, task.problems[first : first + size], 1).items():
            runs[name] += found
        print(f"{first + size} problems", flush=True)
    return {
        "beams": _BEAMS, "problems": groups * size, "lossless": _LOSSLESS, "fuzzy": _LOOSE, "drawn": _LOSSLESS_DRAWN,
        "published": _OF_THE_SEED,
        "contenders": {name: _summary(found) for name, found in runs.items()},
        "speed_ups": {name: _speed_up(found, runs[f"{name.split(', ')[0]}, target"])
                      for name, found in runs.items() if ", " in name and not name.endswith("target")},
    }  # fmt: skip


def _summary(groups: Sequence[Answered]) -> dict[str, float]:
    whole = groups[0]
    for group in groups[1:]:
        whole += group
    return {
        "accuracy": mean(whole.best), "majority": mean(whole.majority),
        "seconds": whole.run.seconds / len(whole.best), "tokens_per_second": whole.run.rate,
        "tokens_a_round": whole.run.amount / whole.rounds, "slots_a_token": whole.slots / whole.run.amount,
        "texts": whole.texts / len(whole.best),
    }  # fmt: skip


def _speed_up(fast: Sequence[Answered], slow: Sequence[Answered]) -> Ratio:
    return ratio_of_repeats([f.run.rate / s.run.rate for f, s in zip(fast, slow, strict=True)])


def table(found: Mapping[str, Any]) -> str:
    lines = [f"{found['problems']} problems, {found['beams']} beams; published: {found['published']}"]
    for name, facts in found["contenders"].items():
        ratio = found["speed_ups"].get(name)
        lines.append(
            f"  {name:22s} accuracy {facts['accuracy']:.3f}, majority {facts['majority']:.3f}, "
            f"{facts['seconds']:.3f} s a problem, {facts['tokens_a_round']:.2f} tokens a round, "
            f"{facts['texts']:.1f} texts" + (f", {ratio.median:.2f}x ({ratio.at_least:.2f})" if ratio else "")
        )
    return "\n".join(lines)


def claims(found: Mapping[str, Any]) -> Iterator[Claim]:
    facts, ratios = found["contenders"], found["speed_ups"]
    for kind, threshold in (("beam search", _T), ("stochastic", _T), ("drawn", _DRAWN_T)):
        yield Claim.faster(f"{kind}: T={threshold} / target", _FASTER, ratios[f"{kind}, T={threshold}"])
        kept = facts[f"{kind}, T={threshold}"]["accuracy"] / facts[f"{kind}, target"]["accuracy"]
        yield Claim.at_least(f"{kind}: accuracy at T={threshold} / the target's", _KEPT, kept)
    yield Claim.faster("drawn: sd / target", _FASTER, ratios["drawn, sd"])


def main() -> int:
    options = options_of(__doc__, "beams.json").parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    machine = machine_facts()
    found = measure(2, 1) if options.quick else measure(8, 8)
    return conclude(options, machine, found, claims(found), table(found))


if __name__ == "__main__":
    sys.exit(main())
