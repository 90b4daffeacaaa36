"""Files in YAML that users write, checked against a model of what they may say. Errors name file, key and rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from fsd_decoding.errors import UsageError


class Strict(BaseModel):
    """A model without keys that it does not name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_SHOWN = 5  # faults of one file
_Model = TypeVar("_Model", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} is written twice", problem_mark=node.value[place][0].start_mark
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, model: type[_Model], what: str, described: str) -> _Model:
    """Returns what a file says; see `checked_yaml`. UsageError: it cannot be read, too."""
    return checked_yaml(read_text(path, what), path, model, what, described)


def read_text(path: Path, what: str) -> str:
    """Returns the content of a file in YAML. UsageError: it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
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
    except ValueError as error:
        raise UsageError(f"{what} {path}: cannot be read ({error}); give a file in YAML, as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{what} {path}{where}: not YAML ({problem}); repair that line") from None
    if not isinstance(content, Mapping):
        raise UsageError(f"{what} {path}: it holds no keys; see {described} for what it must say")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        broken = list(_broken_rules(error, model))
        more = [f"and {len(broken) - _SHOWN} more; see {described}"] if len(broken) > _SHOWN else []
        raise UsageError(f"{what} {path}: {'; '.join([*broken[:_SHOWN], *more])}") from None


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
