"""A cluster on this machine that lives as long as a Python object, and JAX set to use it."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

_START_SECONDS = 120
_STOP_SECONDS = 60


class ClusterError(RuntimeError):
    """A cluster could not be started, asked or stopped; the message has what `parkway` said."""


def find_parkway() -> str:
    """Path of the `parkway` binary: $PARKWAY_BINARY, beside this Python, or on PATH.

    Raises:
      ClusterError: there is none.
    """
    named = os.environ.get("PARKWAY_BINARY")
    for candidate in (named, str(Path(sys.prefix) / "bin" / "parkway"), shutil.which("parkway")):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise ClusterError("no parkway binary beside this Python or on PATH: run `make build`, or set PARKWAY_BINARY")


class LocalCluster:
    """Manager, workers and proxy as processes of this machine. They end with `close()`, with the `with` block, or with
    this Python process, however it ends.

    Args:
      slices: number of slices.
      hosts_per_slice: hosts of each slice, one worker process each.
      devices_per_host: CPU devices of each host. jax.devices() will have slices * hosts_per_slice * devices_per_host.
      name: the cluster's name for `parkway status --name` and the like; by default one of its own.

    Raises:
      ClusterError: it did not become ready; the message has the end of the log of the role that failed.
    """

    def __init__(
        self, slices: int = 2, hosts_per_slice: int = 1, devices_per_host: int = 2, *, name: str | None = None
    ) -> None:
        self._binary = find_parkway()
        self.name = name or f"python-{os.getpid()}-{secrets.token_hex(3)}"
        self._environment_before: dict[str, str | None] | None = None
        self._config_before: dict[str, Any] = {}
        self._transfer_lock: int | None = None
        self._closed = False
        self._pid = os.getpid()
        shape = {"slices": slices, "hosts-per-slice": hosts_per_slice, "devices-per-host": devices_per_host}
        flags = [f"--{flag}={value}" for flag, value in shape.items()]
        self._parkway("up", "--detach", "--port=auto", f"--stop-with-pid={os.getpid()}", *flags, seconds=_START_SECONDS)
        atexit.register(self.close)

    def _parkway(self, command: str, *arguments: str, seconds: float) -> str:
        words = [self._binary, command, f"--name={self.name}", *arguments]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"`{' '.join(words)}` did not end within {seconds} s") from error
        if done.returncode != 0:
            raise ClusterError(f"`{' '.join(words)}` failed:\n{done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        """What `parkway status --json` tells: slices, hosts, devices, sessions, programs run, bytes held (bytes)."""
        return json.loads(self._parkway("status", "--json", seconds=30))

    def environment(self) -> dict[str, str]:
        """The environment variables that put a JAX process of this machine on the cluster."""
        return json.loads(self._parkway("run", "--print-environment", seconds=30))

    def connect(self) -> None:
        """Sets this process's JAX to the cluster's devices, whether jax is imported already or not.

        Where JAX has made a backend already, it is dropped: arrays and compiled functions from before can't be used
        any more.
        """
        if self._environment_before is not None:
            return
        environment = self.environment()
        transfers = environment.get("IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY")
        if transfers:
            self._transfer_lock = _lock_transfers(Path(transfers))
            if self._transfer_lock is None:
                environment = {key: value for key, value in environment.items() if "LARGE_TRANSFER" not in key}
        self._environment_before = {key: os.environ.get(key) for key in environment}
        os.environ.update(environment)
        if "jax" in sys.modules:
            import jax

            self._config_before = {key: jax.config.values[key] for key in ("jax_platforms", "jax_backend_target")}
            _reset_jax(jax_platforms="proxy", jax_backend_target=environment["JAX_BACKEND_TARGET"])

    def disconnect(self) -> None:
        """Gives this process's JAX back what it had before `connect()`. Arrays that lie on the cluster are lost."""
        if self._environment_before is None:
            return
        for key, value in self._environment_before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        if "jax" in sys.modules:
            before = self._environment_before
            config = self._config_before or {
                "jax_platforms": before.get("JAX_PLATFORMS"),
                "jax_backend_target": before.get("JAX_BACKEND_TARGET") or "",
            }
            _reset_jax(**config)
        if self._transfer_lock is not None:
            os.close(self._transfer_lock)
            self._transfer_lock = None
        self._environment_before, self._config_before = None, {}

    def close(self) -> None:
        """Disconnects and stops the cluster's processes. Nothing happens the second time, or in a forked child."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        self.disconnect()
        self._parkway("down", seconds=_STOP_SECONDS)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalCluster(name={self.name!r}{', closed' if self._closed else ''})"


def _reset_jax(**config: Any) -> None:
    """Drops JAX's backends, so that the next use of JAX makes them as `config` says."""
    import jax
    import jax.extend.backend

    jax.extend.backend.clear_backends()
    for key, value in config.items():
        jax.config.update(key, value)


def _lock_transfers(directory: Path) -> int | None:
    """The lock of the cluster's large-transfer directory, which one client at a time may use; None: another has it."""
    lock = os.open(directory / ".client", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
