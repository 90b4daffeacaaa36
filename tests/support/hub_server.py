"""A stand-in for the Hugging Face hub: an HTTP server on this machine that serves folders as repositories."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "1" * 40

Fault = Callable[["Answer"], bool]
"""Answers a request in its own way, or returns False to let the hub answer."""


class Answer(BaseHTTPRequestHandler):
    """The answer to one request, as the hub gives it: files with ETag and commit, lists of files as JSON."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self.server.requests.append(f"{self.command} {self.route}")
        if not self.server.fault(self):
            self._serve()

    do_GET = do_HEAD  # noqa: N815

    @property
    def route(self) -> str:
        return unquote(urlsplit(self.path).path)

    def reply(self, status: int, body: bytes = b"", /, *, announced: int | None = None, **headers: str) -> bool:
        """Sends one reply. `announced`: the Content-Length, where it is not the body's."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if announced is None else announced))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = announced is not None
        return True

    def log_message(self, format: str, *args: object) -> None: ...

    def _serve(self) -> None:
        for name, folder in self.server.repositories.items():
            for kind in ("", "datasets/"):
                if self.route.startswith(f"/{kind}{name}/resolve/"):
                    revision, _, path = self.route.split("/resolve/")[1].partition("/")
                    return self._send_file(self._at(revision, folder), path)
                if self.route.startswith(f"/api/{kind or 'models/'}{name}"):
                    asked = re.search("/(?:revision|tree)/([^/]+)", self.route)
                    return self._send_listing(name, self._at(asked[1] if asked else "main", folder))
        self.reply(404, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")

    def _at(self, revision: str, folder: Path) -> tuple[str, Path] | None:
        """The commit and the files of a revision, if there is one; every name is main where there is no other."""
        main, others = (self.server.commit, folder), self.server.revisions
        named = {"main": main, **others} | {found[0]: found for found in (main, *others.values())}
        return named.get(revision, None if others else main)

    def _refuse_revision(self) -> None:
        self.reply(404, b"{}", X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")

    def _send_file(self, found: tuple[str, Path] | None, name: str) -> None:
        if found is None:
            return self._refuse_revision()
        commit, path = found[0], found[1] / name
        if not path.is_file():
            self.reply(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found", X_Repo_Commit=commit)
            return
        body = path.read_bytes()
        self.reply(200, body, ETag=f'"{hashlib.sha1(body).hexdigest()}"', X_Repo_Commit=commit)

    def _send_listing(self, name: str, found: tuple[str, Path] | None) -> None:
        if found is None:
            return self._refuse_revision()
        commit, folder = found
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if "/tree/" in self.route:
            within = folder / self.route.split("/tree/")[1].partition("/")[2]
            entries = [
                {"type": "file", "oid": "0", "size": f.stat().st_size, "path": f.relative_to(folder).as_posix()}
                for f in files if f.is_relative_to(within)
            ]  # fmt: skip
            if entries:
                self.reply(200, json.dumps(entries).encode(), Content_Type="application/json")
            else:
                self.reply(404, b"{}", X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
            return
        siblings = [{"rfilename": f.relative_to(folder).as_posix(), "size": f.stat().st_size} for f in files]
        info = {"_id": "0", "id": name, "sha": commit, "private": False, "tags": [], "siblings": siblings}
        self.reply(200, json.dumps(info).encode(), Content_Type="application/json")


class Hub(ThreadingHTTPServer):
    """The server. `requests` lists what was requested, as "GET /path"; `commit` is that of every repository's
    main branch, `revisions` are others of every repository: the commit and the folder of each.

    Args:
        repositories: a folder for every repository's id.
        fault: see `Fault`.
    """

    daemon_threads = True

    def __init__(self, repositories: Mapping[str, Path], fault: Fault) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.repositories, self.fault = repositories, fault
        self.requests: list[str] = []
        self.commit = COMMIT
        self.revisions: dict[str, tuple[str, Path]] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None: ...  # a client that hung up


@contextmanager
def running_hub(repositories: Mapping[str, Path], fault: Fault = lambda answer: False) -> Iterator[Hub]:
    """Yields a hub that answers until the end of the context."""
    with Hub(repositories, fault) as hub:
        Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield hub
        hub.shutdown()
