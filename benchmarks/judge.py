"""A judge beside every other score: `nohup python benchmarks/judge.py &`; takes some three hours on one core.

On a pair that is as sure of its words as of its numbers, or one whose draft is sure of its mistakes, too
(`lib/judge/pair.py`), mismatches are labelled, and judges of several designs are trained on 500 and 2,000 of them, or
on as many as `--budgets` says. They are compared with the scores of docs/rules.md on other problems, at every T at
once, by texts that are really decoded (`lib/rules`). What a perfect judge could, labels tell.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fsd_calib import SpeculativeDecoder, load_task
from fsd_calib.tasks.base import Task
from fsd_collectors.judging.labels import read_labels
from fsd_collectors.store.reading import load_traces
from fsd_common.user_folders import default_cache
from fsd_data import pair_paths
from fsd_data.problems import fresh
from lib.common.claims import Claim
from lib.common.results import conclude, machine_facts, options_of
from lib.common.timing import Ratio
from lib.judge.across import across
from lib.judge.designs import TRIALS, Made, made, of_scores, origin_of
from lib.judge.labels import SEED as LABELLED
from lib.judge.labels import label
from lib.judge.pair import PAIRS, further_pair
from lib.judge.perfect import perfect, share_of
from lib.judge.shown import LEVELS, table
from lib.rules.compared import Compared
from lib.rules.costs import costs_of_rounds
from lib.rules.curves import Columns, Found, draws
from lib.rules.judges import GREEDY, Panel
from lib.rules.stored import SEED, Stored, folder_of
from lib.rules.texts import write

_PROBLEMS, _QUICK, _ROWS = 200, 6, 128
_LABELLED = 12_000  # problems, of whose tuning part mismatches are labelled
_TIMED, _REPEATS = 3, 10
_WANTED, _GAIN, _COST = 0.98, 1.10, 1.05


def main() -> int:
    options, machine = _parser().parse_args(), machine_facts()
    torch.set_num_threads(1)
    pair = further_pair(options.pair) if options.pair in PAIRS else tuple(map(str, pair_paths()))
    decoder = SpeculativeDecoder.from_pretrained(*pair, draft_length=options.draft_length)
    folder = options.labels or default_cache() / f"judge-labels-{options.pair}"
    source = load_task("arithmetic", seed=LABELLED, limit=_LABELLED, tokenizer=decoder.tokenizer)
    if options.labels is None:
        label(folder, source, (pair[0], pair[1]), min(options.budgets) if options.quick else options.collect)
    labels = read_labels(folder)
    texts = load_traces(folder).to_pandas(["problem", "emitted", "correct"], table="completions")
    best = dict(zip(LEVELS, perfect(labels, texts, options.draft_length, LEVELS), strict=True))
    budgets = [min(options.budgets)] if options.quick else options.budgets
    judges = list(made(labels, decoder, options.quick, budgets))
    stories = {problem.id: made.family for problem, made in zip(source.problems, fresh(LABELLED), strict=False)}
    elsewhere = list(across(labels, stories, origin_of(decoder), 0 if options.quick else TRIALS))
    found = compare(decoder, judges, options)
    about = {
        "pair": options.pair, "draft_length": options.draft_length, "seeds": {"labels": LABELLED, "problems": SEED},
        "budgets": budgets, "labels": len(labels), "harmful": float(labels["harmful"].mean()),
        "auc_of_scores": of_scores(labels), "judges": judges, "across_stories": elsewhere,
        "perfect_tokens_per_round": best, "shares_of_perfect": shares_of(found, best), **found,
    }  # fmt: skip
    return conclude(options, machine, about, claims_of(found, judges), table(about))


def _parser() -> ArgumentParser:
    parser = options_of(__doc__, "judge.json")
    parser.add_argument("--pair", choices=(*PAIRS, "bundled"), default="sure")
    parser.add_argument("--problems", type=int, default=_PROBLEMS)
    parser.add_argument("--draft-length", type=int, default=8)
    parser.add_argument("--budgets", type=int, nargs="+", default=[500, 2_000], help="labels to train judges on")
    parser.add_argument("--collect", type=int, default=8_000, help="mismatches to label at most")
    parser.add_argument("--labels", type=Path, help="folder of labels, instead of collecting them")
    parser.add_argument("--texts", type=Path, default=default_cache() / "rules", help="folder of finished texts")
    return parser


def compare(decoder: SpeculativeDecoder, judges: Sequence[Made], options: Any) -> Mapping[str, Any]:
    """Compares judges and all other scores on problems that no judge was trained on."""
    problems, quick = (_QUICK if options.quick else options.problems), options.quick
    task = load_task("arithmetic", seed=SEED, limit=problems, tokenizer=decoder.tokenizer)
    scores = GREEDY, tuple(judge.score for judge in judges)
    others, own = (texts_of(decoder, task, Panel("coupled", names), options.texts) for names in scores)
    panel = Panel("coupled", (*scores[0], *scores[1]))
    timed = task.problems[: 1 if quick else _TIMED]
    costs, slower = costs_of_rounds(decoder, task, timed, panel, 1 if quick else _REPEATS)
    ratios = {judge: ratio.median for judge, ratio in slower.items()}
    compared = Compared(panel, [*others, *own[1:]], draws(problems), costs, ratios)
    return {
        "problems": problems, "accuracy": compared.accuracy, "costs": costs,
        "slower": {str(judge): ratio for judge, ratio in slower.items()}, "lossless": compared.of_lossless(),
        "levels": compared.levels(),
    }  # fmt: skip


def texts_of(decoder: SpeculativeDecoder, task: Task, panel: Panel, folder: Path) -> Sequence[Columns]:
    """Returns the texts of a panel's judges, which are written where the folder lacks them."""
    stored = Stored(folder_of(folder, decoder, task.name, panel), panel)
    if missing := [each for each in enumerate(task.problems) if each[0] not in stored.numbers]:
        stored.add_all(write(decoder, task, missing, panel, _ROWS))
    return stored.columns(len(task.problems))


def shares_of(found: Mapping[str, Any], best: Mapping[float, Found]) -> Mapping[str, Mapping[float, float]]:
    """Returns for each score and level how much of a perfect judge's gain it has."""
    lossless = found["lossless"][0]["tokens_per_round"].value
    shares: dict[str, dict[float, float]] = {}
    for each in found["levels"]:
        if each["wanted"] in best:
            share = share_of(each["tokens_per_round"].value, lossless, best[each["wanted"]].value)
            shares.setdefault(each["rule"], {})[each["wanted"]] = share
    return shares


def claims_of(found: Mapping[str, Any], judges: Sequence[Made]) -> list[Claim]:
    """Returns the claims: tokens a round over the best other score's, and what one row's judging costs."""
    own = {judge.score for judge in judges}
    at = {each["rule"]: each["tokens_per_round"] for each in found["levels"] if each["wanted"] == _WANTED}
    others = max(tokens.value for rule, tokens in at.items() if rule not in own)
    largest = [judge.score for judge in judges if judge.budget == max(each.budget for each in judges)]
    gain = max(at[score].value for score in largest) / others
    costs: list[Ratio] = [ratio for judge, ratio in found["slower"].items() if judge in own]
    dearest = max(costs, key=lambda ratio: ratio.median)
    return [
        Claim.at_least(f"tokens a round at {_WANTED}, over the best other score", _GAIN, gain),
        Claim.at_most_times("a round with a judge, over a lossless one", _COST, dearest),
    ]


if __name__ == "__main__":
    sys.exit(main())
