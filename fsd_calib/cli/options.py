"""Options shared by several commands, alone and in groups, and the default pair of models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fsd_calib.cli.choices import DRAFTERS, DTYPES
from fsd_calib.cli.completion import one_of, several_of
from fsd_calib.cli.groups import OptionGroup
from fsd_common.errors import UsageError

MOST_NEW_TOKENS = 256
"""The limit on new tokens where no task sets one."""
MODELS, DATA, DECODING = "Models", "Problems and results", "Decoding"
BUNDLED = "arithmetic"
"""The task that a pair of models is bundled for."""
_LARGE_PAIR = ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct")

TargetOption = Annotated[
    str | None,
    typer.Option(
        help=f"The large model: hub id or local path. By default the bundled model for arithmetic, else "
        f"{_LARGE_PAIR[0]}.",
        rich_help_panel=MODELS,
    ),
]
_DRAFT = (
    f"The small model, with the target's tokenizer. Where no target is given, by default the bundled model for "
    f"arithmetic, else {_LARGE_PAIR[1]}."
)
DraftOption = Annotated[str | None, typer.Option(help=_DRAFT, rich_help_panel=MODELS)]
DraftsOption = Annotated[
    list[str] | None,
    typer.Option(
        help=f"{_DRAFT} Several (--draft A --draft B) are compared in one search and certified in one attempt; the "
        "profile names the chosen one.",
        rich_help_panel=MODELS,
        metavar="<str>",
    ),
]
HeadsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--head",
        help="An EAGLE head of the target, such as fsd-train-eagle makes: hub id or local path. It drafts in place of "
        "a draft model; beside --draft, and where several are given, all are compared.",
        rich_help_panel=MODELS,
        metavar="<str>",
    ),
]
DrafterOption = Annotated[
    str | None,
    typer.Option(
        help="What drafts: model (--draft), eagle (--head), ngram, which goes by the text itself and needs no model, "
        "several of these, separated by commas, or auto: all that there are, as chains and as trees. By default what "
        "--draft and --head say.",
        rich_help_panel=MODELS,
        autocompletion=several_of(DRAFTERS),
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option(help="cuda, cpu, … By default a GPU if there is one.", rich_help_panel=MODELS)
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16 or float16. By default the models' own dtype.",
        rich_help_panel=MODELS,
        autocompletion=one_of(DTYPES),
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        help="Processes that decode, each with models of its own; 1 decodes in this one. By default one for each CPU "
        "core or GPU, as far as memory and problems suffice, once that is worth starting them.",
        rich_help_panel=DECODING,
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        help="Run the workers on the Ray cluster at this address (auto: the one this machine is in; local: one that "
        "is started here). Needs the extra 'ray'.",
        rich_help_panel=DECODING,
    ),
]
MAX_NEW_TOKENS = f"Limit on new tokens per text. By default the task's, or {MOST_NEW_TOKENS} without a task."
MaxNewTokensOption = Annotated[int | None, typer.Option(min=1, help=MAX_NEW_TOKENS)]
RawOption = Annotated[bool, typer.Option("--raw", help="Pass prompts as given, without the task's prompt format.")]
AllowEditedOption = Annotated[
    bool,
    typer.Option(
        "--allow-edited", help="Follow a profile that was changed after its calibration, without a certificate."
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(help="Read problems from this file instead of the task's own source.", rich_help_panel=DATA),
]
LimitOption = Annotated[int | None, typer.Option(help="Use at most this many problems.", rich_help_panel=DATA)]
SeedOption = Annotated[
    int, typer.Option(help="Seed for generating or picking problems, and for sampling.", rich_help_panel=DATA)
]
TemperatureOption = Annotated[
    float, typer.Option(help="Sampling temperature; 0 is greedy decoding.", rich_help_panel=DECODING)
]
TopKOption = Annotated[
    int | None, typer.Option(help="Sample from this many of the likeliest tokens.", rich_help_panel=DECODING)
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        help="Sample from the likeliest tokens that together have this probability.", rich_help_panel=DECODING
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        help="Sample from the tokens that have at least this share of the likeliest one's probability.",
        rich_help_panel=DECODING,
    ),
]


@dataclass(frozen=True)
class PairOptions(OptionGroup):
    """A target and a draft, and where they run."""

    target: TargetOption = None
    draft: DraftOption = None
    device: DeviceOption = None
    dtype: DtypeOption = None


@dataclass(frozen=True)
class DraftsOptions(OptionGroup):
    """A target and one draft or more, and where they run."""

    target: TargetOption = None
    draft: DraftsOption = None
    head: HeadsOption = None
    drafter: DrafterOption = None
    device: DeviceOption = None
    dtype: DtypeOption = None


@dataclass(frozen=True)
class ProcessOptions(OptionGroup):
    """The processes that decode."""

    workers: WorkersOption = None
    ray: RayOption = None


def _print_version(asked: bool) -> None:
    if asked:
        from fsd_calib import __version__

        print(f"fsd-calib {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


def options_given(context: typer.Context) -> set[str]:
    """Returns the parameters whose options are on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def given_or_default(task: str, target: str | None, draft: str | None) -> tuple[str, str]:
    """Target and draft: those given, or the task's default pair. UsageError: one of the two is missing."""
    if target is not None and draft is not None:
        return target, draft
    pair = default_pair(task)
    if target is None and draft is None:
        return pair
    named, given, missing = ("--target", target, "--draft") if draft is None else ("--draft", draft, "--target")
    raise UsageError(
        f"{named} is {given!r}, and {missing} is missing; give both, or neither for the default pair of task {task}, "
        f"{pair[0]} with {pair[1]}"
    )


def default_pair(task: str) -> tuple[str, str]:
    """Target and draft where neither is given."""
    if task != BUNDLED:
        return _LARGE_PAIR
    from fsd_data import pair_paths

    target, draft = pair_paths()
    return str(target), str(draft)


def several(option: str, text: str) -> tuple[str, ...]:
    """The names in a comma-separated list, without repeats."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise UsageError(f"{option} is {text!r}; it must be a name, or several with commas between them")
    return names


_LONGEST = 1000  # more is a typing error


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The numbers in "5", "2-8", "4,6,8" or a mixture, sorted; all at least 1."""
    found: set[int] = set()
    for piece in text.split(","):
        low, dash, high = (end.strip() for end in piece.partition("-"))
        ends = (low, high if dash else low)
        if not all(end.isdecimal() and 1 <= int(end) <= _LONGEST for end in ends) or int(ends[0]) > int(ends[1]):
            raise UsageError(
                f"{option} is {text!r}; it must be a number from 1 to {_LONGEST}, or a choice such as 2-8 or 4,6,8"
            )
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(found))
