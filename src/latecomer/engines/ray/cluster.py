"""The cluster: the one that is named, or one of this machine's cores that is started and ends with this process."""

from __future__ import annotations

import secrets
import socket
import sys
from typing import Any

from ...errors import ClusterError, SettingError, need
from ..environment import environment

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray announces a change of its own
    "RAY_worker_niceness": "0",  # workers are the work: by default they would stand behind everybody else
    "RAY_gcs_server_port_wait_time_s": "1",  # tries to reach a cluster, of up to 40 seconds each
}
"""Ray sends nothing home, and says little. It reads some of this when it is imported and some when it starts."""
REACH = 5.0  # seconds to wait for whoever listens at an address

_named = ""  # the address that this process connected to


def connect(address: str = "", **options: Any) -> None:
    """Connect this process to the cluster at `address`; to one of its own, that ends with it, where that is empty.

    A process that is connected already, by a program of its own, stays where it is.
    """
    global _named
    with environment(QUIET | ({} if address or "ray" in sys.modules else _own_token())):
        ray = need("ray", "ray")
        if ray.is_initialized():
            if address not in ("", "auto", _named, ray.get_runtime_context().gcs_address):
                raise ClusterError(
                    f"--ray-address {address} cannot be used: this process is connected to another Ray cluster already."
                )
            return
        if address and address != "auto":
            _reach(address)
        where = {"address": address} if address else {"address": "local", "include_dashboard": False}
        try:
            ray.init(**where, log_to_driver=False, logging_level="ERROR", **options)
        except (RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
            ray.shutdown()
            raise ClusterError(_refusal(address, error)) from error
        _named = address
        from ray._private import worker

        worker._worker_logs_enabled = False  # else Ray prints to our output whatever it deals with


def seats(workers: int, gpus: bool) -> tuple[int, dict[str, int]]:
    """How many workers there will be, and what each takes of the cluster: a GPU where there are some, else a core."""
    import ray

    found = ray.cluster_resources()
    kind = "GPU" if gpus and found.get("GPU") else "CPU"
    most = int(found.get(kind, 0))
    if not most or workers > most:
        what = f"{most or 'no'} {'GPU' if kind == 'GPU' else 'core'}{'s' * (most != 1)}"
        raise SettingError(f"--workers {workers} asks for more than the Ray cluster has, which is {what}.")
    return workers or most, {"num_gpus": 1, "num_cpus": 0} if kind == "GPU" else {"num_cpus": 1}


def _reach(address: str) -> None:
    """Whether anybody listens: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise SettingError(f"--ray-address must be HOST:PORT of a cluster's head, or auto; got {address!r}.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"Nobody answers at --ray-address {address}: {getattr(error, 'strerror', '') or error}."
        ) from error


def _refusal(address: str, error: Exception) -> str:
    """Why a cluster cannot be used, in a sentence."""
    lines = " ".join(str(error).split())
    if "ersion mismatch" in lines:
        return f"The Ray cluster at {address} is of another version than this process: {lines.partition(': ')[2]}."
    place = f"The Ray cluster at {address} cannot be used" if address else "No Ray cluster can be started here"
    return f"{place}: {lines[:300].rstrip('.')}."


def _own_token() -> dict[str, str]:
    """Whoever else can reach this machine cannot work on its cluster; without this, Ray leaves a file in the home."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
