"""A task and its models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, SkipValidation

from fsd_calib.options.common import AUTO, DRAFT, GOAL, MODELS, TASK_NAMES, PathLike, Target, known_name
from fsd_calib.options.server import ServerDescription
from fsd_calib.tasks.registry import completed_tasks
from fsd_common.option import Option, json_object, several
from fsd_common.settings import Settings, Several

DRAFTERS = ("model", "eagle", "ngram", AUTO)
"""What --drafter takes, beside drafters of one's own."""


def own_drafters(named: Iterable[str]) -> list[str]:
    """Returns those of --drafter that are not of this package."""
    return [name for name in named if name not in DRAFTERS]


class Job(Settings):
    """A task and its models, as commands and files name them.

    Attributes:
        certify: the profile whose setting is certified; nothing is searched then.
    """

    task: Annotated[
        str | None,
        Option(f"Task to calibrate on (required without --certify): {TASK_NAMES}.", GOAL, words=completed_tasks),
    ] = None
    target: Target = None
    draft: Annotated[
        Several[str] | None,
        Option(
            f"{DRAFT} Several (--draft A --draft B) are compared in one search and certified in one attempt; the "
            "profile names the chosen one.",
            MODELS,
            repeated=True,
        ),
    ] = None
    head: Annotated[
        Several[str] | None,
        Option(
            "An EAGLE head of the target, such as fsd-train-eagle makes: hub id or local path. It drafts in place of "
            "a draft model; beside --draft, and where several are given, all are compared.",
            MODELS,
            repeated=True,
        ),
    ] = None
    speculative_config: Annotated[
        Mapping[str, Any] | None,
        Option(
            "What drafts in vLLM in place of --draft, as JSON of its --speculative-config: a head of the target, such "
            'as \'{"method": "eagle3", "model": "HEAD"}\', or mtp or dflash. With --engine vllm.',
            MODELS,
            read=lambda option, text: json_object(option, text, '{"method": "eagle3", "model": "HEAD"}'),
        ),
    ] = None
    server: Annotated[
        ServerDescription | None,
        SkipValidation,
        Option("The server of engine server, see docs/servers.md.", command=False, written=ServerDescription),
    ] = None
    drafter: Annotated[
        Several[Annotated[str, AfterValidator(lambda name: known_name("drafter", name, DRAFTERS))]] | None,
        Option(
            "What drafts: model (--draft), eagle (--head), ngram, which goes by the text itself and needs no model, "
            "mine:Name, a drafter of your own (docs/extending.md), several of these, separated by commas, or auto: all "
            "that this package has, as chains and as trees. By default what --draft and --head say.",
            MODELS,
            words=DRAFTERS,
            read=several,
        ),
    ] = None
    certify: Annotated[
        PathLike | None,
        Option(
            "Certify the setting of this profile, with its task, models and sampling: nothing is searched. For a "
            "setting that was found elsewhere, with another engine, or (--engine fsd-calib,vllm) for both. Counts as "
            "an attempt like any other.",
            GOAL,
            written=str,
        ),
    ] = None
