"""What a calibration found, for a reader at a terminal: one table, one verdict, and how to use it.

Knows the profile alone: every number shown is one that it holds.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fsd_decoding.profile import ThresholdProfile
from fsd_decoding.profile_parts import Certificate, CurvePoint

_CERTIFICATION, _TIMED = "¹", "²"
_NONE = "–"


class _Row(NamedTuple):
    label: str
    accuracy: str = _NONE
    retention: str = _NONE
    bound: str = _NONE
    tokens_per_round: str = _NONE
    speed: str = _NONE


def print_report(profile: ThresholdProfile, path: Path | None = None, console: Console | None = None) -> None:
    """Prints the table, the verdict and, where the profile lies at `path`, how to use it."""
    console = console or Console()
    console.print(profile_table(profile))
    console.print()
    console.print(Text(verdict(profile)))
    if path is not None:
        console.print()
        # Not wrapped: these lines are there to be copied.
        console.print(Text(usage(profile, path)), soft_wrap=True)


def profile_table(profile: ThresholdProfile) -> Table:
    """Target alone, `sd` and the chosen configuration; marks say on which part a number was measured."""
    table = Table(
        title=f"{profile.task}: what was measured",
        caption=_caption(profile),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("")
    for heading in ("accuracy", "retention", "retention ≥", "tokens/round", profile.speed.unit):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in (_target_row(profile), _sd_row(profile), _chosen_row(profile)):
        table.add_row(*row)
    return table


def verdict(profile: ThresholdProfile) -> str:
    """What was shown and what was not, in plain sentences."""
    said = _certified(profile) if profile.certificate.certified else _not_certified(profile)
    return " ".join(filter(None, [said, _gain(profile), _speed_asked(profile), _counts(profile.certificate)]))


def usage(profile: ThresholdProfile, path: Path) -> str:
    """A command and Python lines that follow the profile."""
    models = f"{profile.target.id!r}, {profile.draft.id!r}"
    return (
        f"fsd-generate --profile {shlex.quote(str(path))} 'your prompt'\n\n"
        "from fsd_calib import SpeculativeDecoder\n"
        f"decoder = SpeculativeDecoder.from_pretrained({models}, profile={str(path)!r})\n"
        "results = decoder.generate(['your prompt'])"
    )


def _target_row(profile: ThresholdProfile) -> _Row:
    return _Row(
        "target alone",
        accuracy=_marked(_percent(profile.accuracy.target), _CERTIFICATION),
        speed=_marked(f"{profile.speed.target:.1f}", _TIMED),
    )


def _sd_row(profile: ThresholdProfile) -> _Row:
    """`sd` loses nothing; its accuracy is shown where it was measured all the same."""
    point = _point(profile, "sd")
    return _Row(
        "sd (lossless)",
        accuracy=_marked(_percent(point.accuracy), _CERTIFICATION) if point else _NONE,
        retention=_marked(_percent(point.retention), _CERTIFICATION) if point else _NONE,
        tokens_per_round=_marked(f"{profile.tokens_per_round.sd:.2f}", _CERTIFICATION),
        speed=_marked(f"{profile.speed.sd:.1f}", _TIMED),
    )


def _chosen_row(profile: ThresholdProfile) -> _Row:
    certificate = profile.certificate
    return _Row(
        _configuration(profile),
        accuracy=_marked(_percent(profile.accuracy.chosen), _CERTIFICATION),
        retention=_marked(_percent(certificate.retention), _CERTIFICATION),
        bound=_marked(_bound(certificate.lower_bound), _CERTIFICATION),
        tokens_per_round=_marked(f"{profile.tokens_per_round.chosen:.2f}", _CERTIFICATION),
        speed=_marked(f"{profile.speed.chosen:.1f}", _TIMED),
    )


def _point(profile: ThresholdProfile, rule: str) -> CurvePoint | None:
    """The point of a rule on the certification part."""
    return next((p for p in profile.curve if p.rule == rule and p.source == "certification"), None)


def _configuration(profile: ThresholdProfile) -> str:
    if profile.threshold is not None:
        return f"{profile.rule}\nT = {profile.threshold:.4g}"
    if profile.estimate is not None:
        return f"not certified\nT = {profile.estimate.threshold:.4g}"
    return f"lossless\n({profile.effective_rule})"


def _certified(profile: ThresholdProfile) -> str:
    certificate = profile.certificate
    shown = _bound(certificate.lower_bound) if certificate.wanted is None else _exact(certificate.wanted)
    chosen = f"{profile.rule} at T = {profile.threshold:.4g} ({profile.divergence}, L = {profile.draft_length})"
    confidence = _exact(certificate.confidence)
    return f"Certified at {confidence} confidence: {chosen} keeps at least {shown} of the target's accuracy."


def _not_certified(profile: ThresholdProfile) -> str:
    certificate, guess = profile.certificate, profile.estimate
    said = "Not certified: what was tested is not fast enough."
    if certificate.wanted is not None:
        wanted, confidence = _exact(certificate.wanted), _exact(certificate.confidence)
        said = (
            f"Not certified: at {confidence} confidence no threshold was shown to keep at least {wanted} "
            "of the target's accuracy."
        )
    said += f" Decoders that follow this profile run the lossless rule {profile.effective_rule}."
    if guess is not None:
        bound = "" if guess.lower_bound is None else f", lower bound {_bound(guess.lower_bound)}"
        said += f" The estimate is T = {guess.threshold:.4g}: retention {_percent(guess.retention)}{bound}."
    return f"{said} {_needed(profile)}".strip()


def _needed(profile: ThresholdProfile) -> str:
    """How many problems would have certified what was tested, had they shown the same shares."""
    from fsd_calib.power import problems_needed

    c = profile.certificate
    if c.wanted is None or c.retention is None:
        return ""
    needed = problems_needed(
        accuracy=profile.accuracy.target, churn=(c.lost + c.gained) / c.problems, retention=c.retention,
        wanted=c.wanted, confidence=c.confidence,
    )  # fmt: skip
    if needed is None:
        return "At this retention no number of problems would certify it."
    return f"At these shares about {needed:,} problems on the certification part would certify it 4 times in 5."


def _gain(profile: ThresholdProfile) -> str:
    """How much faster, where there is something to be glad of."""
    if not profile.certificate.certified:
        return ""
    speed, paces = profile.speed, profile.tokens_per_round
    return (
        f"It makes {paces.chosen / paces.sd:.2f}x the tokens a round of sd, {speed.chosen / speed.sd:.2f}x its "
        f"{speed.unit} and {speed.chosen / speed.target:.2f}x those of the target alone."
    )


def _speed_asked(profile: ThresholdProfile) -> str:
    speed = profile.speed
    if speed.wanted is None:
        return ""
    compared = "reached" if speed.chosen >= speed.wanted else "not reached"
    return f"At least {speed.wanted:g} {speed.unit} were asked for, {compared}: {speed.chosen:.1f}."


def _counts(certificate: Certificate) -> str:
    if not certificate.problems:
        return "Nothing was decoded on the certification part."
    return (
        f"On the certification part ({certificate.problems} problems that the search never saw): "
        f"both right {certificate.both_right}, lost {certificate.lost}, gained {certificate.gained}, "
        f"both wrong {certificate.both_wrong}."
    )


def _caption(profile: ThresholdProfile) -> str:
    temperature, data, speed = profile.sampling.temperature, profile.data, profile.speed
    return (
        f"{_CERTIFICATION} measured on the certification part: {data.certification} problems, unseen by the search\n"
        f"{_TIMED} tokens a round over the median time of a round, of {speed.timed} tuning problems\n"
        f"≥ lower bound at {_exact(profile.certificate.confidence)} confidence\n"
        f"T on {profile.divergence}, L = {profile.draft_length}, "
        f"{f'temperature {temperature:g}' if temperature else 'greedy'}; "
        f"speed at batch {speed.batch}, {profile.device}, {profile.dtype}"
    )


def _marked(number: str, mark: str) -> str:
    return number if number == _NONE else number + mark


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:.1f}%"


def _bound(share: float | None) -> str:
    """Rounded down: a bound that is rounded up claims more than was shown."""
    return _NONE if share is None else f"{math.floor(1000 * share + 1e-9) / 10:.1f}%"


def _exact(share: float) -> str:
    return f"{100 * share:.6g}%"
