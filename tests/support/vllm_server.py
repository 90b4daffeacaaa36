"""A server of vLLM on loopback, in a process of its own, asked over HTTP.

Only tests in tests/vllm import this file: it needs vLLM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from openai import OpenAI

from support.ports import free_port
from support.vllm_engine import DRAFT, LENGTH, TARGET, arithmetic
from support.vllm_mend import fsd_vllm_mend

_MEND = Path(fsd_vllm_mend.__file__).parent  # without it sampled requests spoil greedy ones of their batch on a CPU

_ENVIRONMENT = {
    # The engine has a process of its own in any case. This lets its worker be in that: processes import for seconds.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "INFO",
    # A busy server that closes a connection after 5 idle seconds may do so while the next request is on its way.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
}


class Server:
    """A running server.

    Args:
        port: where it listens.
        log: the file that it logs to.
    """

    def __init__(self, port: int, log: Path) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self.client = OpenAI(base_url=f"{self.address}/v1", api_key="none", max_retries=0)
        self._log = log

    @property
    def log(self) -> str:
        """Its log so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @cached_property
    def model(self) -> str:
        """What requests call the target."""
        (model,) = self.client.models.list().data
        return str(model.id)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.address + path, timeout=10) as answer:
            return str(answer.read().decode())

    def metric(self, name: str) -> float:
        """The value of a metric, given with its labels."""
        (line,) = [line for line in self.get("/metrics").splitlines() if line.startswith(f"{name} ")]
        return float(line.split()[-1])

    def total(self, name: str) -> float:
        """The value of a metric, summed over its labels."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(f"{name}{{")]
        assert lines, name
        return sum(float(line.split()[-1]) for line in lines)

    def complete(
        self,
        prompt: str | list[str],
        options: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        **keywords: Any,
    ) -> Any:
        """Asks for a greedy completion.

        Args:
            options: `vllm_xargs`.
            extra: further options of vLLM's own.
        """
        usual: dict[str, Any] = {"max_tokens": 160, "temperature": 0, "stop": list(arithmetic(1).stop)}
        body = {**(extra or {}), **({"vllm_xargs": options} if options else {})}
        return self.client.completions.create(model=self.model, prompt=prompt, extra_body=body, **usual | keywords)


def wait_until(reached: Callable[[], bool]) -> None:
    """Waits until something is so, at most a minute."""
    for _ in range(600):
        if reached():
            return
        time.sleep(0.1)
    raise AssertionError("it was not reached within a minute")


@contextmanager
def running(command: Sequence[str], port: int, log: Path, environment: Mapping[str, str]) -> Iterator[Server]:
    """Runs a command that starts a server, until it answers, and stops all that it started afterwards.

    Args:
        environment: is added to this process's.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, **_ENVIRONMENT, **environment},
        )  # fmt: skip
    try:
        server = Server(port, log)
        _wait(server, process)
        yield server
    finally:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended, with all that it started
        os.killpg(process.pid, number)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Waits until the server answers. Raises RuntimeError with the end of its log if it ends before."""
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(server.log[-3000:])
        try:
            server.get("/health")
            return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"the server does not answer: {server.log[-3000:]}")


@contextmanager
def following(folder: Path, additional: Mapping[str, Any], path: Path | None = None) -> Iterator[Server]:
    """Starts a server of the bundled pair.

    Args:
        folder: for its log.
        additional: of --additional-config.
        path: to modules that it imports.
    """
    port = free_port()
    speculative = {"model": DRAFT, "method": "draft_model", "num_speculative_tokens": LENGTH}
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", TARGET, "--served-model-name", "pair",
        "--dtype", "float32", "--max-model-len", "400", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port),
        "--kv-cache-memory-bytes", str(128 << 20), "--speculative-config", json.dumps(speculative),
        "--additional-config", json.dumps(additional),
    ]  # fmt: skip
    found = [str(_MEND), *([] if path is None else [str(path)]), os.environ.get("PYTHONPATH", "")]
    with running(command, port, folder / "server.log", {"PYTHONPATH": os.pathsep.join(found)}) as server:
        yield server
