"""What a person, or a program, reads of a check."""

from __future__ import annotations

from typing import Any

from fsd_calib.servers.check import Verdict
from fsd_calib.servers.exchangeable import Differing

_SHOWN = 10  # texts


def report(verdict: Verdict) -> str:
    """Returns figures, verdict, and where the first texts part."""
    left_out = f" ({verdict.unanswered} others stayed unanswered)" if verdict.unanswered else ""
    lines = [
        f"{verdict.prompts} prompts, {verdict.times} times from each side{left_out}", "",
        f"{'pairs that differ':20} {'reference':>10} {'server':>10} {'across':>10} {'p':>10}",
        *(_line(name, each) for name, each in verdict.found.items()), "", _sentence(verdict),
    ]  # fmt: skip
    for parting in verdict.partings[:_SHOWN]:
        gap = "" if parting.gap is None else f" (the reference prefers its own token by {parting.gap:.3g} nats)"
        lines += [
            "", f"problem {parting.problem}, from character {parting.at}{gap}, after {parting.before!r}:",
            f"  reference {parting.reference!r}", f"  server    {parting.other!r}",
        ]  # fmt: skip
    if len(verdict.partings) > _SHOWN:
        lines += ["", f"and {len(verdict.partings) - _SHOWN} other texts (--json has them)"]
    return "\n".join(lines)


def facts(verdict: Verdict) -> dict[str, Any]:
    """Returns the same for programs."""
    return {
        "lossless": verdict.lossless, "p_value": verdict.p_value, "level": verdict.level, "prompts": verdict.prompts,
        "times": verdict.times, "unanswered": verdict.unanswered,
        "compared": {name: each._asdict() for name, each in verdict.found.items()},
        "partings": [each._asdict() for each in verdict.partings],
    }  # fmt: skip


def _line(name: str, each: Differing) -> str:
    shares = (f"{100 * share:9.2f}%" for share in (each.reference, each.other, each.between))
    return f"{name:20} {' '.join(shares)} {each.p_value:10.3g}"


def _sentence(verdict: Verdict) -> str:
    if verdict.lossless:
        return (
            f"Lossless, as far as the noise of both sides lets tell: p = {verdict.p_value:.3g}. A lossless server is "
            f"called lossy with probability {verdict.level:g} at most."
        )
    return (
        f"Not lossless: the sides differ more from each other than from themselves, p = {verdict.p_value:.3g} (at most "
        f"{verdict.level:g} of lossless servers would be called so)."
    )
