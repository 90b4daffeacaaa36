"""Retention of a profile on fresh problems, compared with its certificate: `python benchmarks/fresh.py PROFILE`.

The problems come from another seed than the calibration's, without those that the calibration may have decoded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fsd_calib import SpeculativeDecoder, ThresholdProfile, load_task
from fsd_calib.certification.outcomes import Outcomes
from fsd_calib.certification.score_test import lower_bound
from fsd_calib.tasks.base import Problem, Task


def decode_and_grade(decoder: SpeculativeDecoder, task: Task, problems: list[Problem], rule: str | None) -> list[bool]:
    results = decoder.generate(
        [p.prompt for p in problems], task.max_new_tokens, rule=rule, ids=[p.id for p in problems], stop=task.stop
    )
    return [task.grade(p, r.text) for p, r in zip(problems, results, strict=True)]


def calibration_ids(profile: ThresholdProfile, limit: int | None) -> set[int]:
    """Returns ids of the problems of a generated task that the calibration may have decoded."""
    return {problem.id for problem in load_task(profile.task, profile.seed, limit).problems}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--seen", type=int, help="the calibration's --limit")
    parser.add_argument("--data", type=Path, help="a file of fresh problems, for tasks that read one")
    options = parser.parse_args()
    profile = ThresholdProfile.load(options.profile)
    decoder = SpeculativeDecoder.from_pretrained(profile.target.id, profile.draft.id, profile=profile)
    task = load_task(profile, options.seed, options.problems, options.data, decoder.tokenizer)
    known = set() if options.data else calibration_ids(profile, options.seen)
    fresh = [problem for problem in task.problems if problem.id not in known]
    alone, fuzzy = (decode_and_grade(decoder, task, fresh, rule) for rule in ("target", None))
    outcomes = Outcomes.of(alone, fuzzy)
    print(f"{len(fresh)} fresh problems, T = {profile.threshold}: {outcomes}")
    print(f"retention {outcomes.retention:.4f}, 95 % lower bound {lower_bound(outcomes, 0.05):.4f}")
    certificate = profile.certificate
    numbers = f"retention {certificate.retention:.4f}, lower bound {certificate.lower_bound:.4f}"
    print(f"in the profile: {numbers}, wanted {certificate.wanted}")


if __name__ == "__main__":
    main()
