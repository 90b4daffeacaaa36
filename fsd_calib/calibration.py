"""calibrate(): from a task, two models and a wish to a profile.

Knows the order of the work: measure the target and SD, search on the tuning part, freeze, test on the
certification part, time what was chosen. How each step is done is in the module of its name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fsd_calib.certify import certify_sequence
from fsd_calib.choice import Chooser
from fsd_calib.export import Findings, to_profile
from fsd_calib.measure import Bench, Configuration
from fsd_calib.progress import Progress, Silent
from fsd_calib.search import ShareScale
from fsd_calib.speed import seconds_per_round
from fsd_calib.tasks import Task, load_task
from fsd_calib.wish import Wish
from fsd_collectors.split import tuning_and_certification
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.errors import UsageError
from fsd_decoding.loading import shared_tokenizer
from fsd_decoding.profile import ThresholdProfile
from fsd_decoding.rules import RULES, rule_named
from fsd_decoding.sampling import Sampling

_TUNING_PROBLEMS = 1000  # at most: beyond this the certification part decides what can be shown
_SCALE_PROBLEMS = 100  # enough to learn how divergences are distributed
_TIMED_PROBLEMS = 50


def calibrate(
    task: str | Task, *, target: Any, draft: Any, tokenizer: Any = None, min_acc: float | None = None,
    min_speed: float | None = None, confidence: float = 0.95, rule: str = "fsd-coupled", divergence: str = "js",
    draft_length: int = 5, temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None,
    limit: int | None = None, data: str | os.PathLike[str] | None = None, seed: int = 0, batch_size: int = 32,
    device: str | None = None, dtype: str | None = None, out: str | os.PathLike[str] | None = None,
    trials: int = 9, progress: Progress | None = None,
) -> ThresholdProfile:  # fmt: skip
    """Finds the fastest threshold that keeps `min_acc` of the target's accuracy, or the most accurate one
    that makes `min_speed` tokens/s, and tests it on problems that had no say in the choice.

    Args:
        task: a task's name, or a `Task` whose prompts suit the target.
        target, draft: hub ids, paths, or loaded models (then `tokenizer` is needed).
        out: folder for `profile.json`, every decoding (`decodings.jsonl`) and Optuna's journal
            (`study.log`), both appended to by later runs; None writes nothing.
        trials: thresholds tried on the tuning part.

    Returns:
        the profile; `profile.met` says whether the wish was.

    Raises:
        UsageError: bad input, models that cannot be used together, or a target that solves nothing.
    """
    wish = Wish(min_acc, min_speed, confidence)
    if trials < 1:
        raise UsageError(f"trials is {trials}; it must be at least 1")
    if not rule_named(rule).bounds_divergence:
        bounding = ", ".join(name for name, known in RULES.items() if known.bounds_divergence)
        raise UsageError(f"rule {rule!r} has no threshold on a divergence to calibrate; those that have: {bounding}")
    shared = shared_tokenizer(target, draft, tokenizer)
    problems = task if isinstance(task, Task) else load_task(task, seed, limit, data, shared)
    decoder = SpeculativeDecoder.from_pretrained(
        target, draft, rule=rule, divergence=divergence, draft_length=draft_length, device=device, dtype=dtype,
        seed=seed, tokenizer=shared, sampling=Sampling(temperature, top_k, top_p),
    )  # fmt: skip
    folder = Path(out) if out is not None else None
    bench = _bench(decoder, problems, batch_size, folder, progress or Silent())
    profile = _run(bench, wish, trials, folder)
    if folder is not None:
        profile.save(folder / "profile.json")
    return profile


def _bench(decoder: SpeculativeDecoder, task: Task, batch_size: int, folder: Path | None, progress: Progress) -> Bench:
    tuning, certification = tuning_and_certification(task.problems)
    for name, part in (("tuning", tuning), ("certification", certification)):
        if len(part) < 2:
            raise UsageError(f"{len(task.problems)} problems leave {len(part)} for {name}; give more of them")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    journal = folder / "decodings.jsonl" if folder is not None else None
    return Bench(decoder, task, tuning[:_TUNING_PROBLEMS], certification, batch_size, journal, progress)


def _run(bench: Bench, wish: Wish, trials: int, folder: Path | None) -> ThresholdProfile:
    decoder = bench.decoder
    fuzzy = Configuration(decoder.rule, decoder.divergence, decoder.draft_length)
    alone, sd, lossless = (fuzzy.under(rule) for rule in ("target", "sd", rule_named(fuzzy.rule).lossless))
    on_tuning = bench.measure(alone, "tuning")
    if not any(on_tuning.correct):
        raise UsageError(
            f"the target solves none of {len(on_tuning.correct)} {bench.task.name} problems, so retention is "
            "undefined; look at --show-prompt, or use another target"
        )
    scale = ShareScale(bench.divergences(lossless, bench.problems["tuning"][:_SCALE_PROBLEMS]))
    study = folder / "study.log" if folder is not None else None
    frozen = Chooser(bench, fuzzy, on_tuning, scale, wish, trials, study).sequence()
    # From here on the choice is made: the certification part only says how far the sequence holds.
    baseline = bench.measure(alone, "certification")
    outcomes = (bench.measure(configuration, "certification").against(baseline) for configuration in frozen)
    result = certify_sequence(outcomes, wish.min_acc, wish.confidence)
    bench.measure(sd, "certification")
    chosen = frozen[result.passed or 0]  # the fastest that passed, or the safest where none did
    timed = bench.problems["tuning"][:_TIMED_PROBLEMS]
    seconds = seconds_per_round(bench, [alone, sd, *frozen[: len(result.tested)]], timed)
    return to_profile(Findings(bench, wish, alone, sd, chosen, frozen, result, seconds, len(timed)))
