"""Servers as processes: started together, watched while they are used, always ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..errors import BenchError
from ..records import answer_file

__all__ = ["HOST", "Launch", "Server", "free_ports", "require_memory", "running"]

HOST = "127.0.0.1"
POLL_SECONDS = 0.5
GRACE_SECONDS = 10.0
TAIL_LINES = 12


@dataclass(frozen=True)
class Launch:
    """How to start one server.

    Attributes:
        command: program and arguments.
        environment: all of it.
        port: on the loopback, where ``/health`` answers 200 once the server is ready.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    port: int


class Server:
    """One server in a process group of its own, its output in a log file.

    Args:
        policy: what it serves, for messages and the log's name.
        launch: see there.
        logs: folder for the log.

    Raises:
        BenchError: the program cannot be started.
    """

    def __init__(self, policy: str, launch: Launch, logs: Path) -> None:
        self.policy, self.url = policy, f"http://{HOST}:{launch.port}"
        self.log = logs / f"{Path(answer_file(policy)).stem}.log"
        try:
            logs.mkdir(parents=True, exist_ok=True)
            with self.log.open("wb") as log:
                self.process = _start(launch, log)
        except OSError as error:
            raise BenchError(
                f"expected to start {launch.command[0]} with its log in {self.log}, found: {error}; check "
                "that both exist and can be used."
            ) from error

    def wait(self, end: float) -> None:
        """Return once it is ready.

        Args:
            end: by ``time.monotonic``, when it must be.

        Raises:
            BenchError: it ended, or is not ready in time; the message has the end of its log.
        """
        while not self._healthy():
            self.check()
            if time.monotonic() > end:
                raise BenchError(
                    f"expected the server for {self.policy} to be ready in time, found it still starting; "
                    f"raise --timeout, or see {self.log}, which ends in:\n{self.tail()}"
                )
            time.sleep(POLL_SECONDS)

    def check(self) -> None:
        """Raise BenchError, with the end of the log, if it has ended."""
        if (status := self.process.poll()) is not None:
            raise BenchError(
                f"expected the server for {self.policy} to run, found it ended with status {status}; mend "
                f"what its log says and repeat the command. {self.log} ends in:\n{self.tail()}"
            )

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])

    def signal(self, number: int) -> None:
        """Send a signal to it and to all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """End it and wait: politely first. What it started may outlive it, so the group gets the rest."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_SECONDS)
        self.signal(signal.SIGKILL)
        self.process.wait()

    def _healthy(self) -> bool:
        # Not through a proxy of the environment.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextlib.contextmanager
def running(launches: Mapping[str, Launch], logs: Path, *, seconds: float) -> Iterator[dict[str, Server]]:
    """All servers, ready, by policy; ended when the block is left, also by an error, Ctrl-C or SIGTERM.

    They start at the same time: much of a start is waiting for the disk.

    Args:
        launches: {policy: how}.
        logs: folder for their logs.
        seconds: most time for all to become ready.

    Raises:
        BenchError: as ``Server`` and ``Server.wait``.
    """
    servers: dict[str, Server] = {}
    end = time.monotonic() + seconds
    # A process that is told to end must end its servers first, as with Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for policy, launch in launches.items():
            servers[policy] = Server(policy, launch, logs)
        for server in servers.values():
            server.wait(end)
        yield servers
    finally:
        for server in servers.values():
            server.signal(signal.SIGTERM)
        for server in servers.values():
            server.stop()
        signal.signal(signal.SIGTERM, before)


def require_memory(servers: int, each: float, file: Path = Path("/proc/meminfo")) -> None:
    """Find out before the machine is out of memory; does nothing where the system does not say what is free.

    Args:
        servers: how many. each: GiB of one.
        file: where Linux says it.

    Raises:
        BenchError: there is less.
    """
    if not file.exists():
        return
    lines = dict(line.split(":", 1) for line in file.read_text(encoding="ascii").splitlines())
    free = int(lines["MemAvailable"].split()[0]) / 2**20
    if free < servers * each:
        raise BenchError(
            f"expected {servers * each:.1f} GiB of free memory, {each:g} for each of {servers} servers, "
            f"found {free:.1f}; name fewer policies: every run has a none of its own to be compared with."
        )


def free_ports(count: int) -> list[int]:
    """Different ports of the loopback that nothing listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]


def _start(launch: Launch, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(launch.command),
        env=dict(launch.environment),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a group of its own: Ctrl-C reaches this process only, which then ends them
    )
