"""The README's programs run, and print what it shows. The sources keep the rules of the project's tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.testing import Server

PACKAGE = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (PACKAGE / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def block(beginning: str) -> str:
    [found] = [text for _, text in BLOCKS if text.startswith(beginning)]
    return found


def run(program: str, tmp_path: Path, server: Server) -> str:
    file = tmp_path / "program.py"
    file.write_text(program)
    environment = {**os.environ, "FOREBAY_SERVER": server.url, "PYTHONPATH": str(PACKAGE / "src")}
    done = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_worker(tmp_path: Path, forebay_server: Server) -> None:
    assert run(block("from forebay import Client, Job"), tmp_path, forebay_server) == block("to ann@example.com")


def test_the_package_is_installed_as_shown(tmp_path: Path, forebay_server: Server) -> None:
    (tmp_path / "clients").mkdir()
    left_out = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "clients" / "python", ignore=left_out)
    (tmp_path / "mailer.py").write_text(block("from forebay import Client, Job"))
    steps = "set -e\n" + block("python3 -m venv venv").replace("pip ", "pip -q ") + block("python mailer.py")
    environment = {**os.environ, "FOREBAY_SERVER": forebay_server.url}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        ["sh", "-c", steps], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.stdout == block("to ann@example.com"), done.stdout + done.stderr


def test_the_client(tmp_path: Path, forebay_server: Server) -> None:
    program = block("from forebay import Client, Message").replace("127.0.0.1:7070", forebay_server.url)
    # The first message has a delay, so it is not received.
    assert run(program, tmp_path, forebay_server).splitlines() == ["2 {'sku': 'A-2'}", "3 b'\\x00\\x01'"]


def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_letters.py").write_text(block("from forebay import Client, Worker"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "forebay.testing",
        "-p",
        "no:cacheprovider",
        "test_letters.py",
    ]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    "tool",
    [["mypy", "--cache-dir", os.devnull], ["ruff", "check", "--no-cache"], ["ruff", "format", "--check", "--no-cache"]],
)
def test_the_tools_are_content(tool: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *tool], cwd=PACKAGE, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
