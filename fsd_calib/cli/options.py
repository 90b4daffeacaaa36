"""Options that several commands have, and what they say before torch is loaded: names, places, files and folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from inspect import Parameter
from pathlib import Path, PurePath
from typing import Annotated, Any

import typer

from fsd_calib.cli.family import Given
from fsd_calib.options.common import DECODING, DTYPES, MODELS, Drawing
from fsd_calib.tasks.asking import MAX_NEW_TOKENS, PROBLEMS
from fsd_calib.tasks.base import Kind
from fsd_calib.tasks.rows import QUICK, check_data_file
from fsd_common.addons import AddonKind, unless_known
from fsd_common.errors import UsageError
from fsd_common.option import Option, json_object
from fsd_decoding.hub import check_source
from fsd_decoding.meanings import family_of
from fsd_decoding.model_options import ALIASES, ATTENTION, SCHEMES, UNQUANTISED, Loading

_DEVICES = (
    "cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "maia", "ipu", "hip", "ve", "fpga", "vulkan", "meta", "lazy",
    "mkldnn", "opengl", "opencl", "ideep", "privateuseone",
)  # fmt: skip
_BACKENDS = "torch.backends"  # entry points of packages whose devices have names that torch itself does not know


MaxNewTokensOption = Annotated[int | None, typer.Option(min=1, help=MAX_NEW_TOKENS)]
RawOption = Annotated[bool, typer.Option("--raw", help="Pass prompts as given, without the task's prompt format.")]
SubjectsOption = Annotated[str | None, Option("Of mmlu: use these subjects alone, separated by commas.", PROBLEMS)]

# The settings of the evaluation code that was published with the paper, which also ends answers at 512 tokens, as the
# benchmarks here do.
PRESETS = {"fsd-paper": {"temperature": 0.6, "top_k": 50, "top_p": 0.9}}
PresetOption = Annotated[
    str | None,
    Option(
        "Sample as a published evaluation did. fsd-paper: temperature 0.6, top-k 50, top-p 0.9.",
        DECODING,
        words=PRESETS,
    ),
]


def with_preset(given: Given, preset: str | None) -> Given:
    """Returns the options with the settings of a preset. UsageError: it is unknown, or an option contradicts it."""
    if preset is None:
        return given
    if preset not in PRESETS:
        raise UsageError(f"--preset is {preset!r}; the presets are {', '.join(PRESETS)}")
    if contradicting := next((name for name in Drawing.model_fields if name in given), None):
        raise UsageError(
            f"--preset {preset} and --{contradicting.replace('_', '-')} contradict each other; leave one of them out"
        )
    return given | dict.fromkeys(Drawing.model_fields) | PRESETS[preset]


def named_task(task: str, subjects: str | None) -> str:
    """Returns the name of a task with the subjects of --subjects in it; UsageError: it takes none."""
    if subjects is None:
        return task
    if task != "mmlu":
        raise UsageError(f"--subjects is {subjects!r}, and task {task} has none of its own to choose; use --task mmlu")
    return f"{task}:{subjects}"


def folder_name(task: str) -> str:
    """Returns a task's name for a folder: that of a description without its path, others without colons and commas."""
    base = PurePath(task).stem if task.endswith((".yaml", ".yml")) else task
    return re.sub(r"[^\w.=-]+", "-", base).strip("-")


# How models are loaded


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


class LoadingOptions:
    """The options of how models are loaded, which a command takes as a `Loading`.

    Args:
        of_profile: whether what they do not say is as a profile records it.
    """

    def __init__(self, of_profile: bool = False) -> None:
        revision = _RECORDED_COMMIT if of_profile else _MAIN_BRANCH
        recorded = {"quantization": _RECORDED, "attn": _RECORDED} if of_profile else {}
        defaults = {"revision": revision, f"{_DRAFT}revision": revision} | recorded
        texts = {
            f"{role}{name}": text for name, both in _HELP.items() for role, text in zip(("", _DRAFT), both, strict=True)
        }
        self._help = {name: f"{text} {defaults.get(name, '')}".rstrip() for name, text in texts.items()}

    def parameters(self) -> Iterator[Parameter]:
        """Yields what typer makes options of."""
        for name, text in self._help.items():
            kind = Annotated[str | None, typer.Option(help=text, rich_help_panel=MODELS)]
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)

    def made(self, values: dict[str, Any], given: set[str]) -> Loading:
        """Returns what the command is given. UsageError: an option cannot be read."""
        return Loading.of(_keywords("", values), _keywords(_DRAFT, values))


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


def _flag(role: str, name: str) -> str:
    return f"--{role}{name}".replace("_", "-")


# Checks of what the libraries are asked later, as far as it shows without them


def check_words(*options: tuple[str, Iterable[str | None] | None, Sequence[str]]) -> None:
    """Raises UsageError where an option has a word that it does not take.

    Args:
        options: each an option, its words (None: not given), and those that it takes.
    """
    for option, words, known in options:
        if unknown := next((word for word in words or () if word is not None and word not in known), None):
            raise UsageError(f"{option} is {unknown!r}; it must be one of {', '.join(known)}")


def check_found(kind: AddonKind, option: str, names: Iterable[str | None] | None, own: Sequence[str]) -> None:
    """Raises UsageError where an option names what is neither this package's own nor an add-on.

    Args:
        names: None: not given.
    """
    for name in names or ():
        if name is not None and (rule := unless_known(kind, family_of(name), own)):
            raise UsageError(f"{option} is {name!r}; {rule}")


def check_place(device: str | None, dtype: str | None) -> None:
    """Raises UsageError where there is no such dtype, or no device can have this name."""
    check_words(("--dtype", [dtype], (*DTYPES, "float64")))
    if device is None:
        return
    kind, colon, number = device.partition(":")
    known = kind in _DEVICES or (kind.isidentifier() and entry_points(group=_BACKENDS))
    if not known or (colon and not number.isdecimal()):
        raise UsageError(
            f"--device is {device!r}; it must be cpu, cuda or another kind of device, maybe with a number, as in cuda:0"
        )


def check_sources(models: Mapping[str, Sequence[str | None]], configured: bool = True) -> None:
    """Raises UsageError where what names a model is neither a folder of one nor an id.

    Args:
        models: by their options, such as "--target".
        configured: whether a folder must hold a model's configuration; of a tokenizer it need not.
    """
    for option, sources in models.items():
        for source in sources:
            if source is not None:
                check_source(option, source, configured=configured)


def check_data(kind: Kind, data: Path | None) -> None:
    """Raises UsageError where a task cannot read its problems from a file. Of a large one the beginning is checked.

    Args:
        data: of --data; None: the file that the task itself names, if it does.
    """
    data = data or getattr(kind, "data", None)
    if data is None:
        return
    read = getattr(kind, "read", None)  # tasks of other packages need not have it
    if read is not None and (data.is_dir() or (data.is_file() and data.stat().st_size <= QUICK)):
        read(0, None, data)
    else:
        check_data_file(data)
