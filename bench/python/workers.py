"""Jobs a second of workers in Python: the package `forebay` beside Celery on Redis, in one run on one machine.

For each contender a server is started with a folder of its own, one client publishes jobs one at a time and then,
where that can be done, in batches, and then two worker processes work them off. The handler writes one byte to a
file, so that the size of the file is the number of jobs that were done, by any worker. Time and processor time
count from the first job that was done to the last. The contenders take turns, and the median of the rounds is
shown.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
BODY = {"to": "ann@example.com", "template": "welcome", "order": 17}
BATCH = 100
PROCESSES = 2
THREADS = 8
PATIENCE = 300.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Figures:
    """What was measured, a number for each round. Rates are jobs a second, costs are microseconds of a core a job."""

    single: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    worker_cost: list[float] = field(default_factory=list)
    server_cost: list[float] = field(default_factory=list)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    until = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


@contextmanager
def running(command: list[str], count: int = 1, **variables: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that end with the block."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            processes.append(
                subprocess.Popen(
                    command, env=environment, cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def seconds_of_core(pid: int) -> float:
    """The processor time of a process and all below it, as far as they live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS + sum(map(seconds_of_core, children))


def timed(jobs: int, publish: Callable[[], None]) -> float:
    begun = time.perf_counter()
    publish()
    return jobs / (time.perf_counter() - begun)


def drain(
    jobs: int, done: Path, workers: list[str], server: int, count: int, figures: Figures, **variables: str
) -> None:
    """Starts workers and measures until every job was done once."""
    done.write_bytes(b"")
    with running(workers, count, **variables) as processes:
        pids = [process.pid for process in processes]
        until = time.monotonic() + PATIENCE
        while done.stat().st_size == 0:
            if time.monotonic() > until:
                raise TimeoutError("no job was done")
            time.sleep(0.002)
        first, begun = done.stat().st_size, time.perf_counter()
        workers_before, server_before = sum(map(seconds_of_core, pids)), seconds_of_core(server)
        while done.stat().st_size < jobs:
            if time.monotonic() > until:
                raise TimeoutError(f"{jobs - done.stat().st_size} jobs were not done")
            time.sleep(0.005)
        took, counted = time.perf_counter() - begun, jobs - first
        figures.done.append(counted / took)
        figures.worker_cost.append((sum(map(seconds_of_core, pids)) - workers_before) / counted * 1e6)
        figures.server_cost.append((seconds_of_core(server) - server_before) / counted * 1e6)
        # A job that was done twice would come late.
        time.sleep(0.5)
    if done.stat().st_size != jobs:
        raise AssertionError(f"{done.stat().st_size - jobs} jobs were done twice")


def with_forebay(arguments: argparse.Namespace, kind: str, folder: Path, figures: Figures) -> None:
    from forebay import Client, Message

    port, jobs, singles = free_port(), arguments.jobs, arguments.singles
    listen, data = f"127.0.0.1:{port}", str(folder / "data")
    server = [arguments.forebay, "serve", "--data", data, "--listen", listen, "--sqs", "none", "--kurrent", "none"]
    with running(server) as [process]:
        wait_for(port)
        with Client(f"127.0.0.1:{port}") as client:
            client.create_group("jobs", "workers")

            def one_at_a_time() -> None:
                for _ in range(singles):
                    client.publish("jobs", BODY)

            def in_batches() -> None:
                for begin in range(singles, jobs, BATCH):
                    client.publish_batch("jobs", [Message(BODY) for _ in range(min(BATCH, jobs - begin))])

            figures.single.append(timed(singles, one_at_a_time))
            figures.batch.append(timed(jobs - singles, in_batches))
        worker = [sys.executable, "forebay_worker.py", listen, kind, str(THREADS), str(folder / "done")]
        drain(jobs, folder / "done", worker, process.pid, PROCESSES, figures)


def with_celery(arguments: argparse.Namespace, sync: str, folder: Path, figures: Figures) -> None:
    port, jobs, singles = free_port(), arguments.jobs, arguments.singles
    (folder / "redis").mkdir()
    server = [arguments.redis, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder / "redis")]
    server += ["--save", "", "--appendonly", "yes", "--appendfsync", sync]
    broker = {"BENCH_BROKER": f"redis://127.0.0.1:{port}/0", "BENCH_DONE": str(folder / "done")}
    with running(server) as [process]:
        wait_for(port)
        os.environ.update(broker)
        from celery_worker import app, work

        app.conf.broker_url = broker["BENCH_BROKER"]
        with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:

            def publish(count: int) -> None:
                for _ in range(count):
                    work.apply_async((BODY,), producer=producer)

            figures.single.append(timed(singles, lambda: publish(singles)))
            publish(jobs - singles)
        worker = [sys.executable, "-m", "celery", "-A", "celery_worker", "worker", "--loglevel", "ERROR"]
        # The pool that Celery has by default: a process for each job that runs.
        worker += ["--concurrency", str(PROCESSES), "--without-gossip", "--without-mingle", "--without-heartbeat"]
        drain(jobs, folder / "done", worker, process.pid, 1, figures, **broker)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", required=True, help="the program of the server")
    parser.add_argument("--redis", required=True, help="the program of Redis's server")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--singles", type=int, default=2_000, help="how many of them are published one at a time")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    contenders: dict[str, tuple[Callable[[argparse.Namespace, str, Path, Figures], None], str]] = {
        "forebay, `def` handlers": (with_forebay, "threads"),
        "forebay, `async def` handlers": (with_forebay, "async"),
        "Celery on Redis, synced every second": (with_celery, "everysec"),
        "Celery on Redis, synced always": (with_celery, "always"),
    }
    figures = {name: Figures() for name in contenders}
    for nth in range(arguments.rounds):
        for name, (measure, kind) in contenders.items():
            with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
                measure(arguments, kind, Path(folder), figures[name])
            print(f"round {nth + 1}, {name}: {figures[name].done[-1]:,.0f} jobs/s", file=sys.stderr)
    print(f"{arguments.jobs:,} jobs, {PROCESSES} worker processes, median of {arguments.rounds} rounds\n")
    print("| | published one at a time | in batches of 100 | done | worker CPU a job | server CPU a job |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, one in figures.items():
        rate = lambda numbers: f"{statistics.median(numbers):,.0f}/s" if numbers else "–"  # noqa: E731
        cost = lambda numbers: f"{statistics.median(numbers):,.0f} µs"  # noqa: E731
        cells = [rate(one.single), rate(one.batch), rate(one.done), cost(one.worker_cost), cost(one.server_cost)]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
