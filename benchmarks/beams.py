"""Speed of beams over the target's own, and quality over sampled texts: `python benchmarks/beams.py`; 20 minutes.

On the bundled pair's word problems, or on GSM8K (`--pair TARGET DRAFT --data FOLDER --hours HOURS`), one prompt at a
time, on one thread, by that thread's own seconds. Every contender answers the same problems. So each has a speed, in
tokens of a beam per second, an accuracy of its best-scored answer, and one of the answer that most of its texts have.
"""

from __future__ import annotations

import math
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.tasks.base import Problem, Task
from fsd_data import pair_paths
from lib.common.claims import Claim
from lib.common.results import RESULTS, conclude, machine_facts, options_of
from lib.common.timing import Ratio, Run, ratio_of_repeats, take_turns
from lib.peers import RealPair
from lib.real.tasks import FILES, problems_of
from lib.rules.curves import Found, draws

_SEED = 31_337
_BEAMS = 4
_LOSSLESS, _LOOSE = {"width": 6, "depth": 3}, {"width": 4, "depth": 4}  # fastest of a few on other problems
_LOSSLESS_DRAWN = {"width": 4, "depth": 4}
_CHANCE = 0.7  # of the dynamic width: as published
_THRESHOLDS = 0.02, 0.1
_T, _DRAWN_T = 0.1, 0.02  # of the claims
_FASTER, _LOST = 1.2, 0.05
_COUNTS = 1, _BEAMS, 2 * _BEAMS, 4 * _BEAMS, 8 * _BEAMS  # of sampled texts
_ON_REAL = (
    "beam search, target", f"beam search, T={_T}", "drawn, target", "drawn, sd", "drawn, dynamic width",
    f"drawn, T={_DRAWN_T}", "one greedy text", *(f"{count} sampled" for count in _COUNTS[:3]),
)  # fmt: skip
"""What matters most, by a pair whose texts take long."""
_WARM_UP = 8  # tokens of a first, untimed text
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
    """Returns what is compared, by name: each kind of beams by the target, without loss and fuzzily, and texts.

    Draws with a dynamic width are of a law of their own.
    """
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
    found["drawn, dynamic width"] = partial(drawn, rule="sd", chance=_CHANCE, **_LOSSLESS_DRAWN)
    found[f"drawn, T={_DRAWN_T}"] = partial(drawn, rule="fsd-sd", threshold=_DRAWN_T, **_LOOSE)
    found["one greedy text"] = partial(_texts, decoder, task, 1, 0.0)
    for count in _COUNTS:
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
    best, chosen = task.grade(problem, texts[0]), task.grade(problem, most_common(task, problem, texts))
    return Answered(run, (best,), (chosen,), rounds, slots, len(texts))


def most_common(task: Task, problem: Problem, texts: Sequence[str]) -> str:
    """Returns the first of the texts whose answer most of them have."""
    votes = [sum(task.agree(problem, one, other) for other in texts) for one in texts]
    return texts[votes.index(max(votes))]


Groups = Mapping[str, Sequence[Answered]]
"""What each contender made of each group of problems."""


def answers(asked: Mapping[str, Contender], problems: Sequence[Problem], size: int, until: float) -> Groups:
    """Has problems answered by all contenders in turn, group by group.

    Args:
        size: problems of a group.
        until: when no further group begins; one is answered in any case.
    """
    found: dict[str, list[Answered]] = {name: [] for name in asked}
    for first in range(0, len(problems), size):
        if first and time.time() > until:
            break
        for name, answered in take_turns(asked, problems[first : first + size], 1).items():
            found[name] += answered
        print(f"{first + size} problems", flush=True)
    return found


def measured(groups: Groups) -> dict[str, Any]:
    """Returns speed, accuracy, speed over the target's own beams, and quality over sampling."""
    whole = {name: _sum(found) for name, found in groups.items()}
    sampled = {count: whole[name] for count in _COUNTS if (name := f"{count} sampled") in whole}
    beams = [name for name in whole if ", " in name]
    return {
        "beams": _BEAMS, "problems": len(next(iter(whole.values())).best), "lossless": _LOSSLESS, "fuzzy": _LOOSE,
        "drawn": _LOSSLESS_DRAWN, "chance": _CHANCE, "published": _OF_THE_SEED,
        "contenders": {name: _summary(found) for name, found in whole.items()},
        "speed_ups": {name: _speed_up(groups[name], groups[f"{name.split(', ')[0]}, target"])
                      for name in beams if not name.endswith("target")},
        "over_sampling": {name: over_sampling(whole[name], sampled) for name in beams},
    }  # fmt: skip


def _sum(groups: Sequence[Answered]) -> Answered:
    whole = groups[0]
    for group in groups[1:]:
        whole += group
    return whole


def _summary(whole: Answered) -> dict[str, float]:
    return {
        "accuracy": mean(whole.best), "majority": mean(whole.majority),
        "seconds": whole.run.seconds / len(whole.best), "tokens_per_second": whole.run.rate,
        "tokens_a_round": whole.run.amount / whole.rounds, "slots_a_token": whole.slots / whole.run.amount,
        "texts": whole.texts / len(whole.best),
    }  # fmt: skip


def _speed_up(fast: Sequence[Answered], slow: Sequence[Answered]) -> Ratio:
    return ratio_of_repeats([f.run.rate / s.run.rate for f, s in zip(fast, slow, strict=True)])


def over_sampling(beams: Answered, sampled: Mapping[int, Answered]) -> dict[str, Any]:
    """Returns how many sampled texts take as long as beams, and accuracy less that of these texts' majority.

    Between two counts accuracy is taken to be linear in time; more texts than the most counted are not assumed.

    Args:
        sampled: texts by their number.
    """
    seconds = [each.run.seconds for each in sampled.values()]
    shares = np.array([np.interp(beams.run.seconds, seconds, column) for column in np.eye(len(seconds))])
    right = shares @ np.array([each.majority for each in sampled.values()])  # (problems,)
    drawn = draws(len(right)) / len(right)
    best, majority = (Found.of(drawn @ (np.array(answers) - right)) for answers in (beams.best, beams.majority))
    return {"texts": float(shares @ list(sampled)), "best": best, "majority": majority}


def table(found: Mapping[str, Any]) -> str:
    lines = [f"{found['problems']} problems, {found['beams']} beams; published: {found['published']}"]
    for name, facts in found["contenders"].items():
        lines.append(
            f"  {name:22s} accuracy {facts['accuracy']:.3f}, majority {facts['majority']:.3f}, "
            f"{facts['seconds']:.3f} s a problem, {facts['tokens_a_round']:.2f} tokens a round, "
            f"{facts['texts']:.1f} texts"
        )
        if (ratio := found["speed_ups"].get(name)) is not None:
            lines[-1] += f", {ratio.median:.2f}x ({ratio.at_least:.2f})"
        if (over := found["over_sampling"].get(name)) is not None:
            value, low, high = over["best"]
            lines[-1] += f", {value:+.3f} ({low:+.3f} to {high:+.3f}) over {over['texts']:.1f} sampled texts"
    return "\n".join(lines)


def claims(found: Mapping[str, Any]) -> Iterator[Claim]:
    facts, ratios = found["contenders"], found["speed_ups"]
    for kind, threshold in (("beam search", _T), ("stochastic", _T), ("drawn", _DRAWN_T)):
        if (fuzzy := f"{kind}, T={threshold}") in facts:
            yield Claim.faster(f"{kind}: T={threshold} / target", _FASTER, ratios[fuzzy])
            lost = facts[f"{kind}, target"]["accuracy"] - facts[fuzzy]["accuracy"]
            yield Claim.at_most(f"{kind}: accuracy lost at T={threshold}", _LOST, lost)
    yield Claim.faster("drawn: sd / target", _FASTER, ratios["drawn, sd"])


def main() -> int:
    options = _parser().parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    machine = machine_facts()
    if options.pair is None:
        options.out = options.out or RESULTS / "beams.json"
        found = _bundled(options)
    else:
        options.out = options.out or RESULTS / "beams-real.json"
        found = _real(options)
    return conclude(options, machine, found, claims(found), table(found))


def _parser() -> ArgumentParser:
    parser = options_of(__doc__, "beams.json")
    parser.set_defaults(out=None)
    parser.add_argument("--pair", type=Path, nargs="+", metavar="MODEL", help="folders of a target and a draft")
    parser.add_argument("--data", type=Path, help="with --pair: a folder with gsm8k in it; default: bundled problems")
    parser.add_argument("--hours", type=float, default=1.0, help="with --pair: when no further problem begins")
    return parser


def _bundled(options: Namespace) -> dict[str, Any]:
    groups, size = (2, 1) if options.quick else (8, 8)
    task = load_task("arithmetic", seed=_SEED, limit=groups * size + 1)
    asked = contenders(SpeculativeDecoder.from_pretrained(*pair_paths()), task)
    take_turns(asked, task.problems[-1:], 1)  # warms up
    return measured(answers(asked, task.problems[:-1], size, math.inf))


def _real(options: Namespace) -> dict[str, Any]:
    until = time.time() + 3600 * options.hours
    pair = RealPair.of(options.pair, options.data and options.data / FILES["gsm8k"])
    decoder = SpeculativeDecoder.from_pretrained(*pair.models, dtype=pair.dtype)
    task = problems_of("arithmetic" if options.data is None else "gsm8k", options.data, decoder)
    asked = {name: found for name, found in contenders(decoder, task).items() if name in _ON_REAL}
    decoder.generate([task.problems[-1].prompt], _WARM_UP)
    return {"pair": pair.facts(), **measured(answers(asked, task.problems[: 2 if options.quick else None], 1, until))}


if __name__ == "__main__":
    sys.exit(main())
