"""Files in YAML that users write, checked against a model of what they may say. Errors name file, key and rule."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from fsd_common.errors import UsageError
from fsd_common.files import read_regular


class Strict(BaseModel):
    """A model without keys that it does not name, of types as they are written: `yes` and "8" are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


_SHOWN = 5  # faults of one file
_LARGEST = 1 << 20  # bytes of a file
_MOST = 100_000  # values in one, those that it repeats by aliases counted each time
_DIGITS = 18
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_Model = TypeVar("_Model", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """Refuses what YAML reads as something else than people mean: a key that is written twice, of which it would take
    the last, whole numbers in octal or by the minute (010 is 8, 1:30 is 90), and half characters."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _values(node, {}) > _MOST:
            raise yaml.MarkedYAMLError(problem=f"it has more than {_MOST:,} values; give a smaller file")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for at, _ in node.value:
            key = self.construct_object(at, deep=True)
            if not isinstance(key, Hashable):
                raise _marked(at, f"{key!r:.40} cannot be a key")
            if key in seen:
                raise _marked(at, f"key {key!r} is written twice")
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if not _WHOLE.fullmatch(node.value) or len(node.value) > _DIGITS:
            raise _marked(node, f"{node.value:.40} is no plain whole number of at most {_DIGITS} digits; quote a text")
        return int(node.value)

    def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
        text = str(self.construct_scalar(node))
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise _marked(node, f"{text!a:.40} holds half a character (a lone surrogate)")
        return text


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.construct_yaml_str)


def _marked(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _values(node: yaml.Node, counted: dict[yaml.Node, float]) -> float:
    """Returns how many values there are in a node, with those of aliases; infinity: it holds itself."""
    if node not in counted:
        counted[node] = math.inf
        inner: Iterable[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            inner = chain(*node.value)
        counted[node] = 1 + sum(_values(each, counted) for each in inner)
    return counted[node]


def read_yaml(path: Path, model: type[_Model], what: str, described: str) -> _Model:
    """Returns what a file says; see `checked_yaml`. UsageError: it cannot be read, too."""
    return checked_yaml(read_text(path, what), path, model, what, described)


def read_text(path: Path, what: str) -> str:
    """Returns the content of a file in YAML. UsageError: it cannot be read."""
    try:
        return read_regular(path, _LARGEST).decode().replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{what} {path}: cannot be read ({reason}); give a file in YAML, as UTF-8") from None


def checked_yaml(text: str, path: Path, model: type[_Model], what: str, described: str) -> _Model:
    """Returns what the content of a file says.

    Args:
        path: The file, for messages.
        what: The file, in words: "task file".
        described: The page that says what it may hold.

    Raises:
        UsageError: It is no YAML, or breaks a rule of the model.
    """
    try:
        content = yaml.load(text, _Loader)
    except RecursionError:
        raise UsageError(f"{what} {path}: it is nested too deeply; see {described} for what it must say") from None
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{what} {path}: cannot be read ({error}); give a file in YAML, as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{what} {path}{where}: not YAML ({problem}); repair that line") from None
    if not isinstance(content, Mapping):
        raise UsageError(f"{what} {path}: it holds no keys; see {described} for what it must say")
    try:
        return model.model_validate_json(json.dumps(content, default=str))  # in which a list may be a tuple
    except ValidationError as error:
        broken = list(_broken_rules(error, model))
        more = [f"and {len(broken) - _SHOWN} more; see {described}"] if len(broken) > _SHOWN else []
        raise UsageError(f"{what} {path}: {'; '.join([*broken[:_SHOWN], *more])}") from None
    except TypeError as error:
        raise UsageError(f"{what} {path}: {error}; see {described} for what it must say") from None


def _broken_rules(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    for each in error.errors():
        key = ".".join(str(part) for part in each["loc"])
        rule = each["msg"].removeprefix("Value error, ")
        match each["type"]:
            case "extra_forbidden":
                known = ", ".join(_keys(model, each["loc"][:-1]))
                yield f"key {key!r} is not known; the keys there are {known}"
            case "missing":
                yield f"key {key!r} is missing"
            case _ if key:
                given = repr(each["input"])
                yield f"key {key!r} is {given if len(given) < 60 else given[:60] + '…'}; {rule[:1].lower()}{rule[1:]}"
            case _:
                yield rule


def _keys(model: type[BaseModel], at: tuple[int | str, ...]) -> list[str]:
    """The keys at a place, which is a path of keys and, in lists, of numbers."""
    for name in at:
        if isinstance(name, str) and name in model.model_fields:
            model = _model_in(model.model_fields[name].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The first model within an annotation, such as that of `tuple[Message, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
