"""Every job is done although workers and the server are killed, and twice only if a kill fell between work and ack."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from forebay import Client, Message
from forebay.testing import Server

JOBS = int(os.environ.get("FOREBAY_TEST_JOBS", "3000"))
KILLS = int(os.environ.get("FOREBAY_TEST_KILLS", "3"))
ALL_DONE_WITHIN = 60 + JOBS / 50


class Workers:
    def __init__(self, url: str, notes: Path) -> None:
        self._command = [sys.executable, str(Path(__file__).parent / "killed_worker.py"), url, "jobs", str(notes)]
        source = str(Path(__file__).parent.parent / "src")
        self._environment = {**os.environ, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
        self.running: list[subprocess.Popen[bytes]] = []
        self.killed: set[int] = set()

    def start(self) -> None:
        self.running.append(subprocess.Popen(self._command, env=self._environment, stderr=subprocess.DEVNULL))

    def kill_one(self) -> None:
        worker = self.running.pop(0)
        worker.kill()
        worker.wait()
        self.killed.add(worker.pid)

    def stop(self) -> list[int]:
        for worker in self.running:
            worker.terminate()
        return [worker.wait(30) for worker in self.running]


def read_notes(notes: Path) -> dict[int, list[int]]:
    """The processes that did each job, in order."""
    done: dict[int, list[int]] = defaultdict(list)
    for line in notes.read_text().splitlines() if notes.exists() else ():
        job, pid = line.split()
        done[int(job)].append(int(pid))
    return done


@pytest.mark.slow
def test_every_job_is_done_whatever_is_killed(tmp_path: Path) -> None:
    notes, chance = tmp_path / "notes", random.Random(7)
    with Server(tmp_path / "data") as server, Client(server.url) as client:
        # By default a crash of the server may bring back what was acked in its last milliseconds.
        client.create_group("jobs", "g", max_retries=1000, acks="durable")
        workers = Workers(server.url, notes)
        for _ in range(2):
            workers.start()
        try:
            # A share of the jobs comes before each kill, so that every kill meets work.
            shares = 2 * KILLS + 1
            for share in range(shares):
                jobs = range(share * JOBS // shares, (share + 1) * JOBS // shares)
                for begin in range(jobs.start, jobs.stop, 100):
                    batch = [Message(job) for job in range(begin, min(begin + 100, jobs.stop))]
                    client.publish_batch("jobs", batch)
                time.sleep(chance.uniform(0.0, 0.3))
                if share == shares - 1:
                    break
                if share % 2 == 0:
                    workers.kill_one()
                    workers.start()
                else:
                    server.kill()
                    time.sleep(chance.uniform(0.0, 0.5))
                    server.start()
            until = time.monotonic() + ALL_DONE_WITHIN
            while client.group("jobs", "g")["lag"] > 0 and time.monotonic() < until:
                time.sleep(0.1)
        finally:
            codes = workers.stop()
        group = client.group("jobs", "g")

    done = read_notes(notes)
    assert sorted(done) == list(range(JOBS)), f"{JOBS - len(done)} jobs were not done"
    assert (group["lag"], group["in_flight"], group["parked"]) == (0, 0, 0)
    assert codes == [0, 0]
    # Of the runs of a job, all but the last were by processes that were killed before they had acked it.
    twice = {job: pids for job, pids in done.items() if len(pids) > 1}
    wrong = {job: pids for job, pids in twice.items() if not set(pids[:-1]) <= workers.killed}
    assert not wrong, f"done again although their worker lived: {wrong}"
    print(f"{JOBS} jobs, {KILLS} kills of workers, {KILLS} of the server: {len(twice)} jobs were done twice")
