"""Does a profile keep its promise? Decodes fresh problems with it: `python benchmarks/fresh.py PROFILE`.

Knows a profile and a task. The problems come from another seed than the calibration's, and those that the
calibration saw are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fsd_calib import SpeculativeDecoder, ThresholdProfile, load_task
from fsd_calib.certification.outcomes import Outcomes
from fsd_calib.certification.score_test import lower_bound
from fsd_calib.tasks.base import Problem, Task


def graded(decoder: SpeculativeDecoder, task: Task, problems: list[Problem], rule: str | None) -> list[bool]:
    results = decoder.generate(
        [p.prompt for p in problems], task.max_new_tokens, rule=rule, ids=[p.id for p in problems], stop=task.stop
    )
    return [task.grade(p, r.text) for p, r in zip(problems, results, strict=True)]


def seen_by(profile: ThresholdProfile, limit: int | None) -> set[int]:
    """Problems of a generated task that the calibration may have decoded."""
    return {problem.id for problem in load_task(profile.task, profile.seed, limit).problems}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--seen", type=int, help="what the calibration's --limit was")
    parser.add_argument("--data", type=Path, help="a file of fresh problems, for tasks that read one")
    options = parser.parse_args()
    profile = ThresholdProfile.load(options.profile)
    decoder = SpeculativeDecoder.from_pretrained(profile.target.id, profile.draft.id, profile=profile)
    task = load_task(profile.task, options.seed, options.problems, options.data, decoder.tokenizer)
    seen = set() if options.data else seen_by(profile, options.seen)
    fresh = [problem for problem in task.problems if problem.id not in seen]
    alone, fuzzy = (graded(decoder, task, fresh, rule) for rule in ("target", None))
    outcomes = Outcomes.of(alone, fuzzy)
    print(f"{len(fresh)} fresh problems, T = {profile.threshold}: {outcomes}")
    print(f"retention {outcomes.retention:.4f}, 95 % lower bound {lower_bound(outcomes, 0.05):.4f}")
    said = profile.certificate
    print(f"the profile says {said.retention:.4f}, lower bound {said.lower_bound:.4f}, wanted {said.wanted}")


if __name__ == "__main__":
    main()
