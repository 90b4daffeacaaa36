"""`fsd-generate`: completes prompts with the settings of a profile, and reports the speed on stderr."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsd_calib.cli.console import announce, leave, load_libraries, reply, reply_json, say
from fsd_calib.cli.drafters import check_one, given
from fsd_calib.cli.family import AllowEditedOption, Family, ending
from fsd_calib.cli.options import (
    LoadingOptions,
    MaxNewTokensOption,
    RawOption,
    check_place,
    check_sources,
)
from fsd_calib.cli.output import OutputOptions
from fsd_calib.cli.prompting import gathered, prompt_of, prompts_of_profile
from fsd_calib.options.common import MODELS, Device, Dtype
from fsd_common.argument_checks import check_settings
from fsd_common.option import Option
from fsd_decoding.model_options import Loading
from fsd_decoding.tree_shape import read_shape

if TYPE_CHECKING:
    from fsd_decoding.config import DecodingKeywords
    from fsd_decoding.engine.result import Result

NAME = "fsd-generate"
_EPILOG = ending(
    "Exit codes: 0 done · 2 bad input · 130 interrupted",
    'fsd generate --profile fsd-profile/arithmetic "Mia bakes 4 trays of 6 pies."',
    "fsd generate --profile profile.json --file prompts.jsonl --json",
    "fsd generate --profile profile.json --threshold 0.1 - < prompts.txt",
)

app = Family()


@app.command(epilog=_EPILOG, everyday="profile file target draft device dtype max_new_tokens threshold raw as_json")
def command(
    profile: Annotated[Path, Option("The profile.json that fsd-calibrate wrote, or its folder.")],
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            help="One or more prompts, each in quotes; - reads them from standard input, one a line.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        Option(
            "Also complete the prompts in this file: one a line, or in a .jsonl file a string or an object with a "
            "prompt (or question) a line."
        ),
    ] = None,
    target: Annotated[str | None, Option("Hub id or local path. By default the profile's target.", MODELS)] = None,
    draft: Annotated[str | None, Option("Hub id or local path. By default the profile's draft.", MODELS)] = None,
    head: Annotated[
        str | None, Option("The EAGLE head of the profile, where it lies elsewhere: hub id or local path.", MODELS)
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    max_new_tokens: MaxNewTokensOption = None,
    threshold: Annotated[
        float | None, Option("Use this threshold instead of the profile's, of which the certificate says nothing.")
    ] = None,
    tree: Annotated[
        str | None,
        Option(
            "Draft trees of this shape (TOP_K,NODES, such as 2,6), or chains (chain), instead of what the profile "
            "drafts; its certificate says nothing of them."
        ),
    ] = None,
    raw: RawOption = False,
    allow_edited: AllowEditedOption = False,
    *,
    loading: Annotated[Loading, LoadingOptions(of_profile=True)],
    output: OutputOptions,
) -> None:
    """Completes prompts with the models, threshold and settings of a profile.

    Prompts are made as the calibration made them, because the certificate covers only such. Texts are printed to stdout
    in the order of the prompts, separated by an empty line. Two lines go to stderr: whether what is followed is
    lossless or LOSSY, and the speed. On a terminal, control characters in a text are shown as escapes; a file or a pipe
    gets the texts exactly.
    """
    check_one(draft, head)
    progress = output.begin()
    wanted = gathered(prompts or [], file)
    check_place(device, dtype)
    check_settings([], [] if threshold is None else [threshold])
    shape = None if tree is None else read_shape(tree)
    check_sources({"--target": [target], "--draft": [draft], "--head": [head]})

    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    followed = ThresholdProfile.load(profile, allow_edited=allow_edited)
    followed.require_single_texts(NAME)
    load_libraries(progress)

    from fsd_calib.certification.marking import Asked, mark
    from fsd_decoding.decoder import SpeculativeDecoder
    from fsd_decoding.profile.drafts import draft_of

    # The rule too, as an uncertified profile would run a lossless one.
    settings: DecodingKeywords = {} if threshold is None else {"rule": followed.rule, "threshold": threshold}
    if shape is not None:
        settings["tree"] = shape
    drafts = given(draft, head, loading.draft.revision) or draft_of(followed.draft)
    decoder = SpeculativeDecoder.from_pretrained(
        target or followed.target.id, drafts, profile=followed, device=device, dtype=dtype,
        model_kwargs=loading.target, draft_model_kwargs=loading.draft, allow_edited=allow_edited,
        progress=progress, **settings,
    )  # fmt: skip
    announce(decoder, quiet=output.quiet)
    made = prompts_of_profile(followed, decoder.tokenizer, raw)
    if not decoder.setting.lossless:
        mark(decoder.target, [Asked.of_row(row, text) for text, row in wanted])
    started = time.perf_counter()
    asked, most = [prompt_of(made, prompt) for prompt, _ in wanted], max_new_tokens or made.max_new_tokens
    # Within another step, so that logs have no line for each of its ends: most runs take seconds.
    with progress.step("generating", 0), progress.step("decoding", len(asked)) as advance:
        results = decoder.generate(asked, most, stop=made.stop, on_finish=lambda place, result: advance(1))
    seconds = time.perf_counter() - started
    if output.as_json:
        given_texts = [prompt for prompt, _ in wanted]
        reply_json(NAME, {"seconds": seconds, "texts": list(map(_for_programs, given_texts, asked, results))})
    else:
        reply("\n\n".join(result.text for result in results))
    if not output.quiet:
        say(summary(results, seconds))


def main() -> None:
    leave(app, NAME)


def _for_programs(prompt: str, rendered: str, result: Result) -> dict[str, Any]:
    counts = ("emitted", "rounds", "drafted", "accepted", "finish_reason")
    shown = {"prompt": prompt, "rendered": rendered, "text": result.text}
    return shown | {name: getattr(result, name) for name in counts}


def summary(results: Sequence[Result], seconds: float) -> str:
    """Returns one line about speed. As in a profile, all emitted tokens count, including the end of text."""
    tokens = sum(result.emitted for result in results)
    rounds = sum(result.rounds for result in results)
    drafted = sum(result.drafted for result in results)
    accepted = sum(result.accepted for result in results) / max(drafted, 1)
    return (
        f"{tokens} tokens in {rounds} rounds, {tokens / rounds:.2f} per round; "
        f"{accepted:.0%} of {drafted} drafted tokens accepted; {tokens / seconds:.1f} tokens/s"
    )
