"""Files of the Hugging Face hub: fetched before they are read, with one line where the hub does not give them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fsd_common.argument_checks import check_path
from fsd_common.errors import UsageError

SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
"""Patterns of a model's configuration and tokenizer files."""

_CONFIGURATION = "config.json"
_INDEX, _WEIGHTS = "model.safetensors.index.json", "model.safetensors"
_PAUSES = (1.0, 2.0)  # seconds between the tries of what may pass: an error of the server, a broken download
_TRIES = len(_PAUSES) + 1
_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"

_T = TypeVar("_T")


def check_source(what: str, source: str, *, configured: bool) -> None:
    """Raises UsageError where a source is no folder and cannot be the id of a repository either.

    Args:
        what: is loaded, for messages.
        configured: whether a folder must hold the configuration of a model.
    """
    check_path(what, source)
    path = Path(source)
    if path.exists():
        if not path.is_dir() or (configured and not (path / _CONFIGURATION).is_file()):
            lacks = f"there is no {_CONFIGURATION} in it" if path.is_dir() else "it is no folder"
            raise UsageError(f"{what} at {source!r} cannot be loaded: {lacks}; give the folder of a model, or an id")
        return
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(source)
    except HFValidationError as error:
        raise UsageError(cannot_load(what, source, error)) from error


def fetch_small(what: str, source: str, revision: str | None = None) -> Path | None:
    """Fetches configuration and tokenizer files of a hub id, without weights.

    Args:
        what: what is loaded, for messages.
        revision: branch, tag or commit; None: the main branch.

    Returns:
        the local folder of that commit, which is its name; None: `source` is a local path.

    Raises:
        UsageError: the hub does not give them, and they are not in the local cache.
    """
    if Path(source).exists():
        return None
    return _fetch(what if revision is None else f"{what} at {revision!r} of", source, SMALL_FILES, revision, quiet=True)


def fetch_weights(source: str, revision: str | None = None) -> Path | None:
    """Fetches the weights of a hub id that are stored as safetensors, and the small files; see `fetch_small`."""
    folder = fetch_small("model", source, revision)
    if folder is None:
        return None
    names = {_WEIGHTS}
    if (folder / _INDEX).exists():
        names = set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    missing = sorted(name for name in names if not (folder / name).exists())
    return _fetch("model", source, missing, revision=folder.name) if missing else folder


def fetch_files(what: str, source: str, patterns: Sequence[str], revision: str | None = None) -> Path | None:
    """Fetches those files of a hub id that there are; see `fetch_small`."""
    return None if Path(source).exists() else _fetch(what, source, patterns, revision)


def fetch_data(source: str, patterns: Sequence[str]) -> Path | None:
    """Fetches files of a data set.

    Returns:
        the local folder; None: `source` is a local path.

    Raises:
        Exception: the hub does not give them, which `explain` explains, and they are not in the local cache.
    """
    return None if Path(source).exists() else _retried(lambda: _snapshot(source, patterns, kind="dataset"))


def _fetch(what: str, source: str, patterns: Sequence[str], revision: str | None = None, quiet: bool = False) -> Path:
    try:
        return _retried(lambda: _snapshot(source, patterns, revision, quiet))
    except Exception as error:  # whatever the libraries involved raise: the message says what it was
        raise UsageError(cannot_load(what, source, error)) from error


def _snapshot(
    source: str, patterns: Sequence[str], revision: str | None = None, quiet: bool = True, kind: str = "model"
) -> Path:
    """Downloads files into the local cache, or finds them there where the hub does not answer."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    class NoBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"disable": True})  # type: ignore[no-untyped-call]

    bar = NoBar if quiet else tqdm
    download = partial(
        snapshot_download, source, repo_type=kind, revision=revision, allow_patterns=list(patterns), tqdm_class=bar
    )
    try:
        if not constants.HF_HUB_OFFLINE:  # `snapshot_download` would wait without end for a hub that does not answer
            HfApi().repo_info(source, repo_type=kind, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:
        try:
            return Path(download(local_files_only=True))
        except Exception:
            raise error from None
    return Path(download())


def _retried(fetch: Callable[[], _T]) -> _T:
    """Calls `fetch` again after errors that may pass; huggingface_hub itself repeats only some requests."""
    for pause in _PAUSES:
        try:
            return fetch()
        except Exception as error:
            if not any((_status(cause) or 0) >= 500 or _broke_off(cause) for cause in _causes(error)):
                raise
        time.sleep(pause)
    return fetch()


def cannot_load(what: str, source: str, error: Exception) -> str:
    """Returns what went wrong with a hub id and what to do, in one line."""
    return f"{what} {source!r} is not a local folder and cannot be loaded from {hub()}: {explain(source, error)}"


def explain(name: str, error: BaseException, command: str = "hf download") -> str:
    """Returns what the hub answered and the way out, from the error of any library that asked it.

    Args:
        name: the id of the repository.
        command: what fetches it beforehand.
    """
    from huggingface_hub.constants import HF_HUB_OFFLINE

    chain = list(_causes(error))
    kinds = {type(cause).__name__ for cause in chain}
    if "HFValidationError" in kinds:
        return "it is no id either, NAME or OWNER/NAME; give an id, or the path of a local folder"
    if HF_HUB_OFFLINE or "OfflineModeIsEnabled" in kinds:
        return (
            "HF_HUB_OFFLINE is set, and it is not whole in the local cache; unset HF_HUB_OFFLINE, or fetch it "
            f"beforehand with `{command} {name}`"
        )
    for cause in chain:
        if said := _answered(name, cause) or _unanswered(cause):
            return said
    reason = str(error).strip().split("\n")[0].rstrip(". ")
    return f"{reason or type(error).__name__}; check the id"


def _answered(name: str, error: BaseException) -> str | None:
    """About an answer of the server with an error status."""
    status = _status(error)
    if status is None or status < 400:
        return None
    kind, message = type(error).__name__, getattr(error, "server_message", None)
    told = f"{status}" + (f" ({' '.join(message.split())[:120]})" if message else "")
    if kind == "GatedRepoError":
        return f"it answered {told}: access is restricted; accept the terms on its page, then {_LOG_IN}"
    if status == 401:
        return (
            f"it answered {told}: there is no such repository, it is private, or the token is not valid; check the id, "
            f"or {_LOG_IN}"
        )
    if status == 403:
        return f"it answered {told}: this account may not read it; {_LOG_IN}, with a token that may"
    if status == 404:
        missing = "file" if "Entry" in kind else "revision" if "Revision" in kind else "repository"
        return f"it answered {told}: there is no such {missing}; check the id {name!r}, or {_LOG_IN} if it is private"
    if status == 429:
        return f"it answered {told}: too many requests; wait a few minutes, or {_LOG_IN}"
    if status >= 500:
        return f"it answered {told}, {_TRIES} times or more; try again later"
    return f"it answered {told}; check the id"


def _unanswered(error: BaseException) -> str | None:
    """About a connection without an answer, or an answer that is not a hub's."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"FileMetadataError", "JSONDecodeError"}:
        return (
            "the answer is not a hub's (a login page of the network?); check the connection, the proxy and HF_ENDPOINT"
        )
    if "TooManyRedirects" in names:
        return "it redirects without end; check the proxy and HF_ENDPOINT"
    if names & {"TimeoutException", "Timeout"}:
        return "no answer in time; check the connection and HF_ENDPOINT, or raise HF_HUB_DOWNLOAD_TIMEOUT"
    if _broke_off(error):
        return f"the download broke off, {_TRIES} times or more; check the network, and try again later"
    if names & {"TransportError", "ConnectionError", "UnsupportedProtocol", "InvalidURL"}:
        reason = " ".join(str(error).split())[:120]
        return f"no connection ({reason}); check the network and HF_ENDPOINT"
    return None


def _broke_off(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"RemoteProtocolError", "ReadError"}) or "Consistency check failed" in str(error)


def _status(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it was raised from or during."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def hub() -> str:
    """Returns which hub is asked, for messages."""
    endpoint = os.environ.get("HF_ENDPOINT")
    return f"the hub at {endpoint} (HF_ENDPOINT)" if endpoint else "the hub at https://huggingface.co"
