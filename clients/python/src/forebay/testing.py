"""A real server for tests. Installed as a pytest plugin: tests ask for `forebay_server` or `forebay_client`.

The server is the program `forebay`: the one that `FOREBAY_BIN` names, or the one on the PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .client import Client

if TYPE_CHECKING:
    import pytest
else:
    try:
        import pytest
    except ImportError:  # Without pytest the server can be used alone.
        pytest = None

STARTS_WITHIN = 30.0
STOPS_WITHIN = 15.0


class Server:
    """A server process on a free port of this machine, with a data folder of its own or in memory.

    `options` are further flags of `forebay serve`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        program: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        found = program or os.environ.get("FOREBAY_BIN") or shutil.which("forebay")
        if found is None:
            raise FileNotFoundError("the program `forebay` is not on the PATH; FOREBAY_BIN may name it")
        self.program = found
        self.options = tuple(options)
        self.folder = None if folder is None else Path(folder)
        # A server that is started again listens on the same port, so clients find it.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Server:
        """Starts the server, and returns when it listens."""
        where = ["--memory"] if self.folder is None else ["--data", str(self.folder)]
        command = [
            self.program,
            "serve",
            *where,
            "--listen",
            f"127.0.0.1:{self.port}",
            "--sqs",
            "none",
            "--kurrent",
            "none",
            "--log",
            "json",
            *self.options,
        ]
        # What it says is read to the end, so that it never waits for us.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._process = process
        said: list[str] = []
        listens = threading.Event()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if not listens.is_set():
                    said.append(line)
                    if _message(line).startswith("listening on"):
                        listens.set()

        threading.Thread(target=read, daemon=True).start()
        until = time.monotonic() + STARTS_WITHIN
        while not listens.wait(0.05):
            if process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"the server did not start:\n{''.join(said)}")
        return self

    def stop(self) -> None:
        """Stops the server with SIGTERM."""
        if (process := self._process) is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOPS_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._process = None

    def kill(self) -> None:
        """Kills the server with SIGKILL, as a crash would."""
        if (process := self._process) is not None:
            process.kill()
            process.wait()
            self._process = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _message(line: str) -> str:
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError, TypeError):
        return ""


if pytest is not None:

    @pytest.fixture(scope="session")
    def forebay_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        """A server for all tests of the session. Use stream names of your own in each test."""
        with Server(tmp_path_factory.mktemp("forebay") / "data") as server:
            yield server

    @pytest.fixture
    def forebay_client(forebay_server: Server) -> Iterator[Client]:
        """A client of `forebay_server`."""
        with Client(forebay_server.url) as client:
            yield client
