"""The program of docs/guide/migrating.md, run as the page shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from forebay import Client
from forebay.testing import Server

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "guide" / "migrating.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_worker_after_the_move(tmp_path: Path) -> None:
    [program] = [text for _, text in BLOCKS if text.startswith("from forebay")]
    [shown] = [text for language, text in BLOCKS if text.startswith("charged order")]
    (tmp_path / "billing.py").write_text(program)
    with Server(tmp_path / "data") as server, Client(server.url) as client:
        environment = {**os.environ, "FOREBAY_SERVER": server.url, "PYTHONPATH": str(ROOT / "clients/python/src")}
        run = [sys.executable, "billing.py"]
        done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, shown), done.stderr
        assert client.parked_reasons("payments", "billing") == {"the order has no card": 1}


def test_every_setting_that_the_page_names_exists() -> None:
    settings = (ROOT / "docs" / "reference" / "group-settings.md").read_text()
    for name in ["message_timeout", "max_retries", "on_exhausted.move", "backoff", "rate"]:
        assert f"`{name}`" in PAGE and f"| `{name}` |" in settings, name
