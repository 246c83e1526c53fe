"""A Celery application as people write it, with tasks that leave a trace: a file for each start and for each end."""

from __future__ import annotations

import os
import time
import urllib.parse
import uuid
from pathlib import Path

from celery import Celery, Task

QUEUE = os.environ.get("COMPAT_CELERY_QUEUE", "celery")
TRACES = Path(os.environ.get("COMPAT_CELERY_TRACES", "."))
# How long a message is out of sight, in seconds: longer than any task, and short enough to wait for.
OUT_OF_SIGHT = 5

_server = urllib.parse.urlsplit(os.environ.get("FOREBAY_TEST_SQS", "http://127.0.0.1:9324"))

app = Celery("compat", broker=f"sqs://test:test@{_server.netloc}")
app.conf.update(
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": _server.scheme == "https",
        "visibility_timeout": OUT_OF_SIGHT,
        "wait_time_seconds": 1,
        "polling_interval": 0.1,
    },
    broker_connection_retry_on_startup=True,
    task_default_queue=QUEUE,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
)


def trace(kind: str, name: str) -> None:
    """Says that a task began or ended. Each time is a file of its own, so that nothing is overwritten."""
    (TRACES / f"{kind}.{name}.{os.environ.get('COMPAT_CELERY_WORKER', '-')}.{uuid.uuid4().hex}").touch()


@app.task
def work(name: str, seconds: float) -> None:
    trace("start", name)
    time.sleep(seconds)
    trace("end", name)


@app.task(bind=True, max_retries=3, default_retry_delay=1)
def flaky(self: Task, name: str) -> None:
    """Fails twice, and then does not."""
    trace("start", name)
    if self.request.retries < 2:
        raise self.retry()
    trace("end", name)
