"""A server for the tests, which they may kill, and a client of it.

`FOREBAY_BIN` names the program.
"""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid

import pytest
from kurrentdbclient import KurrentDBClient

STARTS_WITHIN = 60.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server with a data folder. It keeps its addresses when it is started again."""

    def __init__(self, folder):
        self.folder = folder
        self.port, self.native_port = free_port(), free_port()
        self.process = None
        self.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def url(self):
        return f"esdb://{self.address}?tls=false"

    @property
    def native(self):
        return f"http://127.0.0.1:{self.native_port}"

    def start(self):
        words = ["serve", "--data", str(self.folder), "--listen", f"127.0.0.1:{self.native_port}"]
        words += ["--sqs", "none", "--kurrent", self.address, "--drain-timeout", "1s"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        program = os.environ["FOREBAY_BIN"]
        self.process = subprocess.Popen([program, *words], stderr=subprocess.DEVNULL, env=environment)
        deadline = time.monotonic() + STARTS_WITHIN
        while True:
            try:
                urllib.request.urlopen(f"http://{self.address}/health/live", timeout=5).close()
                return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None and time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.02)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=60)

    def http(self, method, path, body=None, headers=None, native=False):
        """A request to the HTTP side of the port, or of the native API: its status, headers and body."""
        base = self.native if native else f"http://{self.address}"
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(base + path, data=data, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, dict(reply.headers), reply.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server for all tests that do not disturb it."""
    one = Server(tmp_path_factory.mktemp("server") / "data")
    yield one
    assert one.stop() == 0, "the server stops as asked"


@pytest.fixture
def own_server(tmp_path):
    """A server for a test that kills it or stops it."""
    one = Server(tmp_path / "data")
    yield one
    if one.process.poll() is None:
        one.kill()


@pytest.fixture
def client(server):
    with KurrentDBClient(server.url) as one:
        yield one


@pytest.fixture
def name():
    """A name that no other test uses."""
    return f"stream-{uuid.uuid4()}"
