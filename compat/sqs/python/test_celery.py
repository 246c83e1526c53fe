"""Celery with several worker processes, one of which is killed: every task's effect is found in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_app import OUT_OF_SIGHT
from conftest import discard
from support.server import Server, unique
from support.use import eventually

pytestmark = pytest.mark.celery

WORKERS = 3
PROCESSES = 2
ALL_DONE_WITHIN = 60


class Workers:
    """Worker processes, each the leader of a group so that it can be killed with its children."""

    def __init__(self, server: Server, traces: Path, queue: str) -> None:
        self.traces, self.queue = traces, queue
        self.environment = {
            **os.environ,
            "FOREBAY_TEST_SQS": server.endpoint,
            "COMPAT_CELERY_QUEUE": queue,
            "COMPAT_CELERY_TRACES": str(traces),
            "PYTHONPATH": str(Path(__file__).parent),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._logs = traces.parent

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--concurrency", str(PROCESSES)]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat", "-n", f"{name}@compat"]
        with (self._logs / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                command,
                env={**self.environment, "COMPAT_CELERY_WORKER": name},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        worker = self._running.pop(name)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def stop(self) -> None:
        for worker in self._running.values():
            worker.terminate()
        for name, worker in list(self._running.items()):
            try:
                worker.wait(timeout=15)
                self._running.pop(name)
            except subprocess.TimeoutExpired:
                self.kill(name)

    def said(self) -> str:
        return "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in sorted(self._logs.glob("*.log")))

    def seen(self, kind: str) -> list[tuple[str, str]]:
        """The tasks that began or ended, each with the worker that it was on."""
        found = [path.name.split(".") for path in self.traces.glob(f"{kind}.*")]
        return [(name, worker) for _, name, worker, _ in found]


@pytest.fixture
def workers(server: Server, sqs: Any, tmp_path: Path) -> Iterator[Workers]:
    queue = unique()
    traces = tmp_path / "traces"
    traces.mkdir()
    # The queue is there before the workers, which would otherwise all create it.
    url = sqs.create_queue(QueueName=queue, Attributes={"VisibilityTimeout": str(OUT_OF_SIGHT)})["QueueUrl"]
    made = Workers(server, traces, queue)
    yield made
    made.stop()
    discard(sqs, url)


def publish(workers: Workers, code: str) -> None:
    """Calls tasks from a process of its own, as a web application does."""
    subprocess.run(
        [sys.executable, "-c", f"from celery_app import flaky, work\n{code}"],
        env=workers.environment,
        check=True,
        timeout=60,
    )


def test_no_task_is_lost_with_its_worker(server: Server, sqs: Any, workers: Workers) -> None:
    for number in range(WORKERS):
        workers.start(f"w{number}")
    slow = [f"slow{n}" for n in range(12)]
    quick = [f"quick{n}" for n in range(30)]
    later = [f"later{n}" for n in range(5)]
    flaky = [f"flaky{n}" for n in range(5)]
    publish(
        workers,
        f"for name in {slow}: work.delay(name, 1.0)\n"
        f"for name in {quick}: work.delay(name, 0.01)\n"
        f"for name in {later}: work.apply_async((name, 0.01), countdown=2)\n"
        f"for name in {flaky}: flaky.delay(name)\n",
    )

    expected = {*slow, *quick, *later, *flaky}

    def half_done() -> set[str]:
        """What the first worker has begun and not ended."""
        began, done = ({name for name, worker in workers.seen(kind) if worker == "w0"} for kind in ("start", "end"))
        return {name for name in began - done if name in slow}

    def all_done() -> bool:
        return {name for name, _ in workers.seen("end")} >= expected

    try:
        eventually(half_done, seconds=30)
        workers.kill("w0")
        orphans = half_done()
        eventually(all_done, seconds=ALL_DONE_WITHIN)
    except AssertionError:
        missing = sorted(expected - {name for name, _ in workers.seen("end")})
        pytest.fail(f"tasks that were not done: {missing}\n{workers.said()}")
    assert orphans, "the worker was killed between two tasks"
    starts = Counter(name for name, _ in workers.seen("start"))
    assert all(starts[name] >= 2 for name in orphans), "somebody else began them anew"
    assert all(starts[name] >= 3 for name in flaky), "two retries each"
    # Nothing is left over: every message was deleted, once its task was done.
    url = sqs.get_queue_url(QueueName=workers.queue)["QueueUrl"]
    eventually(lambda: server.counts(url) == (0, 0, 0), seconds=20)
