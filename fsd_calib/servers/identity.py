"""What a server says of itself, by which a changed one is noticed, and how it answers some fixed prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsd_calib.servers.client import Client, NoAnswerError
from fsd_calib.servers.served import Way
from fsd_common.errors import UsageError
from fsd_decoding.profile.io import write_atomically

_PROBES = ("The capital of France is", "1, 1, 2, 3, 5, 8,", "def add(a, b):", "Once upon a time")
_LONG = 24  # tokens of an answer to a probe
_VOLATILE = ("created", "permission")  # what is another at every start


@dataclass(frozen=True)
class ServerIdentity:
    """What a server says of itself.

    Attributes:
        model: What it says of the model, without what changes with every start.
        version: Its version, or that it does not say.
        reference: What the other server says that is the reference; None: it is none.
        generation: How often it was found to answer otherwise than before, though it said the same.
    """

    model: Mapping[str, Any]
    version: str
    reference: ServerIdentity | None = None
    generation: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        reference = None if self.reference is None else self.reference.facts
        return {"model": dict(self.model), "version": self.version, "reference": reference,
                "generation": self.generation}  # fmt: skip


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


Probed = list[list[str]]
"""Hashes of answers to the probes, a list for each way that was asked."""


def is_another(before: Probed, now: Probed) -> bool:
    """Whether most probes of a way are answered otherwise than before: rounding changes a few at most."""
    return any(
        sum(one != other for one, other in zip(*of, strict=True)) > len(_PROBES) / 2
        for of in zip(before, now, strict=True)
    )


def generation_of(known: Path | None, probed: Probed) -> int:
    """Returns the number of the server among those that said the same and answered otherwise, and keeps it.

    Args:
        known: The file that they are kept in; None: nothing is kept.
    """
    if known is None:
        return 0
    before: list[Probed] = json.loads(known.read_text()) if known.exists() else []
    for number, each in enumerate(before):
        if not is_another(each, probed):
            return number
    write_atomically(known, json.dumps([*before, probed]) + "\n", "probes of a server")
    return len(before)
