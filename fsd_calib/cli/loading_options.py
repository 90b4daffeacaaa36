"""The options of how models are loaded, which a command takes as one argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from fsd_calib.cli.options import MODELS
from fsd_common.errors import UsageError
from fsd_common.strict_json import parse
from fsd_decoding.model_options import ALIASES, ATTENTION, SCHEMES, UNQUANTISED, Loading

_LIKE_TARGET = "The same for the draft, where it differs."
_HELP = {
    "revision": (
        "Branch, tag or commit of the target on the hub.",
        "Branch, tag or commit of the draft on the hub.",
    ),
    "device_map": (
        "Spread both models over devices, instead of --device: auto, another strategy of accelerate's, a device, or a "
        "JSON object of modules and devices.",
        _LIKE_TARGET,
    ),
    "quantization": (
        f"Quantise both models as they are loaded: {', '.join(SCHEMES)}. Checkpoints that are quantised (GPTQ, AWQ, …) "
        "need no option.",
        f"{_LIKE_TARGET} {UNQUANTISED} leaves it as it is.",
    ),
    "attn": (f"Kind of attention in both models: {', '.join(ATTENTION)}.", _LIKE_TARGET),
    "model_kwargs": (
        "Further keywords of transformers' from_pretrained for both models, as a JSON object.",
        "The same for the draft, added to those of both.",
    ),
}  # by the option's name; of the target or of both models, and of the draft
_DRAFT = "draft_"
_MAIN_BRANCH = "By default its main branch."
_RECORDED = "By default each as the profile records it."
_RECORDED_COMMIT = "By default the commit that the profile records, or the main branch if the model is another."


def loads_models(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command these options, in place of its parameter `loading`."""
    return _with_options(command, {"revision": _MAIN_BRANCH, "draft_revision": _MAIN_BRANCH})


def loads_models_of_profile(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command that follows a profile the same options: what they do not say is as the profile records it."""
    commits = {"revision": _RECORDED_COMMIT, "draft_revision": _RECORDED_COMMIT}
    return _with_options(command, commits | {"quantization": _RECORDED, "attn": _RECORDED})


def _with_options(command: Callable[..., None], defaults: Mapping[str, str]) -> Callable[..., None]:
    options: dict[str, str] = {}
    for name, (both, draft) in _HELP.items():
        options |= {name: both, f"{_DRAFT}{name}": draft}
    options |= {name: f"{options[name]} {default}" for name, default in defaults.items()}

    @wraps(command)
    def with_options(**given: Any) -> None:
        values = {name: given.pop(name) for name in options}
        command(**given, loading=Loading.of(_keywords("", values), _keywords(_DRAFT, values)))

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        own = [_option(name, text) for name, text in options.items()] if parameter.name == "loading" else [parameter]
        parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_options


def _option(name: str, text: str) -> inspect.Parameter:
    kind = Annotated[str | None, typer.Option(help=text, rich_help_panel=MODELS)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _keywords(role: str, values: Mapping[str, str | None]) -> dict[str, Any]:
    """The keywords of `from_pretrained` by the options of one role. UsageError: one is given twice."""
    given: dict[str, Any] = {name: value for name in _HELP if (value := values[f"{role}{name}"]) is not None}
    if given.get("device_map", "").startswith("{"):
        given["device_map"] = json_object(_flag(role, "device_map"), given["device_map"])
    flag = _flag(role, "model_kwargs")
    others = json_object(flag, given.pop("model_kwargs", "{}"))
    for name in others:
        if ALIASES.get(name, name) in given:
            same = _flag(role, ALIASES.get(name, name))
            raise UsageError(f"{flag} sets {name!r}, and so does {same}; leave one of them out")
    return given | others


def json_object(flag: str, text: str, example: str = '{"trust_remote_code": true}') -> dict[str, Any]:
    """Returns the object that an option holds as JSON. UsageError: it holds none."""
    try:
        content = parse(text)
    except ValueError as error:
        raise UsageError(
            f"{flag} is {text!r:.80}, which is not JSON: {error}; give an object such as '{example}'"
        ) from error
    if not isinstance(content, dict):
        raise UsageError(f"{flag} is {text!r:.80}; it must be a JSON object, such as '{example}'")
    return content


def _flag(role: str, name: str) -> str:
    return f"--{role}{name}".replace("_", "-")
