"""The worker: what becomes of messages, leases, shutdown."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from forebay import Client, Job, NotFound, Permanent, RetryAfter, Skip, Snooze, Stats, Throttled, Worker
from forebay.testing import Server

QUICK = {"max_retries": 3, "backoff": {"min": "1ms", "max": "10ms"}}


def worker_of(server: Server, stream: str, **more: Any) -> Worker:
    return Worker(stream, "g", **{"server": server.url, "ensure_group": QUICK, **more})


def run(worker: Worker) -> Stats:
    return worker.run(idle=0.3)


def test_handlers_are_found_by_type(forebay_server: Server, forebay_client: Client, stream: str) -> None:
    seen: list[tuple[str, Any]] = []
    worker = worker_of(forebay_server, stream)

    @worker.on("a")
    def in_a_thread(job: Job) -> None:
        seen.append(("thread", job.body))

    @worker.on("b", "c")
    async def on_the_loop(job: Job) -> None:
        await asyncio.sleep(0)
        seen.append(("loop", job.body))

    for type in ("a", "b", "c", "d", None):
        forebay_client.publish(stream, type, type=type)
    stats = run(worker)
    assert sorted(seen) == [("loop", "b"), ("loop", "c"), ("thread", "a")]
    assert (stats.acked, stats.parked) == (3, 2)
    assert set(forebay_client.parked_reasons(stream, "g")) == {
        "no handler for the type `d`",
        "no handler for messages without a type",
    }


def test_faults_say_what_becomes_of_a_message(forebay_server: Server, forebay_client: Client, stream: str) -> None:
    tries: dict[str, int] = {}
    worker = worker_of(forebay_server, stream)
    first = {
        "permanent": Permanent("bad address"),
        "skip": Skip("not ours"),
        "retry_after": RetryAfter(0.05, "busy"),
        "snooze": Snooze(0.05),
        "throttled": Throttled(0.05, "429"),
        "error": RuntimeError("boom"),
    }

    @worker.on_any
    def handle(job: Job) -> None:
        tries[job.body] = tries.get(job.body, 0) + 1
        if tries[job.body] == 1:
            raise first[job.body]
        assert job.attempt == (2 if job.body in ("retry_after", "error") else 1)

    for name in first:
        forebay_client.publish(stream, name)
    stats = run(worker)
    assert (stats.acked, stats.parked, stats.skipped, stats.retried, stats.returned) == (4, 1, 1, 2, 2)
    assert forebay_client.parked_reasons(stream, "g") == {"bad address": 1}
    assert tries == {"permanent": 1, "skip": 1, "retry_after": 2, "snooze": 2, "throttled": 2, "error": 2}


def test_a_message_that_always_fails_is_parked_with_the_error(
    forebay_server: Server, forebay_client: Client, stream: str
) -> None:
    worker = worker_of(forebay_server, stream)

    @worker.on_any
    async def handle(job: Job) -> None:
        raise ValueError("ü" * 1000)

    forebay_client.publish(stream, 1)
    stats = run(worker)
    assert (stats.retried, stats.parked) == (3, 1)
    [dead] = forebay_client.parked_all(stream, "g")
    assert dead.reason is not None and dead.reason.startswith("ValueError: üü") and len(dead.reason.encode()) <= 512


def test_an_async_handler_may_have_a_timeout(forebay_server: Server, forebay_client: Client, stream: str) -> None:
    worker = worker_of(forebay_server, stream, ensure_group={**QUICK, "max_retries": 0})

    @worker.on("slow", timeout=0.05)
    async def handle(job: Job) -> None:
        await asyncio.sleep(60)

    forebay_client.publish(stream, 1, type="slow")
    assert run(worker).parked == 1
    assert forebay_client.parked_reasons(stream, "g") == {"timed out after 0.05 s": 1}


def test_leases_are_renewed_while_a_handler_runs(forebay_server: Server, forebay_client: Client, stream: str) -> None:
    worker = worker_of(forebay_server, stream, lease=1.0)
    attempts: list[int] = []

    @worker.on_any
    def handle(job: Job) -> None:
        attempts.append(job.attempt)
        time.sleep(2.5)
        assert not job.is_cancelled

    forebay_client.publish(stream, 1)
    stats = worker.run(idle=0.5)
    assert (attempts, stats.acked, stats.late) == ([1], 1, 0)


def test_a_lost_lease_is_told(forebay_server: Server, forebay_client: Client, stream: str) -> None:
    worker = worker_of(forebay_server, stream, lease=1.0)
    seen: list[bool] = []

    @worker.on_any
    def handle(job: Job) -> None:
        if job.attempt == 1 and not seen:
            # An operator takes the message away.
            forebay_client.purge(stream)
            until = time.monotonic() + 5
            while not job.is_cancelled and time.monotonic() < until:
                time.sleep(0.02)
            seen.append(job.is_cancelled)

    forebay_client.publish(stream, 1)
    stats = worker.run(idle=0.5)
    assert (seen, stats.acked, stats.late) == ([True], 0, 1)


def test_as_many_jobs_run_as_allowed(forebay_server: Server, forebay_client: Client, stream: str) -> None:
    worker = worker_of(forebay_server, stream, concurrency=3)
    lock, now, most = threading.Lock(), 0, 0

    @worker.on_any
    def handle(job: Job) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1

    for n in range(12):
        forebay_client.publish(stream, n)
    assert (run(worker).acked, most) == (12, 3)


def test_a_stop_finishes_running_jobs_and_returns_the_others(
    forebay_server: Server, forebay_client: Client, stream: str
) -> None:
    worker = worker_of(forebay_server, stream, concurrency=1, prefetch=5)
    begun = threading.Event()
    done: list[int] = []

    @worker.on_any
    def handle(job: Job) -> None:
        begun.set()
        time.sleep(0.5)
        done.append(job.seq)

    for n in range(4):
        forebay_client.publish(stream, n)
    running = threading.Thread(target=worker.run)
    running.start()
    assert begun.wait(10)
    worker.stop()
    running.join(10)
    assert not running.is_alive()
    assert (done, worker.stats.acked, worker.stats.returned) == ([1], 1, 3)
    # At once, and without having lost an attempt.
    again = forebay_client.receive(stream, "g", max=10, wait=5)
    assert [(one.seq, one.attempt) for one in again] == [(2, 1), (3, 1), (4, 1)]


def test_a_job_that_does_not_end_is_returned(forebay_server: Server, forebay_client: Client, stream: str) -> None:
    worker = worker_of(forebay_server, stream, shutdown_within=0.2)
    cancelled: list[int] = []

    @worker.on_any
    async def handle(job: Job) -> None:
        worker.stop()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(job.seq)
            raise

    forebay_client.publish(stream, 1)
    assert (worker.run().returned, cancelled) == (1, [1])
    [message] = forebay_client.receive(stream, "g", wait=5)
    assert message.attempt == 1


def test_an_existing_group_keeps_its_settings(forebay_server: Server, forebay_client: Client, stream: str) -> None:
    forebay_client.create_group(stream, "g", max_retries=7)
    worker = worker_of(forebay_server, stream)
    worker.on_any(lambda job: None)
    run(worker)
    assert forebay_client.group(stream, "g")["settings"]["max_retries"] == 7


def test_mistakes_are_told_at_once(forebay_server: Server, forebay_client: Client, stream: str) -> None:
    with pytest.raises(ValueError, match="concurrency must be at least 1"):
        Worker("s", "g", concurrency=0)
    with pytest.raises(ValueError, match="lease must be at least 1 second"):
        Worker("s", "g", lease=0.5)
    worker = Worker(stream, "g", server=forebay_server.url)
    with pytest.raises(ValueError, match="no handler"):
        worker.run()
    with pytest.raises(ValueError, match="thread cannot be interrupted"):
        worker.on("a", timeout=1)(lambda job: None)
    worker.on("a")(lambda job: None)
    with pytest.raises(ValueError, match="one handler"):
        worker.on("a")(lambda job: None)
    with pytest.raises(NotFound):
        worker.run()
    # A group that goes while the worker runs ends it.
    forebay_client.create_group(stream, "g")
    ended: list[BaseException] = []

    def run_it() -> None:
        try:
            worker.run()
        except NotFound as error:
            ended.append(error)

    running = threading.Thread(target=run_it)
    running.start()
    until = time.monotonic() + 10
    while forebay_client.group(stream, "g")["consumer_count"] == 0 and time.monotonic() < until:
        time.sleep(0.02)
    forebay_client.delete_group(stream, "g")
    running.join(40)
    assert len(ended) == 1


def test_the_log_says_what_becomes_of_a_failed_message(
    forebay_server: Server, forebay_client: Client, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_of(forebay_server, stream, ensure_group={**QUICK, "max_retries": 1})

    @worker.on("raises")
    def fails(job: Job) -> None:
        raise RuntimeError("boom")

    @worker.on("asks")
    def asks(job: Job) -> None:
        raise RetryAfter(0.01, "busy")

    @worker.on("refuses")
    def refuses(job: Job) -> None:
        raise Permanent("bad address")

    for type in ("raises", "asks", "refuses", "unknown"):
        forebay_client.publish(stream, 1, type=type)
    caplog.set_level("INFO", logger="forebay.worker")
    run(worker)
    said = [(one.levelname, one.getMessage(), one.exc_info is not None) for one in caplog.records]
    assert sorted(said) == [
        ("INFO", f"message 2 of {stream}: attempt 1 of 2, will be retried: RetryAfter: busy", False),
        ("INFO", f"message 3 of {stream}: attempt 1 of 2, parked: Permanent: bad address", False),
        ("WARNING", f"message 1 of {stream} failed: attempt 1 of 2, will be retried", True),
        ("WARNING", f"message 1 of {stream} failed: attempt 2 of 2, parked", True),
        ("WARNING", f"message 2 of {stream}: attempt 2 of 2, parked: RetryAfter: busy", False),
        (
            "WARNING",
            f"message 4 of {stream}: attempt 1 of 2, parked: Permanent: no handler for the type `unknown`",
            False,
        ),
    ]


def test_a_group_that_exists_keeps_its_settings_and_the_worker_says_so(
    forebay_server: Server, forebay_client: Client, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    forebay_client.create_group(stream, "g", max_retries=2)
    same = worker_of(forebay_server, stream, ensure_group={"max_retries": 2})
    same.on_any(lambda job: None)
    run(same)
    assert caplog.messages == []
    other = worker_of(forebay_server, stream, ensure_group={"max_retries": 7})
    other.on_any(lambda job: None)
    run(other)
    assert caplog.messages == [
        "`ensure_group` changes nothing, because the group exists: "
        f"max_retries of the existing group {stream}/g has another value. value=`2` requested=`7`"
    ]
    assert forebay_client.group(stream, "g")["settings"]["max_retries"] == 2
