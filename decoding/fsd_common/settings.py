"""Settings that users give: models whose fields say once what the command line, files and messages need of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypeAlias, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.option import of_annotation, options_in, other_names

_SHOWN = 60  # characters of a value
_One = TypeVar("_One")


class Rule(NamedTuple):
    """What a message says of all values that a type refuses, in place of pydantic's words."""

    text: str


Count = Annotated[int, Field(ge=1), Rule("it must be a whole number of at least 1")]


def listed(value: Any) -> Any:
    """Returns several values as a tuple, and one as a tuple of it."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else (value,)


if TYPE_CHECKING:
    Several: TypeAlias = "_One | Iterable[_One]"
else:
    Several = Annotated[tuple[_One, ...], BeforeValidator(listed), Field(min_length=1), Rule("give one or more")]
"""One value, or several; as a field always a tuple."""


class Settings(BaseModel):
    """Settings that a user gives by name, checked.

    Raises:
        UsageError: a value breaks a rule. It is named as the user gave it, see `named`.
        TypeError: a name is unknown, as for a function of Python.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**{name: _of_python(value) for name, value in self._by_field(given).items()})
        except ValidationError as error:
            raise _complaint(type(self), error) from None

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        fields = [f"    {name}: {option.help}" for name, option in options_in(cls).items()]
        cls.__doc__ = "\n".join([f"{cls.__doc__}\n\nArgs:", *fields])

    @property
    def given(self) -> dict[str, Any]:
        """The fields that were given, with their values."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}

    @classmethod
    def _by_field(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values by the names of fields, of which some have another one."""
        others = other_names(cls)
        if doubled := next((other for other, name in others.items() if {other, name} <= given.keys()), None):
            raise UsageError(f"{named(doubled)} and {named(others[doubled])} mean the same; give one of them")
        return {others.get(name, name): value for name, value in given.items()}

    @classmethod
    def over(cls, usual: Mapping[str, Any], keywords: dict[str, Any]) -> Self:
        """Returns the settings of `usual` with `keywords` in their place; removes those used."""
        known = [name for name in (*cls.model_fields, *other_names(cls)) if name in keywords]
        return cls(**cls.merged(usual, cls._by_field({name: keywords.pop(name) for name in known})))

    @classmethod
    def merged(cls, usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all fields, where those that are given go first."""
        return {**usual, **given}

    def changed(self, **fields: Any) -> Self:
        """Returns a copy with other values of some fields."""
        return type(self)(**{**self.given, **fields})


def _of_python(value: Any) -> Any:
    """A number of numpy as Python's."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


def _complaint(model: type[BaseModel], error: ValidationError) -> Exception:
    """The first fault as what is raised."""
    fault = error.errors(include_url=False)[0]
    reason = fault.get("ctx", {}).get("error")
    if isinstance(reason, UsageError):  # which names what it is about
        return reason
    name = str(fault["loc"][0])
    if fault["type"] == "extra_forbidden":
        return TypeError(f"{model.__name__}() got an unexpected keyword argument {name!r}")
    value = repr(fault["input"])
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
    return UsageError(f"{named(name)} is {shown}; {_rule(model, name, fault)}")


def _rule(model: type[BaseModel], name: str, fault: Any) -> str:
    field = model.model_fields[name]
    rule = of_annotation(Rule, field.metadata) or of_annotation(Rule, field.annotation)
    match fault["type"]:
        case "float_type":
            return "it must be a number"
        case "bool_type":
            return "it must be True or False"
        case "literal_error":
            return f"it must be one of {', '.join(map(str, _words(field.annotation)))}"
        case "value_error":
            return str(fault["ctx"]["error"])
        case "int_type" if rule is None:
            return "it must be a whole number"
    message = str(fault["msg"])
    return rule.text if rule is not None else f"{message[:1].lower()}{message[1:]}"


def _words(annotation: Any) -> list[Any]:
    """The words of a `Literal` within a type."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [word for inner in get_args(annotation) for word in _words(inner)]
