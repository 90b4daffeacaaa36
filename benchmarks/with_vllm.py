"""vLLM with the plugin and as a calibration's engine: `python benchmarks/with_vllm.py`; takes an hour on two cores.

It runs in the environment that has vLLM (`sh install.sh vllm`). Everything is greedy, in fp32 and eager.
1. `fsd-calibrate --task arithmetic --min-acc 0.98` runs with either engine on all cores, for the time that each takes
   and its profile. `--runs` keeps both: the same command continues.
2. Both engines decode the same fresh problems at the same settings.
3. A server of vLLM that follows the profile certified in vLLM answers other fresh problems, of which it must keep what
   the certificate says.
4. Engines, each a process of its own on one core, decode the same problems in turns: vLLM's target alone, its own
   `sd` at several L, and the plugin, at the T of our engine's profile and at one that accepts nothing, where D is
   computed of the tokens that could be accepted by it, also in requests whose logits vLLM changes (`min_tokens`), or of
   all.
5. Fresh problems are decoded by vLLM's target and by the plugin with our engine's profile.
The exit code is 1 if a claim is not reached.
"""

from __future__ import annotations

import json
import math
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fsd_calib import DecodingConfig, SpeculativeDecoder, ThresholdProfile
from fsd_calib.certification.score_test import lower_bound
from fsd_calib.engines.base import DecodingRequest, KeyedPrompt, Limits
from fsd_calib.engines.own import OwnEngine
from fsd_calib.engines.vllm.engine import VllmEngineSource
from fsd_calib.engines.vllm.loading import EngineArguments, Room
from fsd_calib.report.run_folder import load_run
from fsd_calib.tasks.base import Problem, Task
from fsd_calib.tasks.registry import load_task
from fsd_calib.vllm_plugin.command import serve_command
from fsd_data import pair_paths
from fsd_decoding.profile.certificate import OutcomeCounts
from fsd_decoding.profile.setting import Setting
from lib.common.claims import Claim
from lib.common.command import GOAL, calibrate
from lib.common.results import conclude, machine_facts, options_of, write_json
from lib.common.timing import rates, speed_up
from lib.engines import (
    LARGEST_BATCH,
    VLLM_SETTINGS,
    Decode,
    Decoded,
    Engine,
    Lengths,
    Served,
    VllmEngine,
    Work,
    about,
    best_length,
    decode_in_turns,
    pin,
    serve,
    speed_line,
)
from lib.vllm_server import serving

ENGINES = ("fsd-calib", "vllm")
_THRESHOLDS = (0.05, 0.1, 0.2, 0.4, 0.6)  # of the curves of both engines
_CONTEXT = VLLM_SETTINGS["max_model_len"]
_ANSWER = 300.0  # seconds that a batch of answers may take

TARGET, PLAIN, JUDGED, FSD, BEST = "target", "sd at the profile's L", "plugin, T = 0", "fsd", "sd at its best L"
WITHOUT = "plugin taken out"
CHANGED_WITHOUT, CHANGED_JUDGED = f"{WITHOUT}, min_tokens", f"{JUDGED}, min_tokens"
ALL_JUDGED = f"{JUDGED}, D of every token"
_LENGTHS = (3, 4, 5, 6, 8)
_NOTHING = 1e-12  # T that accepts no token but those with D = 0, while every D that could decide is computed
_PIECE = {1: 5, 8: 16, 32: 64}  # problems that a contestant decodes at a time, by batch size
_CURVE_SEED, _SERVED_SEED, _CHOOSING_SEED, _TIMED_SEED, _FRESH_SEED = 73_001, 73_002, 72_001, 72_002, 72_003
_SPARE = 400  # problems generated beyond those needed, since some were in the calibration

_CALIBRATION = 1.5  # wanted, times the seconds of our engine's
_COST = {1: 1.03, 32: 1.03}  # wanted, by batch size
_COST_OF_ALL = 1.05
_FASTER = 1.45
_ERRORS = 3.0  # standard errors by which retention of the two engines may differ at a setting
_LARGEST_DIFFERENCE = 2.576  # standard errors; a true agreement is further apart in 1 % of all runs
_OUTSIDE = 0.05
_QUANTILE = 1.959964  # of the standard normal distribution, two-sided 95 %


@dataclass(frozen=True)
class Plan:
    """How much is measured. timed: problems at batch 32, the largest; smaller batches are slower and get fewer."""

    curve: int
    fresh: int
    timed: int
    repeats: int
    options: tuple[str, ...] = ()  # of the calibrations

    def problems(self, batch: int) -> int:
        return max({1: self.timed // 5, 8: self.timed // 2, 32: self.timed}[batch], batch)


_FULL, _QUICK = Plan(600, 2000, 128, 10), Plan(32, 64, 32, 2, ("--limit=1000",))


# --- fresh problems ---------------------------------------------------------------------------------------


class Fresh:
    """Problems that no calibration of a profile has seen, and none twice."""

    def __init__(self, profile: ThresholdProfile) -> None:
        self._seen = {problem.id for problem in load_task(profile.task, profile.seed).problems}

    def task(self, seed: int, count: int) -> tuple[Task, Sequence[Problem]]:
        task = load_task("arithmetic", seed=seed, limit=count + _SPARE)
        problems = list({p.id: p for p in task.problems if p.id not in self._seen}.values())[:count]
        self._seen |= {problem.id for problem in problems}
        return task, problems


@dataclass(frozen=True)
class Retention:
    """Right answers under FSD over right answers of the target alone, on fresh problems and in the profile."""

    outcomes: OutcomeCounts
    retention: float
    lower_bound: float  # one-sided 95 %
    interval: tuple[float, float]  # two-sided 95 %, by the delta method
    wanted: float | None  # by the profile, as it certified it
    in_profile: float
    in_profile_lower_bound: float | None
    difference: float  # fresh less the profile's
    difference_errors: float  # its size in standard errors

    @classmethod
    def of(cls, grades: Mapping[str, Sequence[bool]], profile: ThresholdProfile) -> Retention:
        """Of the grades of the target's texts and of FSD's, in this order."""
        outcomes, found = OutcomeCounts.of(*grades.values()), profile.certificate
        certified = found.counts
        error = standard_error(outcomes)
        difference = outcomes.retention - certified.retention
        interval = (outcomes.retention - _QUANTILE * error, outcomes.retention + _QUANTILE * error)
        of_both = math.hypot(error, standard_error(certified))
        return cls(
            outcomes, outcomes.retention, lower_bound(outcomes, _OUTSIDE), interval, found.wanted, certified.retention,
            found.lower_bound, difference, abs(difference) / of_both if of_both else 0.0,
        )  # fmt: skip

    def claims(self, where: str) -> Iterator[Claim]:
        if self.wanted is not None:
            kept = self.lower_bound >= self.wanted
            yield Claim(f"retention {where}", f">= {self.wanted:g}", self.retention, self.lower_bound, kept)


def standard_error(outcomes: OutcomeCounts) -> float:
    """Of a ratio of paired counts, by the delta method: its logarithm varies by the answers that flip."""
    o = outcomes
    return o.retention * math.sqrt((o.lost + o.gained) / (o.right * o.solved))


def graded(
    task: Task, problems: Sequence[Problem], size: int, ways: Mapping[str, Callable[[Sequence[Problem]], Sequence[str]]]
) -> dict[str, list[bool]]:
    """Returns the grades of what each way decodes of the problems, `size` of them at a time in turns."""
    grades: dict[str, list[bool]] = {name: [] for name in ways}
    for begin in range(0, len(problems), size):
        piece = problems[begin : begin + size]
        for name, decode in ways.items():
            grades[name] += [task.grade(p, text) for p, text in zip(piece, decode(piece), strict=True)]
    return grades


# --- calibrations with either engine ----------------------------------------------------------------------


def calibrate_each(folder: Path, options: Sequence[str]) -> list[dict[str, Any]]:
    """Returns how long the command took with either engine and what it found; the profiles are in ENGINE/out."""
    done = []
    for engine in ENGINES:
        kept = folder / engine / "found.json"
        if not kept.exists():
            ran = calibrate(folder / engine, *GOAL, f"--engine={engine}", *options)
            profile = load_run(ran.folder).profile
            parts = {
                name: part and part.model_dump(mode="json")
                for name in ("certificate", "speed", "tokens_per_round", "effort")
                for part in [getattr(profile, name)]
            }
            found = {
                "engine": engine, "seconds": ran.seconds, "exit_code": ran.code, "outcome": profile.outcome,
                "score": profile.score, "threshold": profile.threshold, "draft_length": profile.draft_length, **parts,
            }  # fmt: skip
            write_json(found, kept)
        one = json.loads(kept.read_text())
        print(f"  {engine}: {one['seconds']:.0f} s, {one['outcome']}, T = {one['threshold']}", flush=True)
        done.append(one)
    return done


def curves(folder: Path, count: int) -> list[dict[str, Any]]:
    """Decodes the same problems at the same settings by both engines; retention is of each engine's own target."""
    target, draft = map(str, pair_paths())
    profile = ThresholdProfile.load(folder)
    decoding, length = DecodingConfig(rule="fsd-coupled", score="js"), profile.draft_length
    task, problems = Fresh(profile).task(_CURVE_SEED, count)
    decoder = SpeculativeDecoder.from_pretrained(target, draft, decoding=decoding, device="cpu")
    source = VllmEngineSource(
        target, draft, "float32", decoding, Limits.of(task), EngineArguments(), Room(LARGEST_BATCH, length, _CONTEXT),
        task.name,
    )  # fmt: skip
    engines = dict(zip(ENGINES, (OwnEngine(decoder, task), source.engine(None)), strict=True))
    own = set() if profile.threshold is None else {profile.threshold}
    settings = [Setting("target", "js", 1), Setting("sd", "js", length)]
    settings += [Setting("fsd-coupled", profile.score, length, t) for t in sorted({*_THRESHOLDS, *own})]
    prompts, alone = [KeyedPrompt(p.id, p.prompt) for p in problems], dict[str, list[bool]]()
    rows = []
    for setting in settings:
        row: dict[str, Any] = {"rule": setting.rule, "score": setting.score, "threshold": setting.threshold,
                               "draft_length": setting.draft_length}  # fmt: skip
        right: dict[str, list[bool]] = {}
        for name, engine in engines.items():
            results = engine.decode(DecodingRequest(setting, 0, prompts, LARGEST_BATCH))
            right[name] = [task.grade(p, r.text) for p, r in zip(problems, results, strict=True)]
            outcomes = OutcomeCounts.of(alone.setdefault(name, right[name]), right[name])
            row[name] = {
                "accuracy": sum(right[name]) / len(problems), "retention": outcomes.retention,
                "standard_error": standard_error(outcomes),
                "tokens_per_round": sum(r.emitted for r in results) / sum(r.rounds for r in results),
            }  # fmt: skip
        paired = OutcomeCounts.of(*(right[name] for name in ENGINES))
        rows.append(row | {"vllm_less_own": {"lost": paired.lost, "gained": paired.gained}})
        print(_row(row), flush=True)
    return rows


def _row(row: dict[str, Any]) -> str:
    setting = row["rule"] if row["threshold"] is None else f"{row['score']} <= {row['threshold']:.3f}"
    each = (f"{name} {row[name]['retention']:.4f} ± {row[name]['standard_error']:.4f}, "
            f"{row[name]['tokens_per_round']:.2f} tokens a round" for name in ENGINES)  # fmt: skip
    return f"  {setting:16s} " + "; ".join(each)


def _difference(row: dict[str, Any]) -> float:
    own, vllm = (row[name] for name in ENGINES)
    error = math.hypot(own["standard_error"], vllm["standard_error"])
    return abs(own["retention"] - vllm["retention"]) / error if error else 0.0


def served(folder: Path, plan: Plan) -> Retention:
    """Asks a server that was started by the command of `fsd-profile vllm`, with requests decoded exactly and as usual.

    Greedy exact texts are those of the target alone.
    """
    profile = ThresholdProfile.load(folder)
    fresh = Fresh(profile)
    fresh.task(_CURVE_SEED, plan.curve)  # they are others
    task, problems = fresh.task(_SERVED_SEED, plan.fresh)
    room = ["--max-model-len", str(_CONTEXT), "--enforce-eager", "--max-num-seqs", str(LARGEST_BATCH),
            "--kv-cache-memory-bytes", str(VLLM_SETTINGS["kv_cache_memory_bytes"])]  # fmt: skip
    with serving(serve_command(profile, folder / "profile.json"), folder / "server.log", room) as server:

        def complete(options: dict[str, Any], some: Sequence[Problem]) -> list[str]:
            body = {"model": profile.target.id, "prompt": [problem.prompt for problem in some],
                    "max_tokens": task.max_new_tokens, "stop": list(task.stop), **options}  # fmt: skip
            as_json = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode(), as_json)
            with urllib.request.urlopen(request, timeout=_ANSWER) as answer:
                choices = json.load(answer)["choices"]
            return [choice["text"] for choice in sorted(choices, key=lambda choice: choice["index"])]

        ways = {"exact": partial(complete, {"vllm_xargs": {"fsd": "off"}}), "fsd": partial(complete, {})}
        return Retention.of(graded(task, problems, LARGEST_BATCH, ways), profile)


# --- the plugin on one core -------------------------------------------------------------------------------


def plugin(folder: Path, plan: Plan) -> dict[str, Any]:
    """Measures speeds, costs of a step and retention with our engine's profile."""
    profile = ThresholdProfile.load(folder)
    length = profile.draft_length
    if profile.threshold is None:
        raise RuntimeError(f"the profile in {folder} has no threshold, so no FSD to measure")
    # The same profile with a T that accepts nothing.
    nothing = folder / "accepts-nothing.json"
    nothing.write_text(json.dumps(json.loads((folder / "profile.json").read_text()) | {"threshold": _NOTHING}))
    target, draft = map(str, pair_paths())
    vllm = partial(VllmEngine, (target, draft))
    engines: dict[str, Callable[[], Engine]] = {
        TARGET: vllm,
        **{f"sd {each}": partial(vllm, each) for each in sorted({*_LENGTHS, length})},
        JUDGED: partial(vllm, length, nothing),
        FSD: partial(vllm, length, folder / "profile.json"),
    }
    fresh, most = Fresh(profile), max(map(plan.problems, _PIECE))
    _, choosing = fresh.task(_CHOOSING_SEED, most)
    task, timed = fresh.task(_TIMED_SEED, most)
    _, problems = fresh.task(_FRESH_SEED, plan.fresh)
    with serve(engines) as running:
        speeds = {}
        for batch in _PIECE:
            speeds[batch] = measure_speeds(running, length, task, choosing, timed, batch, plan)
            print(table(speeds[batch]), end="\n\n", flush=True)
        ways = {name: partial(_texts, running[name], task) for name in (TARGET, FSD)}
        retention = Retention.of(graded(task, problems, -(-len(problems) // 8), ways), profile)
    about = {"digest": profile.digest, "chosen": profile.chosen.values, "lossless": str(profile.lossless)}
    return {"profile": about, "speeds": speeds, "retention": retention}


def _texts(engine: Served, task: Task, problems: Sequence[Problem]) -> Sequence[str]:
    return engine.decode(Work.of(task, problems, LARGEST_BATCH)).texts


def measure_speeds(
    running: Mapping[str, Served], length: int, task: Task, choosing: Sequence[Problem], timed: Sequence[Problem],
    batch: int, plan: Plan,
) -> dict[str, Any]:  # fmt: skip
    """Times vLLM with and without the plugin at one batch size, in turns.

    Args:
        length: The profile's L.
        choosing: Problems that the best L of `sd` is chosen on.
    """
    problems, piece = timed[: plan.problems(batch)], _PIECE[batch]
    few = Work.of(task, choosing[: max(len(problems) // 2, batch)], batch).pieces(piece)
    exact = {int(name.removeprefix("sd ")): each.decode for name, each in running.items() if name.startswith("sd ")}
    lengths = best_length(exact, few, max(1, plan.repeats // 3))
    judging = running[JUDGED].decode
    ways: dict[str, Decode] = {
        TARGET: running[TARGET].decode, PLAIN: exact[length], JUDGED: judging,
        WITHOUT: partial(judging, way="without"), CHANGED_WITHOUT: partial(judging, way="without, at least"),
        CHANGED_JUDGED: partial(judging, way="at least"), ALL_JUDGED: partial(judging, way="every"),
        BEST: exact[lengths.best], FSD: running[FSD].decode,
    }  # fmt: skip
    taken = decode_in_turns(ways, Work.of(task, problems, batch).pieces(piece), plan.repeats)
    amount = {"batch": batch, "problems": len(problems), "repeats": plan.repeats}
    return amount | _compared(taken, task, problems, lengths)


def _compared(
    taken: Mapping[str, Sequence[Decoded]], task: Task, problems: Sequence[Problem], lengths: Lengths
) -> dict[str, Any]:
    steps = {name: [each.of_steps for each in decoded] for name, decoded in taken.items()}
    tokens = {name: [each.on_cpu for each in decoded] for name, decoded in taken.items()}
    contestants = {}
    for name, decoded in taken.items():
        texts, of_target = decoded[0].texts, taken[TARGET][0].texts
        contestants[name] = about(decoded) | {
            "right": sum(task.grade(problem, text) for problem, text in zip(problems, texts, strict=True)),
            "texts_of_target": sum(text == other for text, other in zip(texts, of_target, strict=True)),
            "steps_per_cpu_second": rates(steps[name]),
        }
    return {
        "sd_lengths": lengths, "contestants": contestants,
        # Seconds of a step with the plugin over without, of one engine.
        "step_cost": speed_up(steps[WITHOUT], steps[JUDGED]),
        "step_cost_of_changed": speed_up(steps[CHANGED_WITHOUT], steps[CHANGED_JUDGED]),
        "step_cost_of_all": speed_up(steps[WITHOUT], steps[ALL_JUDGED]),
        "same_steps": all(one.steps == other.steps and one.texts == other.texts
                          for one, other in zip(taken[PLAIN], taken[JUDGED], strict=True)),
        "speed_ups": {f"{FSD} / {slow}": speed_up(tokens[FSD], tokens[slow]) for slow in (BEST, PLAIN, TARGET)},
    }  # fmt: skip


def table(speeds: Mapping[str, Any]) -> str:
    """Returns lines with the speeds at one batch size: medians and quartiles over repeats."""
    lines = [f"batch {speeds['batch']}, {speeds['problems']} problems, best L of sd: {speeds['sd_lengths'].best}"]
    lines += [
        f"{speed_line(name, each)}, {each['right']} right, {each['texts_of_target']} texts as the target's, "
        f"{each['tokens'] / each['steps']:.2f} tokens a step"
        for name, each in speeds["contestants"].items()
    ]
    costs = {f"a step with the plugin / without{kind}": speeds[name]
             for kind, name in (("", "step_cost"), (", min_tokens", "step_cost_of_changed"),
                                (", D of every token", "step_cost_of_all"))}  # fmt: skip
    lines += [f"  {name}: {ratio.median:.4f} ({ratio.at_least:.4f} to {ratio.at_most:.4f})"
              for name, ratio in (costs | speeds["speed_ups"]).items()]  # fmt: skip
    return "\n".join(lines)


# --- claims -----------------------------------------------------------------------------------------------


def _of_calibrations(calibrations: Sequence[Mapping[str, Any]]) -> Iterator[Claim]:
    own, vllm = (calibrations[ENGINES.index(name)] for name in ENGINES)
    certified = float(str(vllm["outcome"]).startswith("certified"))
    yield Claim.at_least("vLLM's calibration certifies (1: yes)", 1, certified)
    yield Claim.at_most("seconds of vLLM's calibration over ours", _CALIBRATION, vllm["seconds"] / own["seconds"])


def claims(results: Mapping[str, Any]) -> Iterator[Claim]:
    yield from _of_calibrations(results["calibrations"])
    name = "difference of the engines' retention, in standard errors, the largest"
    yield Claim.at_most(name, _ERRORS, max(map(_difference, results["curves"])))
    yield from results["served"].claims("served by vLLM on fresh problems")
    yield from _of_plugin(results)


def _of_plugin(results: Mapping[str, Any]) -> Iterator[Claim]:
    speeds, retention = results["speeds"], results["retention"]
    for batch, wanted in _COST.items():
        cost = speeds[batch]["step_cost"]
        yield Claim.at_most_times(f"CPU seconds of a step, plugin / without, batch {batch}", wanted, cost)
        name = f"CPU seconds of a step, plugin with D of every token / without, batch {batch}"
        yield Claim.at_most_times(name, _COST_OF_ALL, speeds[batch]["step_cost_of_all"])
        same = float(speeds[batch]["same_steps"])
        yield Claim.at_least(f"same steps and texts in both (1: yes), batch {batch}", 1, same)
    for batch, of_batch in speeds.items():
        ratio = of_batch["speed_ups"][f"{FSD} / {BEST}"]
        yield Claim.faster(f"{FSD} / {BEST}, vLLM, tokens per CPU second, batch {batch}", _FASTER, ratio)
    yield from retention.claims(f"on {retention.outcomes.total} fresh problems through the plugin")
    name = "its distance from the profile's, in standard errors"
    yield Claim.at_most(name, _LARGEST_DIFFERENCE, retention.difference_errors)


def main() -> int:
    parser = options_of(__doc__, "with_vllm.json")
    parser.add_argument("--runs", type=Path, default=Path("runs", "with-vllm"), help="the calibrations")
    parser.add_argument("--calibrations", action="store_true", help="only what each engine's calibration takes")
    parser.add_argument(
        "--plugin", type=Path, metavar="FOLDER", help="only the plugin, with the profile in this folder"
    )
    parser.add_argument("--core", type=int, help="that speeds are measured on; default: the last one")
    options, machine = parser.parse_args(), machine_facts()
    plan = _QUICK if options.quick else _FULL
    if options.plugin is not None:
        alone = {"vllm_settings": VLLM_SETTINGS, "pinned": pin(options.core), **plugin(options.plugin, plan)}
        return conclude(options, machine, alone, _of_plugin(alone))
    calibrations = calibrate_each(options.runs, plan.options)
    if options.calibrations:
        return conclude(options, machine, {"calibrations": calibrations}, _of_calibrations(calibrations))
    own, vllm = (options.runs.absolute() / engine / "out" for engine in ENGINES)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:  # vLLM does not stay in this process
        rows = apart.submit(curves, vllm, plan.curve).result()
    kept = served(vllm, plan)
    pinned = pin(options.core)
    results = {"plan": asdict(plan), "vllm_settings": VLLM_SETTINGS, "calibrations": calibrations, "curves": rows,
               "served": kept, "pinned": pinned, **plugin(own, plan)}  # fmt: skip
    return conclude(options, machine, results, claims(results))


if __name__ == "__main__":
    sys.exit(main())
