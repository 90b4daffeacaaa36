"""Recurrent drafts beside the bundled one: `python benchmarks/recurrent.py [--students FOLDER]`; an hour on one core.

FOLDER is what `python -m fsd_data.distil_recurrent --out FOLDER` made. Measured are draft steps and memory up to 16k
tokens of context (random ones: the models were trained on 180); tokens a round and tokens per second on held-out
problems, lossless and at the T that a calibration certified; what rollback takes of a round; and what speculative
decoding gains for a target of recurrent layers, and what that keeps of the target's accuracy. All on one row and one
thread, in fp32, timed in processor seconds; contenders take turns.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from fsd_calib import SpeculativeDecoder, calibrate, load_task
from fsd_calib.engines.own import RoundClock, undisturbed_clock
from fsd_calib.tasks.base import Task
from fsd_data import pair_paths, recurrent_path
from fsd_decoding.models import runner
from fsd_decoding.models.runner import ModelDrafter, ModelRunner, vocabulary_size
from fsd_decoding.models.state_cache import StateCache
from lib.common.claims import Claim
from lib.common.results import conclude, machine_facts, options_of
from lib.common.timing import Run, Spread, rates, speed_up, take_turns
from lib.last_states import LastStates

_CPU = torch.device("cpu")
_DRAFTED = 5  # tokens of a draft whose steps are timed
_WANTED, _SEED = 0.98, 424_242
_ROLLBACK, _LINEAR = 1.1, 2.0  # at most; arXiv 2406.07368: up to 2 times linear attention alone
TARGET, PRESENT, LINEAR = "target", "present", "linearised-target"
RECURRENT, CONTROL = "recurrent-draft", "attention-draft"  # the control is distilled, too
_Found = Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    contexts: tuple[int, ...]
    phases: int  # draft phases in a repeat
    prompts: int  # problems whose texts are timed
    lengths: tuple[int, ...]  # L of lossless decoding
    repeats: int
    graded: int  # problems that accuracies are of
    calibrated: int  # problems of a calibration; 0: none
    new_tokens: int | None = None  # of a text; None: as the task has it


_FULL = Plan((128, 512, 2_048, 8_192, 16_384), 10, 4, (3, 5, 8), 8, 200, 1_500)
_QUICK = Plan((64, 128), 1, 2, (3,), 2, 4, 0, 12)


@dataclass(frozen=True)
class Contender:
    """A pair of models and a way to decode."""

    decoder: SpeculativeDecoder
    rule: str
    draft_length: int = 1
    score: str = "js"
    threshold: float = 0.0

    def decode(self, task: Task, plan: Plan, prompts: Sequence[str]) -> list[Any]:
        return self.decoder.generate(
            prompts, plan.new_tokens or task.max_new_tokens, stop=task.stop, rule=self.rule, score=self.score,
            threshold=self.threshold, draft_length=self.draft_length, batch_size=1,
        )  # fmt: skip


def draft_steps(setup: Setup, plan: Plan) -> _Found:
    """Returns seconds of a draft step and bytes of the caches of one row, by context and draft."""
    parameters = {name: draft.num_parameters() for name, draft in setup.drafts.items()}
    return {"parameters": parameters, "steps": [_steps_at(context, setup.drafts, plan) for context in plan.contexts]}


@torch.inference_mode()
def _steps_at(context: int, drafts: Mapping[str, Any], plan: Plan) -> _Found:
    slots, lengths = context + _DRAFTED, torch.tensor([context])
    text = torch.randint(2, min(map(vocabulary_size, drafts.values())), (1, slots))
    running = {
        name: ModelRunner(draft, 1, slots, vocabulary_size(draft), rolled_back=_DRAFTED + 1)
        for name, draft in drafts.items()
    }
    contenders = {}
    for name, run in running.items():
        drafter = ModelDrafter(run)
        drafter.prefill(torch.tensor([0]), text, context - 1)
        drafter.catch_up()
        contenders[name] = partial(_phase, drafter, text, lengths, slots)
    take_turns(contenders, [None], 2)  # warms up
    runs = take_turns(contenders, [None] * plan.phases, plan.repeats)
    found = {
        "context": context,
        "seconds_a_step": {name: Spread.of([1 / run.rate for run in timed]) for name, timed in runs.items()},
        "ratios": {f"{PRESENT} / {name}": speed_up(runs[name], runs[PRESENT]) for name in runs if name != PRESENT},
        "bytes": {name: run.cache.nbytes for name, run in running.items()},
    }
    print(found, flush=True)
    return found


def _phase(drafter: ModelDrafter, text: torch.Tensor, lengths: torch.Tensor, slots: int, _: None) -> Run:
    clock = undisturbed_clock(_CPU)
    began = clock()
    for step in range(_DRAFTED):
        drafter.logits(text, lengths, step, slots)
    return Run(_DRAFTED, clock() - began)


def calibrated(target: Path, draft: Path, plan: Plan) -> _Found:
    """Returns what a calibration of a pair on the bundled task finds, the first attempt in a ledger of its own."""
    with tempfile.TemporaryDirectory() as folder:
        profile = calibrate(
            "arithmetic", str(target), str(draft), min_acc=_WANTED, limit=plan.calibrated, score="js", compile="off",
            timing="none", out=f"{folder}/run", state=f"{folder}/state",
        )  # fmt: skip
    found = {
        "outcome": profile.outcome, "threshold": profile.threshold, "draft_length": profile.draft_length,
        "limit": plan.calibrated, "certificate": profile.certificate.model_dump(mode="json"),
    }  # fmt: skip
    print(found, flush=True)
    return found


def contest(contenders: Mapping[str, Contender], task: Task, plan: Plan, beside: str) -> _Found:
    """Returns tokens per second and tokens a round of all contenders, and each one's ratio to the one `beside`."""
    prompts = [problem.prompt for problem in task.problems[: plan.prompts]]
    results = {name: contender.decode(task, plan, prompts) for name, contender in contenders.items()}  # warms up
    timed = {name: partial(_timed, contender, task, plan) for name, contender in contenders.items()}
    runs = take_turns(timed, prompts, plan.repeats)
    found: dict[str, Any] = {
        "tokens_per_second": {name: rates(timed) for name, timed in runs.items()},
        "ratios": {name: speed_up(runs[name], runs[beside]) for name in runs if name != beside},
        "tokens_a_round": {
            name: sum(each.emitted for each in decoded) / sum(each.rounds for each in decoded)
            for name, decoded in results.items()
        },
        "same_texts": {
            name: sum(a.tokens == b.tokens for a, b in zip(decoded, results[beside], strict=True))
            for name, decoded in results.items()
        },
        "beside": beside, "prompts": len(prompts), "repeats": plan.repeats,
    }  # fmt: skip
    for name, rate in found["tokens_per_second"].items():
        print(f"  {name:32s} {rate.median:7.1f} tokens/s, {found['tokens_a_round'][name]:.2f} a round", flush=True)
    return found


def _timed(contender: Contender, task: Task, plan: Plan, prompt: str) -> Run:
    clock = undisturbed_clock(_CPU)
    began = clock()
    (result,) = contender.decode(task, plan, [prompt])
    return Run(result.emitted, clock() - began)


def lossless(name: str, decoder: SpeculativeDecoder, plan: Plan) -> dict[str, Contender]:
    return {f"{name}, sd, L = {length}": Contender(decoder, "sd", length) for length in plan.lengths}


def bundled_target(setup: Setup, plan: Plan) -> _Found:
    """Returns what every draft does for the bundled target, lossless and at a T that was certified with it."""
    decoders = setup.decoders(setup.target, list(setup.drafts))
    contenders = {"target": Contender(decoders[PRESENT], "target")}
    for name, decoder in decoders.items():
        contenders |= lossless(name, decoder, plan)
    calibrations = {}
    for name in (PRESENT, RECURRENT) if plan.calibrated else ():
        calibrations[name] = found = calibrated(setup.folders[TARGET], setup.folders[name], plan)
        if found["threshold"] is not None:
            fuzzy = Contender(decoders[name], "fsd-coupled", found["draft_length"], threshold=found["threshold"])
            contenders[f"{name}, certified T"] = fuzzy
    return {"calibrations": calibrations, **contest(contenders, setup.task, plan, "target")}


def accuracy(contender: Contender, task: Task, plan: Plan) -> float:
    """Returns the share of problems that are solved."""
    problems = task.problems[: plan.graded]
    texts = contender.decoder.generate(
        [problem.prompt for problem in problems], task.max_new_tokens, stop=task.stop, rule=contender.rule
    )
    return sum(task.grade(problem, text.text) for problem, text in zip(problems, texts, strict=True)) / len(problems)


def rollback(setup: Setup, plan: Plan) -> _Found:
    """Returns how many times as long a round takes as with states that cannot be rolled back, by pair.

    Every drafted token is accepted, so that both are right, and make the same rounds.
    """
    pairs = [("bundled target", setup.target, RECURRENT)]
    if setup.linear is not None:
        pairs += [("linearised target", setup.linear, draft) for draft in (PRESENT, RECURRENT)]
    prompts, found = [problem.prompt for problem in setup.task.problems[: plan.prompts]], {}
    for of, target, draft in pairs:
        decoder = setup.decoders(target, [draft])[draft]
        contenders = {
            cache.__name__: partial(_rounds, decoder, cache, setup.task, plan) for cache in (StateCache, LastStates)
        }
        runs = take_turns(contenders, prompts, 2 * plan.repeats)  # a difference of a few percent
        found[f"{of}, {draft}"] = speed_up(runs[LastStates.__name__], runs[StateCache.__name__])
    return {"rollback": found}


def _rounds(decoder: SpeculativeDecoder, cache: type[StateCache], task: Task, plan: Plan, prompt: str) -> Run:
    clock = RoundClock(_CPU, undisturbed_clock(_CPU))
    with patch.object(runner, "StateCache", cache):
        decoder.generate(
            [prompt], plan.new_tokens or task.max_new_tokens, rule="fsd-coupled", threshold=math.inf,
            draft_length=_DRAFTED, observer=clock,
        )  # fmt: skip
    return Run(len(clock.seconds), sum(clock.seconds))


def linear_target(setup: Setup, plan: Plan) -> _Found:
    """Returns what drafting gains for the linearised target, and how many problems that solves."""
    decoders = setup.decoders(setup.linear, (PRESENT, RECURRENT))
    contenders = {"target": (alone := Contender(decoders[PRESENT], "target"))}
    for name, decoder in decoders.items():
        contenders |= lossless(name, decoder, plan)
    return {
        "accuracy": accuracy(alone, setup.task, plan), "graded": plan.graded,
        **contest(contenders, setup.task, plan, "target"),
    }  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """What is measured. linear: None: there is none."""

    folders: Mapping[str, Path]
    target: Any
    drafts: Mapping[str, Any]
    linear: Any
    tokenizer: Any
    task: Task

    @classmethod
    def of(cls, folders: Mapping[str, Path], plan: Plan) -> Setup:
        """Loads the models in `folders`."""
        models: dict[str, Any] = {name: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
                                  for name, folder in folders.items()}  # fmt: skip
        target, linear = models.pop(TARGET), models.pop(LINEAR, None)
        task = load_task("arithmetic", seed=_SEED, limit=max(plan.graded, plan.prompts))
        return cls(folders, target, models, linear, AutoTokenizer.from_pretrained(folders[TARGET]), task)

    def decoders(self, target: Any, drafts: Sequence[str]) -> dict[str, SpeculativeDecoder]:
        """A decoder with each of these drafts."""
        return {name: SpeculativeDecoder(target, self.drafts[name], self.tokenizer) for name in drafts}


PARTS = {"steps": draft_steps, "rollback": rollback, "bundled": bundled_target, "linear": linear_target}


def claims(found: _Found) -> Iterator[Claim]:
    for at in found.get("steps", [])[-1:]:
        name = f"a draft step at {at['context']} tokens, recurrent / present"
        yield Claim.faster(name, 1.0, at["ratios"][f"{PRESENT} / {RECURRENT}"])
    for pair, ratio in found.get("rollback", {}).items():
        yield Claim.at_most_times(f"a round whose states are rolled back / not, {pair}", _ROLLBACK, ratio)
    if "accuracy" in found:
        ratios = found["ratios"]
        best = max(ratios, key=lambda each: ratios[each].median)
        yield Claim.faster(f"tokens/s over the linearised target alone ({best})", _LINEAR, ratios[best])


def main() -> int:
    parser = options_of(__doc__, "recurrent")
    parser.add_argument("--students", type=Path, help="folder of other students: the control, the linearised target")
    parser.add_argument("--only", choices=PARTS, help="measure one part")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    folders = dict(zip((TARGET, PRESENT), pair_paths(), strict=True)) | {RECURRENT: recurrent_path()}
    if options.students is not None:
        folders |= {name: options.students / name for name in (CONTROL, LINEAR)}
    plan = _QUICK if options.quick else _FULL
    setup, codes, out = Setup.of(folders, plan), [], options.out
    for part in [options.only] if options.only else [part for part in PARTS if part != "linear" or setup.linear]:
        machine, options.out = machine_facts(), out / f"{part}.json"
        found = PARTS[part](setup, plan)
        codes.append(conclude(options, machine, {"drafted": _DRAFTED, "wanted": _WANTED, **found}, claims(found)))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
