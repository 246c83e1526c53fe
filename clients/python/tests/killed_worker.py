"""A worker that the test kills. It notes each job that it has done in a file, before the job is acked."""

from __future__ import annotations

import os
import sys

from forebay import Job, Worker

url, stream, notes = sys.argv[1:]
# One write of a short line is whole or not there, and is in the file although the process is killed.
file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
worker = Worker(stream, "g", server=url, concurrency=16, lease=5.0)


@worker.on_any
def handle(job: Job) -> None:
    os.write(file, f"{job.body} {os.getpid()}\n".encode())


worker.run()
