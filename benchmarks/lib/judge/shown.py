"""The tables of a judge beside other scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LEVELS = (0.97, 0.98, 0.99)


def table(found: Mapping[str, Any]) -> str:
    """Returns the tables in Markdown."""
    return "\n".join([*_speeds(found), "", *_rankings(found), "", *_across(found)])


def _speeds(found: Mapping[str, Any]) -> Iterator[str]:
    names = {judge.score: str(judge) for judge in found["judges"]}
    perfect = found["perfect_tokens_per_round"]
    lossless = found["lossless"][0]["tokens_per_round"]
    rule = found["lossless"][0]["rule"]
    yield f"Tokens a round where so much is kept, tokens/s over {rule}'s, and how much of a perfect judge's gain in"
    yield "tokens a round"
    yield ""
    yield "| score | " + " | ".join(f"{level}" for level in LEVELS) + " | a round's time |"
    yield "| --- " * (2 + len(LEVELS)) + "|"
    yield f"| lossless | {_number(lossless)}" + " | " * (1 + len(LEVELS)) + " |"
    by_rule: dict[str, list[Mapping[str, Any]]] = {}
    for level in found["levels"]:
        if level["wanted"] in LEVELS:
            by_rule.setdefault(level["rule"], []).append(level)
    for rule, levels in by_rule.items():
        cells = [
            f"{_number(each['tokens_per_round'])}, {each['gain'].value:.2f}x, {share:.0%}"
            for each, share in zip(levels, found["shares_of_perfect"][rule].values(), strict=True)
        ]
        slower = found["slower"][rule].median
        yield f"| {names.get(rule, rule)} | " + " | ".join(cells) + f" | {slower:.3f} |"
    yield "| a perfect judge | " + " | ".join(_number(perfect[level]) for level in LEVELS) + " | |"


def _rankings(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| ranker of harmful mismatches | AUC on other problems | by cross-fitting | model |"
    yield "| --- " * 4 + "|"
    for judge in found["judges"]:
        auc = "" if judge.auc is None else f"{judge.auc:.3f}"
        yield f"| {judge} | {auc} | {judge.crossed:.3f} | {judge.kind} of {judge.features} features |"
    for name, auc in sorted(found["auc_of_scores"].items(), key=lambda each: -each[1]):
        yield f"| {name} | {auc:.3f} | | |"


def _across(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| labels of half of the stories | AUC of their own judge | of the other half's | best of the scores |"
    yield "| --- " * 4 + "|"
    for each in found["across_stories"]:
        auc = f"{each['of_these']:.3f} | {each['of_other_stories']:.3f} | {each['of_the_best']:.3f} ({each['best']})"
        yield f"| {each['labels']:,} | {auc} |"


def _number(found: Sequence[float]) -> str:
    value, low, high = found
    return f"{value:.2f} ({low:.2f} to {high:.2f})"
