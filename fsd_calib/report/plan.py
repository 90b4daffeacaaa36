"""Tables and sentences of a calibration plan: what these problems can show, how many it takes, and how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from fsd_calib.certification.power import PRECISION
from fsd_common.console import TITLE, LiteralConsole, literal
from fsd_common.formatting import (
    NONE,
    ROUNDS,
    attempts,
    bound,
    device_hours,
    duration,
    exact,
    gigabytes,
    level,
    percent,
    requirement,
    tokens,
)
from fsd_decoding.meanings import RULE_MEANINGS
from fsd_decoding.profile.certificate import attempt_level

SERVER = "server"  # the engine whose devices are not ours

if TYPE_CHECKING:
    from fsd_calib.calibration.design import Design
    from fsd_calib.calibration.memory import MemoryPlan
    from fsd_calib.calibration.odds import Prospect
    from fsd_calib.calibration.plan import FirstEstimate, Plan


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Prints what the first problems showed, what can be shown with these, and the estimated time and memory, where
    they are known."""
    console = console or LiteralConsole()
    console.print(literal(pilot_summary(plan)))
    console.print()
    if plan.claim.guarantee == "population":
        console.print(prospect_table(plan))
    console.print(literal(outlook(plan)))
    if plan.design is not None:
        console.print(literal(design_line(plan, plan.design)))
    console.print(literal(attempt_line(plan)))
    for line in worth_lines(plan):
        console.print(literal(line))
    if plan.steps:
        console.print()
        console.print(step_table(plan))
        console.print(literal(device_time(plan)))
        if plan.first is not None:
            console.print(literal(first_line(plan.first)))
        console.print(literal(rounds_line(plan)))
    if plan.memory is not None:
        console.print()
        console.print(memory_table(plan.memory))
        if plan.memory.beams is not None:
            console.print(literal(slots_line(plan.memory)))


def pilot_summary(plan: Plan) -> str:
    """Returns what the first problems showed, in two or three sentences."""
    first, floor = plan.pilot, plan.pilot.floor
    rounding = "How many outcomes rounding alone flips is not known" if floor is None else (
        "Rounding alone (the lossless rule compared with the target) flipped "
        f"{percent(floor.share)} of their outcomes, so it flips {floor.bound_in_words}"
    )  # fmt: skip
    summary = (
        f"The target solved {percent(first.accuracy)} of the first {first.problems} tuning problems. {rounding}; a "
        f"fuzzy setting flipped {percent(first.churn)}."
    )
    if first.worth < 1:
        summary += (
            f" Problems come in groups: {plan.certification:,} of them show about as much as "
            f"{round(first.worth * plan.certification):,} that are independent."
        )
    if plan.goes_on is not None:
        seen, settings = plan.goes_on.seen, plan.goes_on.settings
        of = "its setting" if settings == 1 else f"the first of its {settings} settings that did not pass"
        summary += (
            f" The run goes on from {attempts(plan.goes_on.attempts)}, where {of} had {seen.outcomes} on "
            f"{seen.problems:,} problems; chances are those that are left."
        )
    if _depends_on_churn(plan):
        summary += f" The plan assumes that {percent(first.cautious_churn)} flip, an upper bound at 80% confidence"
        if plan.claim.wanted is not None:
            low, high = map(percent, first.churn_between)
            summary += f", and for chances in brackets {low} to {high}, an interval at 80%"
        summary += "."
    return summary


def attempt_line(plan: Plan) -> str:
    """Returns which attempt a run is, at which level it is tested, and what it spends."""
    if plan.attempt is None:
        return (
            "This explores (--explore): the certification part stays closed, no attempt is spent, nothing is certified."
        )
    own, left = (attempt_level(plan.claim.confidence, number) for number in (plan.attempt, plan.attempt + 1))
    gone_on = ""
    if plan.goes_on is not None:
        gone_on = f" beside the {level(plan.delta - own)} of {attempts(plan.goes_on.attempts)}, which it goes on from"
    return (
        f"A run is attempt {plan.attempt} at this claim or on these problems, tested at level {level(own)}{gone_on}, "
        f"and spends it: attempt {plan.attempt + 1} is tested at level {level(left)}. --explore spends none."
    )


def design_line(plan: Plan, design: Design) -> str:
    """Returns the cheapest design for the goal and what it takes, or what can be shown at most."""
    noise, found = plan.pilot.noise, f"{design.problems:,} problems"
    if noise is not None:
        found += f" with {design.seeds} seed{'s' * (design.seeds > 1)} each"
    if plan.takes_design:
        return f"This run takes the design that was found cheapest: {found}."
    varies = ""
    if noise is not None:
        within = noise.within / (noise.within + noise.between or 1.0)
        varies = f"Of the variance of outcomes {percent(within)} or more is within problems, between seeds. "
    if design.truth is None:
        return (
            f"{varies}No design of these problems shows the goal with probability 80%: {found} show "
            f"{bound(design.bound, PRECISION)} at most."
        )
    best, *_ = plan.prospects
    only = "" if design.truth < best.truth else " (none shows one that loses half of what the goal allows)"
    decodings, seconds = (sum(getattr(s, name) for s in plan.design_steps) for name in ("decodings", "seconds"))
    takes = f" It takes {decodings:,} decodings in all ({tokens(round(plan.tokens * decodings))}, "
    takes += f"{device_hours(plan.devices * seconds)} device-hours)."
    return (
        f"{varies}The cheapest design that certifies a true {_measure(plan)} of {percent(design.truth)} with "
        f"probability 80%: {found}{only}.{takes if plan.design_steps else ''}"
        f"{'' if plan.takes_design is None else ' --design auto takes it.'}"
    )


def worth_lines(plan: Plan) -> list[str]:
    """Returns what any rule could gain, and what the goal is expected to leave of it; nothing of what is not known."""
    lines, ceiling, expected = [], plan.ceiling, plan.expected
    if ceiling is not None:
        line = (
            f"The ceiling: accepting every drafted token makes about {ceiling.gain:.2f}x the tokens/s of the fastest "
            f"lossless setting ({ceiling.lossless}, {RULE_MEANINGS.get(ceiling.lossless.rule, 'lossless')}: about "
            f"{ceiling.lossless_speed:.3g} tokens/s a stream), at "
            f"L = {ceiling.draft_length}. It is a forecast: rounds that are timed later may be faster."
        )
        if not plan.worth_it:
            line += f" That is not worth it, so a run stops here (--min-gain {plan.min_gain:g}; 1 goes on)."
        lines.append(line)
    if expected is not None:
        low, high = f"{expected.low:.2f}x", f"{expected.high:.2f}x"
        between = "" if low == high else f" ({low} to {high})"
        lines.append(
            f"Expected: about {expected.gain:.2f}x{between} the best lossless setting with a true "
            f"{_measure(plan)} of {percent(expected.truth)}, chance to certify "
            f"{_chance(expected.chance, expected.between)}. This is a forecast from {plan.pilot.problems} problems, "
            "with intervals of 80%."
        )
    return lines


def prospect_table(plan: Plan) -> Table:
    """Returns for each supposed truth the chance to certify, the problems needed, and the bound that can be shown."""
    table = Table(title=literal(_title(plan), TITLE), box=box.SIMPLE_HEAD, title_justify="left")
    first, *headings = prospect_headings(plan)
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right")
    for prospect in plan.prospects:
        table.add_row(*map(literal, prospect_cells(prospect)))
    return table


def prospect_headings(plan: Plan) -> list[str]:
    """Returns the headings of `prospect_cells`."""
    wanted = [] if plan.claim.wanted is None else ["chance to certify", "problems for 80%"]
    return [f"true {_measure(plan)}", *wanted, f"shown by {plan.certification:,} problems"]


def _title(plan: Plan) -> str:
    measure, share = _measure(plan).capitalize(), plan.claim.wanted
    if share is None:
        return f"{measure} that is shown with probability 80%"
    return f"{measure} of at least {exact(share)}: what can be shown"


def prospect_cells(prospect: Prospect) -> list[str]:
    """Returns a supposed truth with what follows from it."""
    cells = [f"≥ {bound(prospect.bound, PRECISION)}"]
    if prospect.chance is not None:
        needed = NONE if prospect.needed is None else f"{prospect.needed:,}"
        cells = [_chance(prospect.chance, prospect.between), needed, *cells]
    return [percent(prospect.truth), *cells]


def _chance(chance: float, between: tuple[float, float] | None) -> str:
    """Returns a chance, with its interval where that has any width."""
    low, high = between or (chance, chance)
    ends = f"{100 * low:.0f}%", f"{100 * high:.0f}%"
    return f"{100 * chance:.0f}%" + (f" ({' to '.join(ends)})" if ends[0] != ends[1] else "")


def step_table(plan: Plan) -> Table:
    """Returns the decodings and the estimated time of each step."""
    table = Table(title="Estimated time", box=box.SIMPLE_HEAD, title_justify="left", show_footer=True)
    table.add_column("", "total")
    table.add_column("decodings", f"{sum(step.decodings for step in plan.steps):,}", justify="right")
    table.add_column("time", duration(plan.seconds), justify="right")
    for step in plan.steps:
        table.add_row(literal(step.name), f"{step.decodings:,}", duration(step.seconds))
    return table


def device_time(plan: Plan) -> str:
    """Returns the device-hours of the whole calibration, or a server's requests, and what they may become."""
    if plan.engine is not None and plan.engine.name == SERVER:
        requests = sum(step.decodings for step in plan.steps)
        return f"About {requests:,} requests, answered with {tokens(round(requests * plan.tokens))}, timing among them."
    one = "one device (the CPU, all workers together)" if plan.on_cpu else "one device"
    on = one if plan.devices == 1 else f"{plan.devices} devices at once"
    text = f"Device-hours on {on}: about {device_hours(plan.device_seconds)} in all"
    if plan.worst_case_extra:
        text += f", at most {device_hours(plan.devices * plan.worst_case_extra)} more if all frozen settings are tested"
    if plan.price is not None:
        text += f". At {plan.price_per_hour:g} an hour: about {plan.price:,.2f}"
    return f"{text}."


def first_line(first: FirstEstimate) -> str:
    """Returns what was estimated before the plan."""
    return f"The first estimate was {duration(first.seconds)} ({duration(first.low)} to {duration(first.high)})."


def rounds_line(plan: Plan) -> str:
    """Returns what decodes, and how rounds are called in everything that is timed."""
    if plan.engine is not None:
        return f"Decoded and timed by {plan.engine}."
    return f"Rounds are {ROUNDS[plan.compile]} (compile: {plan.compile})."


def memory_table(memory: MemoryPlan) -> Table:
    """Returns what takes how much memory, and what the device has."""
    of_beams = "" if memory.beams is None else f" of {memory.beams} beams"
    title = f"Estimated memory, {memory.rows} problems{of_beams} at a time on {memory.device}"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", show_footer=True)
    free = "" if memory.free is None else f"of {gigabytes(memory.free)} free"
    table.add_column("", "total")
    table.add_column("size", gigabytes(memory.total), justify="right")
    table.add_column("", free)
    for name, size in memory.need.items():
        if size:
            table.add_row(name, gigabytes(size), "")
    return table


def slots_line(memory: MemoryPlan) -> str:
    """Returns how many KV slots beams have at first, and how many they used."""
    return (
        f"Beams share the KV slots of what their texts have in common: caches begin with {memory.reserved:,} slots "
        f"behind a prompt, enough for {memory.beams} texts that differ in one round alone, and grow by half where that "
        f"does not suffice; {memory.slots:,} were in use at most so far."
    )


def outlook(plan: Plan) -> str:
    """Returns what follows from the numbers: whether these problems are enough, and what else could be done."""
    if plan.claim.guarantee == "dataset":
        return _dataset_outlook(plan)
    if plan.claim.wanted is None:
        return (
            f"No accuracy was requested: the chosen setting gets a lower bound from {plan.certification:,} problems, "
            f"about the one in the table, at significance level {level(plan.delta)}."
        )
    sentences = [_above_reach(plan), _too_few(plan) if plan.least_truth is None else _enough(plan, plan.least_truth)]
    return " ".join(filter(None, sentences))


def _above_reach(plan: Plan) -> str:
    share, accuracy = plan.claim.wanted, plan.pilot.accuracy
    if share is None:
        return ""
    if plan.claim.acc == "absolute":
        return f"The target itself solved only {percent(accuracy)} of the first problems." if share >= accuracy else ""
    return "Losing nothing is not enough for this: the setting must beat the target." if share >= 1 else ""


def _enough(plan: Plan, least_truth: float) -> str:
    enough = (
        f"The {plan.certification:,} certification problems are enough: a setting whose true {_measure(plan)} is "
        f"{requirement(least_truth, PRECISION)} or more passes with probability 80%"
    )
    return f"{enough}{_by_looks(plan)}."


def _by_looks(plan: Plan) -> str:
    looks = plan.claim.looks
    if looks is None or len(looks.problems) == 1:
        return " (one look, at all of them)"
    them = "them" if plan.goes_on is None else f"the {plan.certification - plan.goes_on.seen.problems:,} left"
    return f", and is decided after {100 * plan.decoded:.0f}% of {them} on average, by {len(looks.problems)} looks"


def _too_few(plan: Plan) -> str:
    best = plan.prospects[0]
    if best.needed is None:
        return (
            f"No number of problems can show this: even the best true {_measure(plan)} considered, "
            f"{percent(best.truth)}, is not above it."
        )
    return (
        f"The {plan.certification:,} certification problems are probably too few: even with a true {_measure(plan)} of "
        f"{percent(best.truth)} it takes about {best.needed:,} to pass with probability 80%. Give more problems, or "
        f"request {bound(best.bound, PRECISION)}, which these show with that probability."
    )


def _dataset_outlook(plan: Plan) -> str:
    scope = (
        f"The guarantee covers these {plan.certification:,} problems only; all of them are decoded, so nothing is left "
        "to chance"
    )
    return f"{scope}." if plan.claim.wanted is None else f"{scope}, and any setting that keeps the accuracy passes."


def _depends_on_churn(plan: Plan) -> bool:
    """Whether churn matters: it does not for absolute accuracy, nor where nothing is left to chance."""
    return plan.claim.acc == "retention" and plan.claim.guarantee == "population"


def _measure(plan: Plan) -> str:
    return "accuracy" if plan.claim.acc == "absolute" else "retention"
