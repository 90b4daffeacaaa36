"""What a calibration found, for a reader at a terminal: tables, one verdict, and how to use it.

Knows the profile alone: every number shown is one that it holds.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fsd_calib.calibration.plan import Plan, Prospect
from fsd_calib.formatting import level
from fsd_calib.report.curve import curve_tables, front_table
from fsd_calib.report.summary import notes, profile_table
from fsd_calib.report.tables import sheets
from fsd_calib.report.verdict import effort_line, verdict
from fsd_decoding.profile.threshold_profile import ThresholdProfile

# MERGED: """A plan, for a reader at a terminal: what the problems at hand can show, what it takes, how long it will be."""


_WITH_FRONT = ("not-certified", "lossless-suffices", "too-slow", "front")


def print_report(profile: ThresholdProfile, path: Path | None = None, console: Console | None = None) -> None:
    """Prints the table, the verdict, where no point was granted those there are, what it took and, where the profile
    lies at `path`, how to use it."""
    console = console or Console()
    front = front_table(profile) if profile.outcome in _WITH_FRONT else None
    _print(console, profile_table(profile), Text(notes(profile), "dim"), Text(verdict(profile)), front,
           Text(effort_line(profile)) if profile.effort else None)  # fmt: skip
    if path is not None:
        # Not wrapped: these lines are there to be copied.
        console.print(Text(usage(profile, path)), soft_wrap=True)


def print_details(profile: ThresholdProfile, console: Console | None = None) -> None:
    """Prints all else that the profile holds: the curve, settings, models, certificate, costs and effort."""
    _print(console or Console(), *curve_tables(profile), *sheets(profile))


def usage(profile: ThresholdProfile, path: Path) -> str:
    """A command and Python lines that follow the profile."""
    models = f"{profile.target.id!r}, {profile.draft.id!r}"
    return (
        f"fsd-generate --profile {shlex.quote(str(path))} 'your prompt'\n\n"
        "from fsd_calib import SpeculativeDecoder\n"
        f"decoder = SpeculativeDecoder.from_pretrained({models}, profile={str(path)!r})\n"
        "results = decoder.generate(['your prompt'])"
    )


def _print(console: Console, *things: RenderableType | None) -> None:
    """Each with an empty line behind it."""
    for thing in things:
        if thing is not None:
            console.print(thing)
            console.print()


_NONE = "–"


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Prints what was seen, what can be shown, and the time, where it is known."""
    console = console or Console()
    console.print(Text(seen(plan)))
    console.print()
    if plan.claim.guarantee == "population":
        console.print(_prospects(plan))
    console.print(Text(outlook(plan)))
    if plan.efforts:
        console.print()
        console.print(_efforts(plan))


def seen(plan: Plan) -> str:
    """The handful, in a sentence or two."""
    first = plan.handful
    said = (
        f"Of the first {first.problems} tuning problems the target solved {_percent(first.accuracy)}; against it "
        f"rounding alone (the lossless rule) flipped the outcome of {_percent(first.numerical_churn)}, so it flips "
        f"{first.floor.below}; a fuzzy setting flipped that of {_percent(first.churn)}."
    )
    if _paired(plan):
        said += f" Planned with {_percent(first.cautious_churn)}, to be cautious."
    return said


def outlook(plan: Plan) -> str:
    """What follows from the numbers, in plain sentences."""
    if plan.claim.guarantee == "dataset":
        return _of_the_dataset(plan)
    if plan.claim.wanted is None:
        return (
            f"No accuracy is asked for: the chosen setting gets a lower bound from {plan.certification:,} problems, "
            f"about that of the table, at level {level(plan.delta)}."
        )
    said = [_above_reach(plan), _enough(plan) if plan.least_truth is not None else _too_few(plan), _by_betting(plan)]
    return " ".join(filter(None, said))


def duration(seconds: float) -> str:
    """As precise as an estimate is."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def _prospects(plan: Plan) -> Table:
    table = Table(title=_title(plan), box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column(f"true {_measure(plan)}")
    headings = [f"shown by {plan.certification:,} problems"]
    if plan.claim.wanted is not None:
        headings = ["chance to certify", "problems for 80%", *headings]
    for heading in headings:
        table.add_column(heading, justify="right")
    for prospect in plan.prospects:
        table.add_row(*_row(prospect))
    return table


def _row(prospect: Prospect) -> list[str]:
    shown = [f"≥ {_rounded_down(prospect.bound)}"]
    if prospect.chance is not None:
        needed = _NONE if prospect.needed is None else f"{prospect.needed:,}"
        shown = [f"{100 * prospect.chance:.0f}%", needed, *shown]
    return [_percent(prospect.truth), *shown]


def _efforts(plan: Plan) -> Table:
    table = Table(title="How long it will take, about", box=box.SIMPLE_HEAD, title_justify="left", show_footer=True)
    table.add_column("", "all")
    table.add_column("decodings", f"{sum(effort.decodings for effort in plan.efforts):,}", justify="right")
    table.add_column("time", duration(plan.seconds), justify="right")
    for effort in plan.efforts:
        table.add_row(effort.step, f"{effort.decodings:,}", duration(effort.seconds))
    return table


def _title(plan: Plan) -> str:
    share = plan.claim.wanted
    if share is None:
        return f"{_measure(plan).capitalize()} that is shown 4 times in 5"
    of = "of the problems solved" if plan.claim.acc == "absolute" else "of the target's accuracy"
    return f"At least {_exact(share)} {of}: what can be shown"


def _enough(plan: Plan) -> str:
    assert plan.least_truth is not None
    return (
        f"The {plan.certification:,} certification problems can do: a setting passes 4 times in 5 if its true "
        f"{_measure(plan)} is {_rounded_up(plan.least_truth)} or more."
    )


def _too_few(plan: Plan) -> str:
    best = plan.prospects[0]
    if best.needed is None:
        return (
            f"No number of problems shows this: not even a true {_measure(plan)} of {_percent(best.truth)} is above it."
        )
    return (
        f"The {plan.certification:,} certification problems are probably too few: at a true {_measure(plan)} of "
        f"{_percent(best.truth)} it takes about {best.needed:,}. "
        f"Give more problems, or ask for {_rounded_down(best.bound)}, which these show 4 times in 5."
    )


def _above_reach(plan: Plan) -> str:
    share, accuracy = plan.claim.wanted, plan.handful.accuracy
    if share is None:
        return ""
    if plan.claim.acc == "absolute":
        return f"The target itself solved only {_percent(accuracy)} of the first problems." if share >= accuracy else ""
    return "No setting that merely loses nothing meets this: it must beat the target." if share >= 1 else ""


def _by_betting(plan: Plan) -> str:
    if plan.claim.test != "betting":
        return ""
    return "These figures are the score test's; the betting test needs about two thirds more problems."


def _of_the_dataset(plan: Plan) -> str:
    said = (
        f"The guarantee is of these {plan.certification:,} problems alone: all are decoded, so what is measured is so"
    )
    return f"{said}, and no chance is left." if plan.claim.wanted is None else f"{said}, and whatever keeps it passes."


def _paired(plan: Plan) -> bool:
    """Whether churn matters: it does not for absolute accuracy, nor where nothing is left to chance."""
    return plan.claim.acc == "retention" and plan.claim.guarantee == "population"


def _measure(plan: Plan) -> str:
    return "accuracy" if plan.claim.acc == "absolute" else "retention"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _exact(share: float) -> str:
    return f"{100 * share:.6g}%"


def _rounded_down(share: float) -> str:
    return f"{math.floor(1000 * share + 1e-3) / 10:.1f}%"


def _rounded_up(share: float) -> str:
    return f"{math.ceil(1000 * share - 1e-3) / 10:.1f}%"
