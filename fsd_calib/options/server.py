"""How a user describes a server: where it is, what requests hold, and the knob that makes it lossy.

It is the section `server` of a run file. Importing this imports nothing heavy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, model_validator

from fsd_common.strict_yaml import Strict

PLACE = "{T}"
"""Stands for the knob's value in what a user writes."""
LENGTH = "{K}"
"""Stands for the number of drafted tokens."""
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SECRET = re.compile("auth|key|token|secret|cookie|password", re.IGNORECASE)
_HIDDEN = re.compile(r"(\w+ )?\$\{\w+\}")  # a scheme, such as Bearer, and a variable
_MOST = 1000  # values of a knob
_UNITS = {"ms": 1e-3, "s": 1.0}
_LIMIT = re.compile(r"(ttft|itl)\s*=\s*(\d+(?:\.\d*)?)\s*(ms|s)")

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Body = dict[str, JsonValue]


class _Described(Strict):
    """A part of the description. The text below a field is its description in the JSON schema."""

    model_config = Strict.model_config | {"use_attribute_docstrings": True, "allow_inf_nan": False}


class Range(_Described):
    """Values of a knob at equal distances."""

    first: float
    """The strictest one."""
    last: float
    """The loosest one."""
    count: Annotated[int, Field(ge=2, le=_MOST)]
    """How many there are."""

    @property
    def values(self) -> tuple[float, ...]:
        step = (self.last - self.first) / (self.count - 1)
        return tuple(round(self.first + step * place, 12) for place in range(self.count))


class Live(_Described):
    """A knob of the running server, which holds for all requests that come later."""

    url: str
    """Where its value is sent to, by POST."""
    body: Body
    """What is sent, as JSON, with {T} in place of the value."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_url(self.url)
        return self


class Restart(_Described):
    """A knob that the server is told when it starts: it is started anew for every value."""

    command: str
    """Starts the server, in a shell, with {T} in place of the value."""
    health: str
    """Answers with status 200 once the server is ready."""
    seconds: Seconds = 600.0
    """How long a start may take."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_url(self.health)
        return self


class Knob(_Described):
    """What makes the server lossy. Exactly one of `request`, `live` and `restart` says how it is set."""

    name: str
    """What the server calls it."""
    values: Annotated[list[float], Field(min_length=1, max_length=_MOST)] | None = None
    """The values to choose from, each looser than the one before it."""
    range: Range | None = None
    """The values to choose from, at equal distances."""
    request: Body | None = None
    """Fields of each request, with {T} in place of the value."""
    live: Live | None = None
    restart: Restart | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.values is None) == (self.range is None):
            raise ValueError("give either values or range")
        ways = {name: getattr(self, name) for name in ("request", "live", "restart")}
        given = [name for name, way in ways.items() if way is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of request, live and restart, and not {' and '.join(given) or 'none'}")
        ladder = self.ladder
        if list(ladder) not in (sorted(set(ladder)), sorted(set(ladder), reverse=True)):
            raise ValueError(f"values are {list(ladder)}; they must rise or fall throughout, from strict to loose")
        if not _has_place(ways[given[0]]):
            raise ValueError(f"{given[0]} has no {PLACE}, which stands for the value")
        return self

    @property
    def ladder(self) -> tuple[float, ...]:
        """The values, the strictest first."""
        return tuple(self.values) if self.values is not None else self.range.values  # type: ignore[union-attr]

    @property
    def way(self) -> Literal["request", "live", "restart"]:
        """How it is set."""
        return "request" if self.request is not None else "live" if self.live is not None else "restart"


class Reference(_Described):
    """The lossless decoding that settings are compared with. Exactly one of the fields says how it is had."""

    request: Body | None = None
    """Fields of each request with which the server decodes losslessly."""
    value: float | None = None
    """A value of the knob at which the server decodes losslessly."""
    url: str | None = None
    """Another server of the same model that decodes losslessly, such as one without a draft."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if [self.request, self.value, self.url].count(None) != 2:
            raise ValueError("give exactly one of request, value and url")
        if self.url is not None:
            _check_url(self.url)
        return self


class Launches(_Described):
    """Ways to start the server that fsd-tune compares."""

    commands: Annotated[dict[str, str], Field(min_length=1)]
    """Start the server, in a shell, by a name each, such as the method that drafts. {K} stands for the number of
    drafted tokens; without it a command is one way."""
    lengths: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = Field(default=[1, 2, 3, 4, 5, 6, 8])
    """Numbers of drafted tokens to try."""
    health: str
    """Answers with status 200 once the server is ready."""
    seconds: Seconds = 600.0
    """How long a start may take."""


class ServerDescription(_Described):
    """A server with an OpenAI-compatible interface."""

    url: str
    """Its address up to /v1, such as http://localhost:8000/v1."""
    model: str
    """What requests call the model."""
    name: str | None = None
    """Your name for the model: attempts are counted by it and by what the server says of the model."""
    endpoint: Literal["chat", "completions"] = "chat"
    """Whether prompts are messages, which the server's chat template renders, or texts."""
    tokenizer: str | None = None
    """With `completions`: folder or id of the model's tokenizer, whose chat template renders prompts here, as it does
    for other engines. Without one prompts are plain texts."""
    headers: dict[str, str] = Field(default={})
    """Sent with each request. ${NAME} is replaced by that variable of the environment, and what is secret must be
    written so."""
    at_once: Annotated[int, Field(ge=1, le=4096)] = 8
    """How many requests are under way at once where no speed is measured."""
    timeout: Seconds = 300.0
    """How long an answer may take."""
    body: Body = Field(default={})
    """Further fields of each request."""
    knob: Knob | None = None
    reference: Reference | None = None
    launches: Launches | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_url(self.url)
        for name, value in self.headers.items():
            if _SECRET.search(name) and not _HIDDEN.fullmatch(value):
                raise ValueError(f"header {name} is secret; write it as ${{NAME}}, which the environment has")
        if self.tokenizer is not None and self.endpoint == "chat":
            raise ValueError("tokenizer renders prompts for endpoint completions, and endpoint is chat; drop one")
        if self.reference is not None and self.reference.value is not None and self.knob is None:
            raise ValueError("reference.value is a value of the knob, and there is no knob; describe it")
        return self

    def sent_headers(self) -> dict[str, str]:
        """Returns the headers with the values of this process's environment. ValueError: a variable is not set."""
        return {name: _VARIABLE.sub(_from_environment, value) for name, value in self.headers.items()}

    @property
    def identity(self) -> dict[str, Any]:
        """What tells one run from another: not how many requests are under way, nor what is secret."""
        return self.model_dump(mode="json", exclude={"at_once", "timeout", "headers", "launches"})


def _from_environment(found: re.Match[str]) -> str:
    value = os.environ.get(found[1])
    if value is None:
        raise ValueError(f"headers need the variable {found[1]} of the environment, and it is not set; set it")
    return value


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port  # noqa: F841  raises ValueError
    except ValueError as error:
        raise ValueError(f"url is {url!r:.80}, which is no address ({error})") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url is {url!r:.80}; it must begin with http:// or https:// and name a host")
    if parts.username or parts.password:
        raise ValueError("url holds a user or a password, which files must not; send them as a header")


def _has_place(written: Any) -> bool:
    if isinstance(written, Strict):
        return any(_has_place(getattr(written, name)) for name in type(written).model_fields)
    if isinstance(written, str):
        return PLACE in written
    if isinstance(written, Mapping):
        return any(map(_has_place, written.values()))
    return isinstance(written, Iterable) and any(map(_has_place, written))


def with_value(written: Any, value: float, place: str = PLACE) -> Any:
    """Returns JSON with a value in its place: as a number where that is a whole text, else within it."""
    if isinstance(written, str):
        return plain(value) if written == place else written.replace(place, str(plain(value)))
    if isinstance(written, Mapping):
        return {name: with_value(each, value, place) for name, each in written.items()}
    if isinstance(written, list | tuple):
        return [with_value(each, value, place) for each in written]
    return written


def parse_slo(text: str) -> dict[str, float]:
    """Reads a service level, `ttft=500ms,itl=50ms`, as seconds by name. ValueError: it is none."""
    limits: dict[str, float] = {}
    for piece in text.split(","):
        found = _LIMIT.fullmatch(piece.strip())
        if found is None or found[1] in limits or not float(found[2]):
            raise ValueError("write it as ttft=500ms,itl=50ms, or one of the two")
        limits[found[1]] = float(found[2]) * _UNITS[found[3]]
    return limits


def plain(value: float) -> float | int:
    """Returns whole numbers without a decimal point, as flags of servers take them."""
    return int(value) if float(value).is_integer() else value


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Returns both objects as one; objects in them are merged, too, and otherwise the second one's fields stay."""
    both = dict(first)
    for name, value in second.items():
        before = both.get(name)
        both[name] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return both
