"""The program of docs/guide/go.md: compiled, run, over a restart of the server, stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from forebay import Client
from forebay.testing import Server

PAGE = (Path(__file__).parent.parent.parent / "docs" / "guide" / "go.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def until(condition) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_the_worker(tmp_path: Path) -> None:
    [program] = [text for language, text in BLOCKS if language == "go"]
    [shown] = [text for _, text in BLOCKS if text.startswith("to ann@example.com")]
    (tmp_path / "mailer.go").write_text(program)
    environment = dict(os.environ)
    build = ["go", "build", "-o", "mailer", "mailer.go"]
    subprocess.run(build, cwd=tmp_path, env=environment, check=True, timeout=300)

    with Server(tmp_path / "data") as server, Client(server.url) as client:
        environment["FOREBAY_SERVER"] = server.url.removeprefix("http://")
        with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
            worker = subprocess.Popen([tmp_path / "mailer"], env=environment, stdout=out, stderr=err)
        try:
            client.publish("invitations", {"to": "ann@example.com"}, id="invite-1")
            client.publish("invitations", {"to": "bob"}, id="invite-2")
            assert until(lambda: client.group("invitations", "mailers")["parked"] == 1), (tmp_path / "err").read_text()
            assert until(lambda: (tmp_path / "out").read_text() == shown)
            assert client.parked_reasons("invitations", "mailers") == {"not an email address": 1}
            server.kill()
            server.start()
            client.publish("invitations", {"to": "carol@example.com"})
            assert until(lambda: "carol@example.com" in (tmp_path / "out").read_text())
            assert until(lambda: client.group("invitations", "mailers")["lag"] == 0)
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
