"""A worker of the package `forebay` with a handler that writes one byte."""

from __future__ import annotations

import os
import sys

from forebay import Job, Worker

server, kind, concurrency, done = sys.argv[1:]
file = os.open(done, os.O_WRONLY | os.O_APPEND)
worker = Worker("jobs", "workers", server=server, concurrency=int(concurrency))

if kind == "async":

    @worker.on_any
    async def handle(job: Job) -> None:
        os.write(file, b".")

else:

    @worker.on_any
    def handle(job: Job) -> None:
        os.write(file, b".")


worker.run()
