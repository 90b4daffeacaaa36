"""A connection to a Ray cluster, and the machines that it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fsd_decoding.errors import UsageError

_ANY = "auto"  # the address of whichever cluster there is


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yields the module `ray`, connected to a cluster. A connection that was not there before is closed afterwards.

    Args:
        address: of the cluster, as `ray.init` takes it.

    Raises:
        UsageError: Ray is not installed, there is no cluster at the address, or this process is connected to another.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise UsageError(f"ray is {address!r}, and Ray is not installed; pip install 'fsd-calib[ray]'") from error
    if ray.is_initialized():
        _check_address(ray, address)
        yield ray
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=True)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"ray is {address!r}, and no cluster can be used there: {reason}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(ray: Any, address: str) -> None:
    own = ray.get_runtime_context().gcs_address
    if address not in (_ANY, own):
        raise UsageError(
            f"ray is {address!r}, and this process is connected to the cluster at {own} already; give {_ANY!r} to use "
            "that one, or call ray.shutdown() first"
        )


def cluster_nodes(ray: Any) -> list[tuple[int, int]]:
    """Returns the CPUs and GPUs of each machine of a cluster.

    Args:
        ray: the module, see `connected`.
    """
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in alive]
