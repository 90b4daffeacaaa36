"""What a person reads of a server's profile: a table, the verdict, the curve, and how the value is set."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from fsd_calib.options.server import plain, with_value
from fsd_calib.report.bounds import bound_to_show
from fsd_calib.report.verdict import LIKE, lost, rounding, shown
from fsd_common.console import TITLE, LiteralConsole, literal
from fsd_common.formatting import NONE, bound, exact, interval, pace, percent, tokens
from fsd_decoding.profile.fields import CERTIFIED
from fsd_decoding.profile.server_profile import LoadFigures, LoadInfo, ServerPoint, ServerProfile


def print_report(profile: ServerProfile, path: Path | None = None, console: Console | None = None) -> None:
    """Prints the table, the verdict and the curve, and last how the value is set. path: of the saved profile."""
    console = console or LiteralConsole()
    console.print(_figures(profile))
    console.print(literal("\n".join(verdict(profile))))
    console.print()
    console.print(_curve(profile))
    work = profile.effort.total
    console.print(
        literal(f"answered {work.decoded:,} requests ({tokens(work.decoded_tokens)}), reused {work.reused:,} answers")
    )
    console.print()
    if path is not None:
        console.print(literal(f"fsd-profile export {shlex.quote(str(path))}    # prints how the knob is set"))


def verdict(profile: ServerProfile) -> Iterator[str]:
    """Yields the outcome, the evidence, what it does not cover, and what stayed unanswered, a line each."""
    yield f"{'' if profile.bound else 'Changed since, and so not certified. '}{_outcome(profile)}"
    evidence = shown(profile)
    if evidence:
        yield evidence
    if profile.speed is not None:
        yield _speed(profile.speed)
    if profile.certificate.problems:
        yield (
            f"These figures hold for this server as it was, one task and one grader, "
            f"{LIKE[profile.certificate.guarantee]}; they say nothing about others."
        )
    if said := rounding(profile):
        yield said.replace("the lossless rule compared with the target", "the reference, asked twice")
    if said := _unanswered(profile):
        yield said


def _outcome(profile: ServerProfile) -> str:
    c, knob = profile.certificate, profile.knob.name
    kept = "accuracy" if c.acc == "absolute" else "of the reference's accuracy"
    chosen = "" if profile.chosen is None else f"{knob} = {plain(profile.chosen)}"
    if profile.outcome in CERTIFIED:
        wanted = "" if c.wanted is None else f" keeps at least {exact(c.wanted)} {kept} {LIKE[c.guarantee]}"
        slower = "" if profile.value is not None else " It was shown to be slower than the reference; serve that."
        harm = f" It {lost(profile)}." if lost(profile) else ""
        return f"Certified at {exact(c.confidence)} confidence: {chosen}{wanted}.{harm}{slower}"
    if profile.outcome == "untested":
        return f"Explored: {chosen}. Nothing is certified (--explore), and no attempt was spent."
    if profile.outcome == "lossless":
        return f"No value of {knob} that keeps the requested accuracy is expected to be faster; serve the reference."
    if profile.outcome == "front":
        return "The whole curve was requested: choose from it."
    if profile.outcome == "too-slow":
        return f"Too slow: {chosen or f'no value of {knob}'} did not reach the requested speed."
    wanted = "what was requested" if c.wanted is None else f"at least {exact(c.wanted)} {kept}"
    estimate = f" The estimate is {chosen}." if chosen else ""
    return (
        f"Not certified: at {exact(c.confidence)} confidence no value of {knob} was shown to keep {wanted}. Serve the "
        f"reference.{estimate}"
    )


def _speed(speed: LoadInfo) -> str:
    known = "too little was timed for an interval" if speed.interval is None else interval(speed.interval, 2)
    return (
        f"At {load_in_words(speed)} a stream is {speed.over_reference:.2f}x as fast as the reference's ({known} at "
        f"{exact(speed.confidence)} confidence)."
    )


def load_in_words(speed: LoadInfo) -> str:
    """Returns the load that speeds were measured at."""
    if speed.rate is not None:
        return f"{speed.rate:g} requests/s"
    return f"{speed.streams} stream{'s' * (speed.streams != 1)}"


def _unanswered(profile: ServerProfile) -> str:
    left = profile.unanswered
    if not left.reference + left.chosen:
        return ""
    return (
        f"{left.chosen} texts of the chosen value stayed unanswered, and count as lost; {left.reference} of the "
        "reference did, and their problems count for no value."
    )


def _figures(profile: ServerProfile) -> Table:
    table = Table(title=literal(f"{profile.task}: what was measured", TITLE), box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("", overflow="fold")
    headings = ["accuracy", "retention", "tokens/s", "of a\nstream", "ttft, s\np50 · p99", "itl, ms\np50 · p99"]
    if profile.speed is not None and profile.speed.slo:
        headings.append("goodput\nrequests/s")
    for heading in headings:
        table.add_column(heading, justify="right")
    counts = profile.certificate.counts
    kept = percent(counts.retention) if counts.right else NONE
    figures = (None, None) if profile.speed is None else (profile.speed.reference, profile.speed.chosen)
    chosen = "reference" if profile.chosen is None else f"{profile.knob.name} = {plain(profile.chosen)}"
    rows = (("reference", profile.accuracy.target, NONE), (chosen, profile.accuracy.chosen, kept))
    for (name, accuracy, retention), of_load in zip(rows, figures, strict=True):
        cells = [percent(accuracy), retention, *_cells(of_load)]
        table.add_row(*map(literal, [name, *cells[: len(headings)]]))
    return table


def _cells(of: LoadFigures | None) -> list[str]:
    if of is None:
        return [NONE] * 5
    first, between = of.time_to_first_token, of.time_between_tokens
    return [
        pace(of.tokens_per_second), pace(of.stream_tokens_per_second), f"{first[0]:.3g} · {first[2]:.3g}",
        NONE if between is None else f"{1e3 * between[0]:.3g} · {1e3 * between[2]:.3g}", pace(of.goodput, 2),
    ]  # fmt: skip


def _curve(profile: ServerProfile) -> Table:
    table = Table(title=literal("the curve", TITLE), box=box.SIMPLE_HEAD, title_justify="left", padding=0)
    table.add_column(profile.knob.name)
    for heading in ("accuracy", "retention", "≥", "tokens/s", "problems", "part"):
        table.add_column(heading, justify="right")
    for point in profile.curve:
        chosen = point.value == profile.chosen and point.source == "certification"
        low = bound_to_show(profile.certificate, point.lower_bound, chosen)
        table.add_row(*map(literal, _point(point, low)))
    return table


def _point(point: ServerPoint, low: float | None) -> Sequence[str]:
    value = "reference again" if point.value is None else str(plain(point.value))
    return (
        value, percent(point.accuracy), percent(point.retention), bound(low),
        pace(point.tokens_per_second), f"{point.problems:,}", point.source,
    )  # fmt: skip


def export(profile: ServerProfile) -> str:
    """Returns how the knob is set to the profile's value: fields of requests, a command of curl, or of the server."""
    knob, value = profile.knob, profile.value
    if value is None:
        certified = "Nothing lossy is to be served." if profile.estimate is None else "The value is an estimate alone."
        return f"# {certified} The reference of the profile of {profile.task!r}:\n{json.dumps(profile.reference)}"
    certified = (
        f"certified to keep {exact(profile.certificate.wanted)}"
        if profile.certifies and profile.certificate.wanted is not None
        else "not certified"
    )
    head = (
        f"# {knob.name} = {plain(value)} for {profile.server.model} ({profile.server.version}), as the profile of "
        f"{profile.task!r} says: {certified}"
        f"{'' if profile.speed is None else f', at {load_in_words(profile.speed)}'}."
    )
    written = with_value(knob.written, value)
    if knob.way == "request":
        return f"{head}\n# Fields of each request:\n{json.dumps(written)}"
    if knob.way == "live":
        body = shlex.quote(json.dumps(written["body"]))
        return f"{head}\ncurl --json {body} {shlex.quote(written['url'])}"
    return f"{head}\n{written['command']}"
