"""The default command with other work on the machine: `python benchmarks/busy.py`; half an hour on two cores.

Runs `fsd-calibrate --task arithmetic --min-acc 0.98` as a user would, with folders of its own, beside none and two
processes that never wait, once per seed. What each run found is kept in `--runs`: the same command continues. At last
the settings are timed beside `sd` in turns, in this process, which is to be alone, on problems that no calibration has
decoded, those of the pool: the truth that verdicts on speed are compared with, and how much of a draft each setting
accepts. Prints claims, and writes all results to `--out` as JSON.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.certification.score_test import p_value
from fsd_calib.measuring.interleaved import measure_speeds
from fsd_calib.tasks.base import Problem
from fsd_common.progress.base import Silent
from fsd_data import pair_paths
from fsd_decoding.profile.io import FILE_NAME
from fsd_decoding.profile.setting import Setting
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from lib.common.claims import Claim
from lib.common.command import GOAL, QUICK, calibrate
from lib.common.results import conclude, machine_facts, options_of, write_json
from lib.pool import Pool

RULE = "fsd-coupled"
_BUSY = (0, 2)
_FRESH, _FRESH_QUICK = 60, 6  # problems that the truth is timed on
_NEAR = 0.2  # of the level: a p-value that near to it may fall on the other side
_TIMES = 2.5  # the quiet run's seconds, beside two processes
_NOT_WORTH_IT = "not-worth-it"  # ended with its plan, without a profile
_SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # and does not outlive this process


@contextmanager
def beside(processes: int) -> Iterator[None]:
    """Inside, so many processes take all the time that they are given."""
    started = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(seed: int, busy: int, command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Returns what a run found, from its file where it has been made already.

    The threshold is the setting's, whether decoders follow it or not.
    """
    kept, own = folder / f"{busy}-{seed}.json", folder / f"{busy}-{seed}"
    if not kept.exists():
        shutil.rmtree(own, ignore_errors=True)  # of a run that was interrupted
        with beside(busy):
            ran = calibrate(own, *command, f"--seed={seed}")
        about = {"seed": seed, "busy": busy, "seconds": ran.seconds}
        found = _verdict(ran.folder) if (ran.folder / FILE_NAME).exists() else {"outcome": _NOT_WORTH_IT}
        write_json(about | found | {"said": ran.said}, kept)
    return dict(json.loads(kept.read_text()))


def _verdict(folder: Path) -> dict[str, Any]:
    profile = ThresholdProfile.load(folder)
    intervals, chosen, sd = profile.speed.intervals, profile.chosen, profile.lossless
    return {
        "outcome": profile.outcome, "p": _p(profile), "level": profile.certificate.level, "score": chosen.score,
        "threshold": chosen.threshold, "draft_length": chosen.draft_length,
        "sd_draft_length": None if sd is None else sd.draft_length,
        "over_lossless": None if intervals is None else intervals.over_lossless, "threads": profile.speed.threads,
    }  # fmt: skip


def _p(profile: ThresholdProfile) -> float | None:
    certificate = profile.certificate
    if not certificate.problems or certificate.lossless or certificate.wanted is None:
        return None
    return float(p_value(certificate.counts, certificate.wanted))


def setting(found: dict[str, Any]) -> Setting | None:
    """Returns the setting of a run; None: nothing is certified."""
    if not certified(found):
        return None
    return Setting(RULE, found["score"], found["draft_length"], found["threshold"])


def certified(found: dict[str, Any]) -> bool:
    return bool(found["outcome"].startswith("certified"))


@dataclass
class Decoded:
    """What problems that no calibration has decoded show of a setting.

    Attributes:
        speed: Tokens/s, beside the other settings'.
        logit_share: The logit of the share of looked at drafted tokens that are accepted, which does not depend on L
            much; half a token more of either kind.
    """

    speed: float = math.nan
    accepted: float = 0.5
    rejected: float = 0.5

    @property
    def logit_share(self) -> float:
        return math.log(self.accepted / self.rejected)


def add_truth(runs: Sequence[dict[str, Any]], problems: int) -> None:
    """Adds to each run how many times as fast as its `sd` its setting is, all timed in turns, and its share."""
    pairs = [(chosen, Setting("sd", "js", found["sd_draft_length"])) for found in runs if (chosen := setting(found))]
    decoded = decode_in_turns(list(dict.fromkeys(one for pair in pairs for one in pair)), problems)
    for found in runs:
        chosen = setting(found)
        found |= {"true_over_lossless": None, "logit_share": None}
        if chosen is not None:
            sd = decoded[Setting("sd", "js", found["sd_draft_length"])]
            true = decoded[chosen].speed / sd.speed
            found |= {"true_over_lossless": true, "logit_share": decoded[chosen].logit_share}


def decode_in_turns(configurations: Sequence[Setting], problems: int) -> dict[Setting, Decoded]:
    """Times configurations in turns, with one stream and one thread."""
    if not configurations:
        return {}
    torch.set_num_threads(1)
    pair = SpeculativeDecoder.from_pretrained(*pair_paths(), device="cpu", dtype=torch.float32)
    task = load_task("arithmetic", seed=Pool.read().about["seed"], limit=problems, tokenizer=pair.tokenizer)

    decoded = {configuration: Decoded() for configuration in configurations}

    def emitted(configuration: Setting, some: Sequence[Problem]) -> int:
        decoder = pair.with_config(rule=configuration.rule, score=configuration.score)
        arguments: dict[str, Any] = {} if configuration.threshold is None else {"threshold": configuration.threshold}
        results = decoder.generate(
            [p.prompt for p in some], task.max_new_tokens, ids=[p.id for p in some], stop=task.stop,
            draft_length=configuration.draft_length, batch_size=1, **arguments,
        )  # fmt: skip
        for result in results:
            decoded[configuration].accepted += result.accepted
            decoded[configuration].rejected += result.rounds - result.bonus  # each ended by a rejection or the text
        return sum(result.emitted for result in results)

    speeds = measure_speeds(emitted, configurations, task.problems, progress=Silent())
    for configuration, one in decoded.items():
        one.speed = speeds.of(configuration).value
    return decoded


def claims(runs: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """Yields the claims on runs that have `true_over_lossless` and `logit_share`, by the number of busy processes."""
    quiet = {found["seed"]: found for found in runs if not found["busy"]}
    low, high = spread([found["logit_share"] for found in quiet.values()])
    for busy in sorted({found["busy"] for found in runs}):
        beside_it = [found for found in runs if found["busy"] == busy]
        name = f"beside {busy}"
        wrong = sum(wrong_about_speed(found) for found in beside_it)
        yield Claim.at_most(f"{name}: wrong verdicts on speed", 0, wrong)
        if not busy:
            continue
        others = sum(other_accuracy(found, quiet[found["seed"]]) for found in beside_it)
        yield Claim.at_most(f"{name}: verdicts on accuracy unlike the quiet run's", 0, others)
        shares = [found["logit_share"] for found in beside_it if found["logit_share"] is not None]
        yield Claim.at_most(f"{name}: T outside the quiet seeds' spread", 0, sum(not low <= s <= high for s in shares))
        times = max(found["seconds"] / quiet[found["seed"]]["seconds"] for found in beside_it)
        if busy == 2:
            yield Claim.at_most(f"{name}: time over the quiet run's, the largest", _TIMES, times)


def spread(shares: Sequence[float | None]) -> tuple[float, float]:
    """Returns the ends of the quiet seeds' T as logit shares, each a standard deviation of the seeds further out.

    The range of five is no bound for a sixth: that one lies outside in a third of cases.
    """
    known = [share for share in shares if share is not None]
    if not known:
        return -np.inf, np.inf
    out = float(np.std(known, ddof=1)) if len(known) > 1 else np.inf
    return min(known) - out, max(known) + out


def other_accuracy(found: dict[str, Any], quiet: dict[str, Any]) -> bool:
    """Whether the accuracy's verdict is not the quiet run's, though that was not close to the level."""
    p = quiet.get("p")
    close = p is not None and abs(p - quiet["level"]) <= _NEAR * quiet["level"]
    return certified(found) != certified(quiet) and not close


def wrong_about_speed(found: dict[str, Any]) -> bool:
    """Whether a speed is said to be shown that is not the true one; one that is not shown is never wrong."""
    true = found["true_over_lossless"]
    if true is None:
        return False
    said = found["outcome"]
    return bool((said == "certified-faster" and true <= 1) or (said == "certified-slower" and true >= 1))


def table(runs: Sequence[dict[str, Any]]) -> str:
    lines = ["| seed | busy | s | outcome | setting | threads | by its clock, over `sd` | truly |", "| --- " * 8 + "|"]
    for found in runs:
        begun = f"| {found['seed']} | {found['busy']} | {found['seconds']:.0f} | {found['outcome']} | "
        if found["outcome"] == _NOT_WORTH_IT:
            lines.append(f"{begun}{found['said'].splitlines()[-1]} | | | |")
            continue
        chosen = "" if found["threshold"] is None else f"{found['score']} {found['threshold']:.4g}"
        over = "" if found["over_lossless"] is None else " to ".join(f"{end:.2f}" for end in found["over_lossless"])
        true = "" if found["true_over_lossless"] is None else f"{found['true_over_lossless']:.2f}"
        lines.append(f"{begun}{chosen}, L = {found['draft_length']} | {found['threads']} | {over} | {true} |")
    return "\n".join(lines)


def main() -> int:
    parser = options_of(__doc__, "busy.json")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--busy", type=int, nargs="+", default=_BUSY, help="numbers of processes; 0 is always run")
    parser.add_argument("--runs", type=Path, default=Path("runs", "busy"), help="what finished runs found")
    options, machine = parser.parse_args(), machine_facts()
    seeds, command, fresh = (1, QUICK, _FRESH_QUICK) if options.quick else (options.seeds, GOAL, _FRESH)
    numbers = sorted({0, *options.busy}, reverse=True)
    runs = [run(seed, busy, command, options.runs) for seed in range(seeds) for busy in numbers]
    add_truth(runs, fresh)
    return conclude(options, machine, {"runs": runs}, claims(runs), table(runs))


if __name__ == "__main__":
    sys.exit(main())
