"""What a server says of itself, by which a changed one is noticed, and how it answers some fixed prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsd_calib.servers.client import Client, NoAnswerError
from fsd_calib.servers.served import Way
from fsd_common.errors import UsageError

_PROBES = ("The capital of France is", "1, 1, 2, 3, 5, 8,", "def add(a, b):", "Once upon a time")
_LONG = 24  # tokens of an answer to a probe
_VOLATILE = ("created", "permission")  # what is another at every start


@dataclass(frozen=True)
class ServerIdentity:
    """What a server says of itself.

    Attributes:
        model: What it says of the model, without what changes with every start.
        version: Its version, or that it does not say.
    """

    model: Mapping[str, Any]
    version: str

    @property
    def facts(self) -> dict[str, Any]:
        return {"model": dict(self.model), "version": self.version}


def identity_of(client: Client) -> ServerIdentity:
    """Asks a server for its models and its version.

    Raises:
        UsageError: It does not answer, or has no model of that name.
    """
    return client.run(_identity_of(client))


async def _identity_of(client: Client) -> ServerIdentity:
    models, wanted = await client.models(), client.server.model
    unlisted = {"id": wanted} if models is None else None
    found = next((model for model in models or () if model.get("id") == wanted), unlisted)
    if found is None:
        raise UsageError(
            f"the server at {client.url} has no model {wanted!r}; it has "
            f"{', '.join(repr(model.get('id')) for model in models or ()) or 'none'}: name one of these as server.model"
        )
    said = await client.get(f"{client.url.removesuffix('/v1')}/version")
    version = str(said["version"]) if isinstance(said, Mapping) and "version" in said else "unknown"
    return ServerIdentity({name: value for name, value in found.items() if name not in _VOLATILE}, version)


def probe(way: Way) -> list[str]:
    """Returns hashes of what a server answers greedily to some fixed prompts, one after the other."""
    return way.client.run(_probe(way))


async def _probe(way: Way) -> list[str]:
    found = []
    for text in _PROBES:
        asked = {"prompt": text} if way.client.server.endpoint == "completions" else {"messages": _says(text)}
        body = {"model": way.client.server.model, "max_tokens": _LONG, "temperature": 0.0, **asked, **way.fields}
        try:
            answer = (await way.client.ask(body)).text
        except NoAnswerError:
            answer = ""
        found.append(hashlib.sha256(answer.encode()).hexdigest()[:16])
    return found


def _says(text: str) -> Sequence[Mapping[str, str]]:
    return [{"role": "user", "content": text}]


def is_another(before: Sequence[str], now: Sequence[str]) -> bool:
    """Whether most probes are answered otherwise than before: rounding changes a few at most."""
    return sum(one != other for one, other in zip(before, now, strict=True)) > len(before) / 2
