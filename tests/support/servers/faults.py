"""What goes wrong between a client and a server, done to requests on purpose."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler
from typing import Any


class FaultyHandler(BaseHTTPRequestHandler):
    """Answers requests, or does something else instead."""

    protocol_version = "HTTP/1.1"

    def answer(self, number: int, text: str) -> dict[str, Any]:
        """Returns the answer to a request of that number."""
        raise NotImplementedError

    def send(self, content: Any, status: int = 200, headers: dict[str, str] | None = None, kind: str = "json") -> None:
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", f"application/{kind}" if kind == "json" else f"text/{kind}")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def fails(self, fault: str) -> bool:
        """Does what a fault is called; returns whether there is no answer besides."""
        self.close_connection = fault in ("reset", "half")
        if fault == "reset":
            self.connection.close()
        elif fault == "half":
            self.wfile.write(
                b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{"id": "x'
            )
        elif fault == "cut":
            self.send('{"id": "cmpl-x", "choices": [')
        elif fault == "html":
            self.send("<html>Sign in</html>", kind="html")
        elif fault == "unfinished":
            answer = self.answer(1, "half")
            answer["choices"][0]["finish_reason"] = None
            self.send(answer)
        elif fault == "duplicate":
            self.send(self.answer(0, "#### 1"))
        elif fault in ("slow", "midway"):  # the latter is done to a stream
            time.sleep(0.5 * (fault == "slow"))
            return False
        else:
            self.send({"error": fault}, int(fault), {"Retry-After": "0.1"})
        return True
