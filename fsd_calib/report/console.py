"""Printing of profiles on the console."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from rich.console import Console, RenderableType

from fsd_calib.report.figures import notes, profile_table
from fsd_calib.report.run_folder import PAGE
from fsd_calib.report.tables import curve_tables, front_table, sheets
from fsd_calib.report.verdict import effort_line, unbound, verdict
from fsd_common.addons import added_to_path
from fsd_common.console import LiteralConsole, literal
from fsd_decoding.profile.fields import COMPILE
from fsd_decoding.profile.parts import OWN_ENGINE, ModelInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_WITH_FRONT = ("not-certified", "lossless", "too-slow", "front")


def print_report(profile: ThresholdProfile, path: Path | None = None, console: Console | None = None) -> None:
    """Prints the summary table with its notes, the verdict and the effort, and first what makes them doubtful.

    Where no single point was granted, the front of measured points follows the verdict.

    Args:
        path: of the saved profile; its usage is printed last, and where its page is. None: neither is printed.
    """
    console = console or LiteralConsole()
    front = front_table(profile, console.width) if profile.outcome in _WITH_FRONT else None
    effort = literal(effort_line(profile)) if profile.effort else None
    _print(console, _caution(profile), profile_table(profile), literal(notes(profile), "dim"),
           literal(verdict(profile)), front, effort)  # fmt: skip
    if path is not None:
        # Not wrapped: these lines are there to be copied.
        console.print(literal(usage(profile, path)), soft_wrap=True)
        if (page := path.with_name(PAGE)).exists():
            console.print(literal(f"\nreport, to open in a browser: {page}"), soft_wrap=True)


def _caution(profile: ThresholdProfile) -> RenderableType | None:
    """Returns what the digest does not show, if anything."""
    if profile.bound:
        return None
    why = profile.digest_doubt() or ""
    if profile.edited:
        why = "the profile was changed after the calibration that wrote it; what follows is what it says now"
    return literal(f"{unbound(profile)}. {why[0].upper()}{why[1:]}.", "bold")


def print_details(profile: ThresholdProfile, console: Console | None = None) -> None:
    """Prints the rest of the profile: curve, settings, models, certificate, costs and effort."""
    console = console or LiteralConsole()
    _print(console, *curve_tables(profile, console.width), *sheets(profile))


def usage(profile: ThresholdProfile, path: Path) -> str:
    """Returns a command that decodes with the profile, or serves it; of our own engine also Python lines."""
    if profile.engine_name != OWN_ENGINE:
        return f"fsd-profile {profile.engine_name} {shlex.quote(str(path))}    # prints the command that serves it"
    draft, imported = _in_python(profile.draft)
    models = f"{profile.target.id!r}, {draft}"
    compile = COMPILE[profile.compile or "off"]
    graphs = f", compile={compile!r}" if compile else ""
    own = f"PYTHONPATH={shlex.quote(os.pathsep.join(added_to_path()))} " if profile.addons and added_to_path() else ""
    command = f"{own}fsd-generate --profile {shlex.quote(str(path))} 'your question'\n\n"
    by_question = profile.prompt is not None and profile.prompt.form is not None
    decode = "generate" if profile.beams is None else "generate_beams"
    asked = (
        f"prompts = ThresholdProfile.load({str(path)!r}).prompts(decoder.tokenizer)  # as the calibration made them\n"
        f"results = decoder.{decode}([prompts.prompt('your question')], "
        "max_new_tokens=prompts.max_new_tokens, stop=prompts.stop)"
        if by_question
        else "# prompts as the task writes them, see fsd_calib.load_task: the profile is of no others\n"
        f"results = decoder.{decode}(['your prompt'])"
    )
    if profile.beams is not None and profile.beams.answer == "majority":
        asked += "\ntexts = [result.majority(agree).text for result in results]  # which is certified"
    return (
        f"{command if draft != _CORPUS and by_question and profile.beams is None else ''}"
        f"from fsd_calib import {imported}SpeculativeDecoder{', ThresholdProfile' if by_question else ''}\n"
        f"decoder = SpeculativeDecoder.from_pretrained({models}, profile={str(path)!r}{graphs})\n"
        f"{asked}"
    )


_CORPUS = "NGram(order, corpus=your_corpus)"  # a profile holds no corpus


def _in_python(draft: ModelInfo) -> tuple[str, str]:
    """Returns a draft as an argument of Python, and what is imported for it."""
    if draft.kind == "eagle":
        revision = "" if draft.revision is None else f", revision={draft.revision!r}"
        return f"Eagle({draft.id!r}{revision})", "Eagle, "
    if draft.kind == "ngram":
        return (_CORPUS if "corpus=" in draft.id else draft.id), "NGram, "
    if draft.kind == "addon":
        return f"drafter_named({draft.id!r})", "drafter_named, "
    return repr(draft.id), ""


def _print(console: Console, *renderables: RenderableType | None) -> None:
    """Prints each, followed by an empty line."""
    for renderable in renderables:
        if renderable is not None:
            console.print(renderable)
            console.print()
