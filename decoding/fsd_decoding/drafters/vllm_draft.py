"""What drafts in vLLM alone: a head, or whatever else its --speculative-config names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Self

from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_decoding.hub import SMALL_FILES, check_source, fetch_files

METHODS: Final = ("draft_model", "eagle", "eagle3", "mtp", "dflash")
"""Methods of vLLM's --speculative-config whose drafts come with a distribution over the target's vocabulary."""

_WEIGHTS = "*.safetensors", "pytorch_model*.bin"  # of the first format that there is
_MASK = "mask_embedding.pt"
_OURS = {
    "num_speculative_tokens": "give draft lengths as {draft_length}",
    "draft_sample_method": "it follows from the {temperature}",
    "rejection_sample_method": "T is searched for beside vLLM's standard test",
    "parallel_drafting": "the calibration changes the draft length from step to step, which that cannot follow",
}  # by name; the way out, in which names of settings stand in braces


@dataclass(frozen=True)
class VllmDraft:
    """A drafter of vLLM's own. No other engine can load it.

    Args:
        text: what --speculative-config says of it, as canonical JSON.
    """

    text: str

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Returns what a user names.

        Raises:
            UsageError: it names no drafter that has a distribution, or sets what follows from other settings.
        """
        option = named("speculative_config")
        method, model = given.get("method"), given.get("model")
        if method not in METHODS:
            raise UsageError(f"{option} has the method {method!r:.40}; it must be one of {', '.join(METHODS)}")
        for name, way_out in _OURS.items():
            if name in given:
                settings = {each: named(each) for each in ("draft_length", "temperature")}
                raise UsageError(
                    f"{option} sets {name!r}, which cannot be set: {way_out.format(**settings)}; leave it out"
                )
        if not isinstance(model, str) and not (model is None and method == "mtp"):
            raise UsageError(f"{option} has the model {model!r:.60}; it must be the path or hub id of what drafts")
        if model is not None:
            check_source("drafter", model, configured=True)
        found = {name: value for name, value in given.items() if value is not None}
        if model is not None and Path(model).exists():
            found["model"] = str(Path(model).resolve())  # so that a profile finds it from anywhere
        return cls(json.dumps(found, sort_keys=True))

    @property
    def values(self) -> dict[str, Any]:
        """The entries of --speculative-config."""
        values: dict[str, Any] = json.loads(self.text)
        return values

    @property
    def method(self) -> str:
        return str(self.values["method"])

    def __repr__(self) -> str:
        return self.text

    @property
    def in_target(self) -> bool:
        """Whether it is in the target's own files, as MTP is, of which transformers does not load it."""
        return "model" not in self.values

    def fingerprint(self, target: str) -> str:
        """Returns the fingerprint of its files. target: that of the target, which holds it where it has none."""
        return target if self.in_target else files_fingerprint(self.values["model"], self.values.get("revision"))

    def drafter(self, rows: int, slots: int, vocabulary: int) -> NoReturn:
        """See `DraftSource.drafter`. Raises UsageError: our engine cannot load it."""
        raise UsageError(f"the draft is vLLM's own, {self.text}, which our engine cannot load; serve it with vLLM")


def files_fingerprint(source: str, revision: str | None = None) -> str:
    """Returns the SHA-256 (hex) of a drafter's configuration and weights, as they are stored.

    Of weights in several formats those count that vLLM loads, besides a mask's embedding, which DFlash may have.

    Args:
        source: its folder or hub id.
        revision: on the hub.

    Raises:
        UsageError: there are none.
    """
    folder = fetch_files("drafter", source, (*SMALL_FILES, *_WEIGHTS, _MASK), revision) or Path(source)
    weights = next(filter(None, (sorted(folder.glob(pattern)) for pattern in _WEIGHTS)), [])
    if not weights:
        raise UsageError(f"drafter {source!r} has no weights ({', '.join(_WEIGHTS)}); give the folder of one")
    digest = hashlib.sha256()
    for path in (folder / "config.json", *weights, *folder.glob(_MASK)):
        if not path.is_file():
            raise UsageError(f"drafter {source!r} has no {path.name}; give the folder of one")
        with path.open("rb") as file:
            digest.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\0".encode())
    return digest.hexdigest()
