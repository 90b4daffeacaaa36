"""A connection to a Ray cluster, and the machines that it has."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fsd_common.errors import UsageError

_OWN = "local"  # the address of a cluster that is started for this process
_ANY = "auto"  # the address of whichever cluster there is
_CLIENT = "ray://"  # before the address of a cluster that is reached through Ray's client
_ANSWER = 5.0  # seconds to wait for one


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yields the module `ray`, connected to a cluster. A connection that was not there before is closed afterwards.

    Args:
        address: of the cluster, as `ray.init` takes it.

    Raises:
        UsageError: Ray is not installed, there is no cluster at the address, or this process is connected to another.
    """
    if address == _OWN:
        _keep_to_itself()
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise UsageError(f"ray is {address!r}, and Ray is not installed; pip install 'fsd-calib[ray]'") from error
    if ray.is_initialized():
        _check_address(ray, address)
        yield ray
        return
    check_answers(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=True)
    except Exception as error:  # bare where a node does not start within half a minute, as on a busy machine
        reason = " ".join(str(error).split())
        raise UsageError(f"ray is {address!r}, and no cluster can be used there: {reason}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _keep_to_itself() -> None:
    """Has a cluster that this process starts listen on this machine alone, and serve whoever has its token, which its
    own processes inherit.

    Whoever may use a cluster can run commands as its user. Ray reads these variables when it is imported; what the
    user has set is kept. Without clusters of several machines, as by default on Windows and macOS, the node's address
    is 127.0.0.1, and each server listens there.
    """
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def check_answers(address: str) -> None:
    """Raises UsageError where nothing listens at HOST:PORT, for which Ray itself looks for half a minute."""
    host, colon, port = address.removeprefix(_CLIENT).rpartition(":")
    if not colon:
        return  # such as "auto"
    try:
        socket.create_connection((host, int(port)), _ANSWER).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(
            f"ray is {address!r}, and no cluster answers there ({error}); start one with `ray start --head`, or give "
            "'local' for one on this machine"
        ) from error


def _check_address(ray: Any, address: str) -> None:
    own = ray.get_runtime_context().gcs_address
    if address != _ANY and _resolved(address.removeprefix(_CLIENT)) != own:
        raise UsageError(
            f"ray is {address!r}, and this process is connected to the cluster at {own} already; give {_ANY!r} to use "
            "that one, or call ray.shutdown() first"
        )


def _resolved(address: str) -> str:
    """HOST:PORT with the number of the host, where it has one."""
    host, _, port = address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}" if host else address
    except OSError:
        return address


def cluster_nodes(ray: Any) -> list[tuple[int, int]]:
    """Returns the CPUs and GPUs of each machine of a cluster.

    Args:
        ray: the module, see `connected`.
    """
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in alive]
