"""What traces say of rules: tokens a round by how many tokens of a text are other than the target's.

Traces along the target hold its own texts, and do not say what becomes of others: a retention has to be decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fsd_collectors.replay import sweep
from fsd_collectors.store.reading import Traces
from lib.rules.judges import Panel, defaults

REPLACED = (0.5, 1.0, 2.0)  # tokens of a text
_THRESHOLDS = 200


def from_traces(traces: Traces, draft_length: int) -> list[dict[str, Any]]:
    """Returns for each score that the traces hold the most tokens a round at so many replaced tokens, and what the
    value of an engine's knob makes."""
    panel = Panel.at(traces.manifest.sampling.temperature)
    names = [name for name in panel.scores if name in traces.manifest.scores]
    rule = f"fsd-{panel.base}"
    swept = sweep(traces, (rule,), names, _THRESHOLDS, (draft_length,))
    lossless = sweep(traces, (panel.base,), (), 1, (draft_length,))["tokens_per_round"].item()
    found = []
    for name in names:
        rows = swept[swept["score"] == name]
        for replaced in REPLACED:
            allowed = rows[rows["substitutions_per_completion"] <= replaced]
            most = max([lossless, *allowed["tokens_per_round"]])
            found.append(
                {"score": name, "at": f"{replaced:g} replaced", "replaced": replaced, "tokens_per_round": most}
            )
    for default in defaults(panel, draft_length):
        if default.judge.score in names:
            at = {default.judge.score: [default.threshold]}
            (row,) = sweep(traces, (rule,), [default.judge.score], at, (draft_length,)).to_dict("records")
            found.append({
                "score": default.judge.score, "at": f"{default.engine}: {default.knob}",
                "replaced": row["substitutions_per_completion"], "tokens_per_round": row["tokens_per_round"],
            })  # fmt: skip
    return [{"score": panel.base, "at": "lossless", "replaced": 0.0, "tokens_per_round": lossless}, *found]


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns what `from_traces` found in Markdown."""
    lines = ["| score | at | replaced tokens a text | tokens a round |", "| --- " * 4 + "|"]
    for each in found:
        lines.append(f"| {each['score']} | {each['at']} | {each['replaced']:.2f} | {each['tokens_per_round']:.2f} |")
    return "\n".join(lines)
