"""A Celery application with a task that writes one byte. A message is acked after its task, as Forebay does it."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)
file = os.open(os.environ["BENCH_DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.task
def work(body: dict[str, object]) -> None:
    os.write(file, b".")
