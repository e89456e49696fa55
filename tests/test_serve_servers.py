"""Servers as processes: they are waited for, watched, and never outlive the block, whatever ends it."""

import os
import signal
import time

import pytest
from serving import HEALTHY, launch

from svip_adapters.evaluation.errors import BenchError
from svip_adapters.evaluation.serving import server
from svip_adapters.evaluation.serving.server import free_ports, require_memory, running

STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen([sys.executable, "-c", "import signal, time; "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]).pid, flush=True)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(server, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.5)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # a process that ended and that nobody waits for yet
        return file.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("end", [None, ValueError, KeyboardInterrupt, signal.SIGTERM])
def test_servers_never_outlive_the_block(tmp_path, end):
    """Not those that ignore being asked, nor what they started, which is where an engine's model is."""
    ports = free_ports(2)
    launches = {"none": launch(STUBBORN + HEALTHY, ports[0]), "fixed:1": launch(HEALTHY, ports[1])}
    before, pids = signal.getsignal(signal.SIGTERM), []

    def use():
        with running(launches, tmp_path, seconds=30) as servers:
            pids.extend(one.process.pid for one in servers.values())
            pids.append(int((tmp_path / "none.log").read_text().split()[0]))
            assert all(map(alive, pids))
            if end is signal.SIGTERM:
                os.kill(os.getpid(), end)
                time.sleep(5)
            elif end:
                raise end

    if end is None:
        use()
    else:
        with pytest.raises(KeyboardInterrupt if end is signal.SIGTERM else end):
            use()
    assert len(pids) == 3
    deadline = time.monotonic() + 5
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))
    assert signal.getsignal(signal.SIGTERM) is before


def test_one_that_is_not_ready_in_time(tmp_path):
    (port,) = free_ports(1)
    slow = server.Launch(["/bin/sh", "-c", "echo reading weights; exec sleep 600"], {}, port)
    with (
        pytest.raises(BenchError, match=r"ready in time[\s\S]*raise --timeout[\s\S]*reading weights"),
        running({"host": slow}, tmp_path, seconds=1),
    ):
        pass


def test_one_that_cannot_be_started(tmp_path):
    odd = server.Launch([str(tmp_path / "absent")], {}, 1)
    with pytest.raises(BenchError, match="expected to start"), running({"host": odd}, tmp_path, seconds=1):
        pass


def test_memory_is_looked_at_first(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:       24683700 kB\nMemAvailable:    8388608 kB\n")
    require_memory(2, 3.5, tmp_path / "meminfo")
    require_memory(99, 3.5, tmp_path / "absent")
    with pytest.raises(BenchError, match=r"expected 10.5 GiB .* found 8.0; name fewer policies"):
        require_memory(3, 3.5, tmp_path / "meminfo")


def test_a_proxy_of_the_environment_is_not_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    (port,) = free_ports(1)
    with running({"host": launch(HEALTHY, port)}, tmp_path, seconds=30) as servers:
        servers["host"].check()
