"""`fsd-inspect`: decodes one prompt and shows where every token of the text comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsd_calib.cli.console import announce, leave, load_libraries, reply, reply_json
from fsd_calib.cli.drafters import BUNDLED, check_one, default_pair, given
from fsd_calib.cli.family import AllowEditedOption, Family, OptionGroup, ending
from fsd_calib.cli.options import (
    LoadingOptions,
    MaxNewTokensOption,
    RawOption,
    check_found,
    check_place,
    check_sources,
)
from fsd_calib.cli.output import OutputOptions
from fsd_calib.cli.prompting import prompt_of, prompts_as_given, prompts_of_profile, prompts_of_task
from fsd_calib.options.common import DECODING, MODELS, RECURRENT, RULES, SCORES, Device, Dtype, TopK, TopP
from fsd_calib.tasks.registry import completed_tasks, task_kind
from fsd_common.argument_checks import check_settings
from fsd_common.errors import UsageError
from fsd_common.option import Option
from fsd_decoding.model_options import Loading
from fsd_decoding.tree_shape import Chain, TreeShape, read_shape

if TYPE_CHECKING:
    from fsd_calib.inspection.inspected import InspectedText
    from fsd_decoding.decoder import SpeculativeDecoder
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

NAME = "fsd-inspect"
_OF_DRAFTS = ("threshold", "score", "draft_length", "tree")  # settings that the target alone has no use for
_EPILOG = ending(
    "Exit codes: 0 done · 2 bad input · 130 interrupted",
    'fsd inspect "Mia bakes 4 trays of 6 pies. How many pies does Mia have now?"',
    'fsd inspect --profile profile.json --html text.html "…"',
    'fsd inspect --profile profile.json --threshold 0.1 --threshold 0.4 "…"',
)

app = Family()


@dataclass(frozen=True)
class SettingOptions(OptionGroup):
    """How the text is decoded."""

    rule: Annotated[
        str | None,
        Option(
            f"Acceptance rule: target, {', '.join(RULES)}, or mine:Name. By default the profile's, or fsd-coupled.",
            DECODING,
            words=("target", *RULES),
        ),
    ] = None
    score: Annotated[
        str | None,
        Option(
            f"Score that the threshold bounds: {', '.join(SCORES)}, or mine:Name. By default the profile's, or js.",
            DECODING,
            words=SCORES,
            also="divergence",
        ),
    ] = None
    threshold: Annotated[
        list[float] | None,
        Option(
            "The threshold T; given twice, both texts are shown. By default the profile's, or 0.1.",
            DECODING,
            repeated=True,
        ),
    ] = None
    draft_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens drafted per round. By default the profile's, or 5.", rich_help_panel=DECODING),
    ] = None
    tree: Annotated[
        str | None,
        Option(
            "Draft trees: TOP_K,NODES, such as 2,6 for six nodes a round, each with up to two children; or chain. "
            "By default as the profile does, or chain.",
            DECODING,
        ),
    ] = None
    temperature: Annotated[float | None, Option("Sampling temperature; 0 is greedy decoding.", DECODING)] = None
    top_k: TopK = None
    top_p: TopP = None


@app.command(epilog=_EPILOG, everyday="profile threshold rule score draft_length target draft task html table")
def command(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt, in quotes.", show_default=False)],
    profile: Annotated[Path | None, Option("The profile.json that fsd-calibrate wrote, or its folder.")] = None,
    target: Annotated[
        str | None, Option("Hub id or local path. By default the profile's target, or the bundled one.", MODELS)
    ] = None,
    draft: Annotated[
        str | None, Option("Hub id or local path. By default the profile's draft, or the bundled one.", MODELS)
    ] = None,
    head: Annotated[
        str | None,
        Option("Draft with this EAGLE head of the target instead of a draft model: hub id or local path.", MODELS),
    ] = None,
    drafter: Annotated[
        str | None, Option("Draft with a drafter of your own instead: mine:Name (docs/extending.md).", MODELS)
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    max_new_tokens: MaxNewTokensOption = None,
    task: Annotated[
        str | None,
        Option(
            "Format the prompt as this task does. By default the profile's task; for the bundled pair arithmetic.",
            words=completed_tasks,
        ),
    ] = None,
    raw: RawOption = False,
    html: Annotated[
        Path | None, Option("Write a page to this file instead, with what is known of a token on hover.")
    ] = None,
    table: Annotated[
        bool,
        typer.Option("--table", help="Print a row for each token (source, D, T, what it displaced), and every tree."),
    ] = False,
    allow_edited: AllowEditedOption = False,
    *,
    loading: Annotated[Loading, LoadingOptions(of_profile=True)],
    setting: SettingOptions,
    output: OutputOptions,
) -> None:
    """Shows where every token of a text comes from: the exact rule, the threshold (fuzzy), a fallback or a bonus.

    Fuzzy tokens are those that a lossless rule would have rejected. Tokens are coloured on a terminal; without colours
    (NO_COLOR, a pipe) marks stand around them. Control characters in a text are shown as escapes. Models, task and
    settings are those of the bundled pair or of a profile; what is given as an option goes first.
    """
    progress = output.begin()
    thresholds = setting.threshold or []
    _check_shown(thresholds, html, table, output.as_json)
    _check_sources(profile, target, draft, head or drafter, task, raw)
    check_one(draft, head, drafter)
    check_found("drafter", "--drafter", [drafter], ())
    kind = None if task is None else task_kind(task)
    shape = _checked_shape(setting)
    check_place(device, dtype)
    check_sources({"--target": [target], "--draft": [draft], "--head": [head]})

    from fsd_decoding.profile.threshold_profile import ThresholdProfile

    followed = None if profile is None else ThresholdProfile.load(profile, allow_edited=allow_edited)
    if followed is not None:
        followed.require_single_texts(NAME)
    load_libraries(progress)

    from fsd_calib.certification.marking import Asked, mark
    from fsd_calib.inspection.inspected import inspect_text
    from fsd_calib.inspection.terminal import print_texts

    keywords = asdict(setting) | {
        "threshold": thresholds[0] if thresholds else None, "tree": shape,
        "device": device, "dtype": dtype,
        "model_kwargs": loading.target, "draft_model_kwargs": loading.draft, "allow_edited": allow_edited,
    }  # fmt: skip
    drafts = given(draft, head, loading.draft.revision, drafter)
    decoders = _decoders(followed, target, drafts, thresholds, keywords)
    for decoder in decoders:
        announce(decoder, quiet=output.quiet)
    tokenizer = decoders[0].tokenizer
    if followed is None and kind is None and target is None:
        kind = task_kind(BUNDLED)
    if kind is not None and not raw:
        made = prompts_of_task(kind, tokenizer)
    elif followed is not None:
        made = prompts_of_profile(followed, tokenizer, raw)
    else:
        made = prompts_as_given()
    asked, most = prompt_of(made, prompt), max_new_tokens or made.max_new_tokens
    if not all(decoder.setting.lossless for decoder in decoders):
        mark(decoders[0].target, [Asked(prompt)])
    texts = [inspect_text(decoder, asked, most, made.stop) for decoder in decoders]
    page = None if html is None else str(_write_page(html, texts, asked, decoders[0]))
    if output.as_json:
        reply_json(NAME, {"prompt": asked, "page": page, "texts": list(map(_for_programs, texts))})
    elif page is not None:
        reply(page)
    else:
        print_texts(texts, table=table)


def main() -> None:
    leave(app, NAME)


def _for_programs(text: InspectedText) -> dict[str, Any]:
    tokens = list(map(asdict, text.tokens))
    trees = [list(map(asdict, tree)) for tree in text.trees]
    return {
        "title": text.title, "setting": text.setting, "text": text.text, "rounds": text.rounds, "tokens": tokens,
        "trees": trees,
    }  # fmt: skip


def _check_shown(thresholds: Sequence[float], html: Path | None, table: bool, as_json: bool) -> None:
    if len(thresholds) > 2:
        raise UsageError(f"--threshold is given {len(thresholds)} times; give one, or two to compare")
    if html is not None and table:
        raise UsageError("--html and --table are both given; the page has the table too, leave --table out")
    if as_json and table:
        raise UsageError("--json and --table are both given; the JSON has all tokens too, leave --table out")


def _check_sources(
    profile: Path | None, target: str | None, draft: str | None, head: str | None, task: str | None, raw: bool
) -> None:
    if raw and task is not None:
        raise UsageError("--raw and --task are both given; --raw formats no prompt, leave one of them out")
    if profile is None and head is None and (target is None) != (draft is None) and draft != RECURRENT:
        missing = "--draft" if draft is None else "--target"
        raise UsageError(f"{missing} is missing; give both models, or a --profile, or neither for the bundled pair")


def _checked_shape(setting: SettingOptions) -> TreeShape | Chain | None:
    """Returns the shape of trees; None: none is given. UsageError: a setting cannot be."""
    check_found("rule", "--rule", [setting.rule], ("target", *RULES))
    check_found("score", "--score", [setting.score], SCORES)
    check_settings([], setting.threshold or [])
    ignored = [name for name in _OF_DRAFTS if getattr(setting, name) is not None]
    if setting.rule == "target" and ignored:
        option = f"--{ignored[0].replace('_', '-')}"
        raise UsageError(f"--rule 'target' drafts nothing; leave {option} out, or give another rule")
    return None if setting.tree is None else read_shape(setting.tree)


def _decoders(
    followed: ThresholdProfile | None,
    target: str | None,
    draft: Any,
    thresholds: Sequence[float],
    keywords: dict[str, Any],
) -> list[SpeculativeDecoder]:
    """A decoder for each threshold, or one with the profile's; they share their models. draft: None: the usual one."""
    from fsd_decoding.decoder import SpeculativeDecoder
    from fsd_decoding.profile.drafts import draft_of
    from fsd_decoding.rules import rule_named

    rule = keywords["rule"]
    if thresholds and rule is not None and not rule_named(rule).fuzzy:
        raise UsageError(f"--rule {rule!r} has no threshold; leave --threshold out, or give another rule")
    own: tuple[str, Any] = default_pair(BUNDLED)
    if followed is not None:
        own = followed.target.id, draft_of(followed.draft)
        if thresholds:  # the rule too, as an uncertified profile would run a lossless one
            keywords["rule"] = rule or followed.rule
    first = SpeculativeDecoder.from_pretrained(target or own[0], draft or own[1], profile=followed, **keywords)
    return [first, *(first.with_config(threshold=threshold) for threshold in thresholds[1:])]


def _write_page(path: Path, texts: Sequence[InspectedText], prompt: str, decoder: SpeculativeDecoder) -> Path:
    from fsd_calib.inspection.html import texts_page
    from fsd_common.pages.page import write
    from fsd_decoding.profile.drafts import kind_of
    from fsd_decoding.profile.parts import IN_WORDS

    kind = kind_of(decoder.draft) or "model"
    sources = decoder.target.name_or_path, decoder.draft.name_or_path if kind == "model" else decoder.draft.name
    target, draft = ("/".join(Path(source).parts[-2:]) for source in sources)
    role = "draft" if kind == "model" else IN_WORDS[kind]
    models = f"{target} with {role} {draft} on {decoder.device} in {decoder.dtype}".replace("torch.", "")
    return write(path, texts_page(texts, prompt, models).encode())
