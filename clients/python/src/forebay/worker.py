"""The worker: receives messages of a group, runs a handler for each, renews leases meanwhile, and settles them."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from . import _calls
from ._calls import Call, Received, Settings
from ._server import PAUSE_MAX, pause_before_retry
from .aio import AsyncClient
from .errors import CertificateRejected, Conflict, Fault, ForebayError, Permanent, Transient

log = logging.getLogger("forebay.worker")

T = TypeVar("T")
Handler = Callable[["Job"], Awaitable[None] | None]
H = TypeVar("H", bound=Callable[..., Any])

#: How long one receive waits for messages.
LONG_POLL = 20.0
#: How many leases one call settles or extends.
LEASES_MAX = 1000
#: How many bytes of a reason the server keeps.
REASON_MAX = 512
#: How long the last settlements may take after everything else has ended.
FLUSH_WITHIN = 5.0


@dataclass
class Stats:
    """What became of messages since the worker began."""

    acked: int = 0
    retried: int = 0
    parked: int = 0
    skipped: int = 0
    returned: int = 0
    #: The lease had ended before the result arrived, so the result changed nothing.
    late: int = 0

    def count(self, outcome: str) -> None:
        name = {"retrying": "retried", "not_yours": "late"}.get(outcome, outcome)
        if hasattr(self, name):
            setattr(self, name, getattr(self, name) + 1)


class Job:
    """A message that this worker holds. `body` is the payload; `message` has everything else."""

    def __init__(self, message: Received, held_until: float) -> None:
        self.message = message
        self._held_until = held_until
        self._is_lost = False

    @property
    def body(self) -> Any:
        return self.message.body

    @property
    def seq(self) -> int:
        return self.message.seq

    @property
    def id(self) -> str | None:
        return self.message.id

    @property
    def key(self) -> str | None:
        return self.message.key

    @property
    def type(self) -> str | None:
        return self.message.type

    @property
    def attempt(self) -> int:
        """The number of this delivery, 1 for the first."""
        return self.message.attempt

    @property
    def is_redelivered(self) -> bool:
        """The message was delivered before in this group, so its work may have been begun, or done."""
        return self.message.redelivered

    @property
    def is_cancelled(self) -> bool:
        """The lease has ended, so another worker may have the message. The result of the handler changes nothing."""
        return self._is_lost or time.monotonic() > self._held_until


class _Route:
    def __init__(self, handler: Handler, timeout: float | None) -> None:
        self.handler = handler
        self.is_async = inspect.iscoroutinefunction(handler)
        self.timeout = timeout
        if timeout is not None and not self.is_async:
            raise ValueError(
                f"only an `async def` handler can have a timeout: a thread cannot be interrupted. "
                f"handler=`{getattr(handler, '__name__', handler)}`"
            )


class Worker:
    """Runs handlers for the messages of one group. Start as many processes as you like; the group shares the work.

    ```python
    worker = Worker("emails", "senders", concurrency=8, ensure_group={"max_retries": 5})

    @worker.on("email.send")
    def send(job):
        if "@" not in job.body["to"]:
            raise Permanent("not an email address")

    worker.run()
    ```

    - A handler that returns acks its message. An exception is a failure: a `Fault` says of which kind, any other is
      retried by the group's backoff.
    - `def` handlers run in threads, `async def` handlers on the event loop, `concurrency` of them at a time.
    - `lease` is how long a message stays with this worker without a sign of life. The worker renews leases while
      handlers run, so it may be short even if jobs are long.
    - `prefetch` is how many messages wait beside those that run; by default as many as run.
    - `ensure_group` creates the group, and its stream, with these settings. An existing group keeps its own; if one
      has another value, the worker logs a warning. `Client.change_group` changes them.
    """

    def __init__(
        self,
        stream: str,
        group: str,
        *,
        server: str | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        concurrency: int = 8,
        prefetch: int | None = None,
        lease: float = 30.0,
        ensure_group: Settings | None = None,
        name: str | None = None,
        shutdown_within: float = 25.0,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1. value=`{concurrency}`")
        if lease < 1.0:
            raise ValueError(f"lease must be at least 1 second. value=`{lease}`")
        self.stream, self.group = stream, group
        self.concurrency = concurrency
        self.prefetch = concurrency if prefetch is None else prefetch
        self.lease = lease
        self.shutdown_within = shutdown_within
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self.stats = Stats()
        self._ensure_group = ensure_group
        self._client = AsyncClient(server, token=token, tls=tls, retry_for=0)
        self._routes: dict[str | None, _Route] = {}
        self._stop: Callable[[], None] | None = None

    def on(self, *types: str, timeout: float | None = None) -> Callable[[H], H]:
        """The handler of messages with these types. `timeout`, in seconds, is for `async def` handlers only."""
        if not types:
            raise ValueError("`on` takes at least one type; `on_any` is for messages of every other type")

        def add(handler: H) -> H:
            for type in types:
                if type in self._routes:
                    raise ValueError(f"a type has one handler. type=`{type}`")
                self._routes[type] = _Route(handler, timeout)
            return handler

        return add

    def on_any(self, handler: H) -> H:
        """The handler of messages without a type, or with one that has no handler of its own."""
        if None in self._routes:
            raise ValueError("`on_any` is given twice")
        self._routes[None] = _Route(handler, None)
        return handler

    def run(self, *, idle: float | None = None) -> Stats:
        """Works until SIGINT or SIGTERM, or until there has been nothing to do for `idle` seconds.

        Running jobs get `shutdown_within` seconds to finish; a second signal ends the worker at once.
        """
        return asyncio.run(self._run_with_signals(idle))

    def stop(self) -> None:
        """Stops the worker as a signal does. May be called by any thread."""
        if self._stop is not None:
            self._stop()

    async def run_async(self, *, idle: float | None = None) -> Stats:
        """`run` on an event loop of your own, without signal handlers. Cancel it, or call `stop`, to end it."""
        if not self._routes:
            raise ValueError("the worker has no handler; use `@worker.on(type)` or `@worker.on_any`")
        loop, shift = asyncio.get_running_loop(), _Shift(self, idle)

        def stop() -> None:
            loop.call_soon_threadsafe(shift.stopping.set)

        self._stop = stop
        try:
            await shift.work()
        finally:
            self._stop = None
            await self._client.close()
        return self.stats

    async def _run_with_signals(self, idle: float | None) -> Stats:
        working = asyncio.ensure_future(self.run_async(idle=idle))

        def on_signal() -> None:
            if self._stop is None or stopped.is_set():
                working.cancel()
            else:
                stopped.set()
                log.info("stopping: waiting for running jobs")
                self._stop()

        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                try:
                    loop.add_signal_handler(number, on_signal)
                except NotImplementedError:  # Windows
                    signal.signal(number, lambda *_: loop.call_soon_threadsafe(on_signal) and None)
        try:
            return await working
        except asyncio.CancelledError:
            return self.stats


#: What becomes of a message that was not processed, by the outcome of its lease.
_BECOMES = {
    "retrying": "will be retried",
    "returned": "will be delivered again",
    "moving": "moved to another stream",
    "not_yours": "its lease had ended, so it will be delivered again",
    "unsent": "will be delivered again",
}


@dataclass
class _Failure:
    """A job that was not processed, until it is known what becomes of its message."""

    job: Job
    fault: Fault
    level: int
    error: Exception | None = None

    def log(self, stream: str, attempts_max: int | None, outcome: str) -> None:
        attempt, fault = self.job.attempt, self.fault
        # The setting may have been raised since the worker began.
        of = "" if attempts_max is None or attempt > attempts_max else f" of {attempts_max}"
        becomes = _BECOMES.get(outcome, outcome)
        # A retry was asked for, and none was left.
        is_last = fault.action == "retry" and outcome not in ("retrying", "not_yours", "unsent")
        level = logging.WARNING if is_last else self.level
        if self.error is not None:
            text = "message %s of %s failed: attempt %s%s, %s"
            log.log(level, text, self.job.seq, stream, attempt, of, becomes, exc_info=self.error)
        else:
            text = "message %s of %s: attempt %s%s, %s: %s: %s"
            log.log(level, text, self.job.seq, stream, attempt, of, becomes, type(fault).__name__, fault)


class _Shift:
    """One run of a worker: the tasks, and what they share."""

    def __init__(self, worker: Worker, idle: float | None) -> None:
        self.worker, self.idle = worker, idle
        self.stats, self.client = worker.stats, worker._client
        self.stopping = asyncio.Event()
        # Jobs that are waiting or running. Their leases are renewed.
        self.held: dict[str, Job] = {}
        self.room = asyncio.Event()
        self.waiting: asyncio.Queue[Job] = asyncio.Queue()
        # Leases to settle, by the fields of the call; acks have none.
        self.results: dict[str, list[str]] = {}
        self.has_results = asyncio.Event()
        # How many results have not been answered yet.
        self.unsettled = 0
        self.all_settled = asyncio.Event()
        self.all_settled.set()
        # Failures whose results have not been answered yet, by lease. They are logged with what became of the message.
        self.failures: dict[str, _Failure] = {}
        #: How often a message is delivered at most; `None` if that is not limited.
        self.attempts_max: int | None = None
        self.has_joined = False
        self.threads = ThreadPoolExecutor(worker.concurrency, thread_name_prefix="forebay-job")
        self.is_connected = True

    async def work(self) -> None:
        await self._join()
        receiving = asyncio.ensure_future(self._receive())
        renewing = asyncio.ensure_future(self._renew())
        settling = asyncio.ensure_future(self._settle())
        runners = [asyncio.ensure_future(self._run_jobs()) for _ in range(self.worker.concurrency)]
        stopping = asyncio.ensure_future(self.stopping.wait())
        tasks = [receiving, renewing, settling, *runners]
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            receiving.cancel()
            self._return_waiting()
            await self._finish_running()
            await self._end(runners)
            await self._flush()
        finally:
            await self._end([*tasks, stopping])
            self.threads.shutdown(wait=False, cancel_futures=True)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def _end(self, tasks: Iterable[asyncio.Future[Any]]) -> None:
        tasks = list(tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _join(self) -> None:
        worker, settings = self.worker, self.worker._ensure_group
        at = (worker.stream, worker.group)
        try:
            call = _calls.group(*at) if settings is None else _calls.create_group(*at, settings)
            group = await self._call(call)
        except Conflict as conflict:
            if conflict.kind != "settings-differ":
                raise
            log.warning("`ensure_group` changes nothing, because the group exists: %s", conflict.detail)
            group = await self._call(_calls.group(*at))
        retries = group["settings"]["max_retries"]
        self.attempts_max = retries + 1 if isinstance(retries, int) else None
        self.has_joined = True

    async def _call(self, call: Call[T]) -> T:
        """Carries out a call, however long the server is away. Raises what trying again cannot mend."""
        tries = 0
        while True:
            try:
                done = await self.client.call(call)
            except ForebayError as error:
                pause = pause_before_retry(call, error, tries)
                if pause is None and self.has_joined and isinstance(error, CertificateRejected):
                    # The server had a good certificate before. A worker waits until it has one again.
                    pause = PAUSE_MAX
                if pause is None:
                    raise
                if self.is_connected:
                    log.warning("trying again until the server answers: %s", error)
                self.is_connected = False
                tries += 1
            else:
                if not self.is_connected:
                    log.info("the server answers again")
                self.is_connected = True
                return done
            await asyncio.sleep(pause)

    async def _receive(self) -> None:
        worker, quiet_since = self.worker, time.monotonic()
        while True:
            room = worker.concurrency + worker.prefetch - len(self.held)
            if room <= 0:
                self.room.clear()
                await self.room.wait()
                continue
            wait = LONG_POLL if self.idle is None else min(LONG_POLL, self.idle)
            most = min(room, LEASES_MAX)
            at, lease = (worker.stream, worker.group), worker.lease
            call = _calls.receive(*at, max=most, wait=wait, timeout=lease, consumer=worker.name)
            messages = await self._call(call)
            now = time.monotonic()
            for message in messages:
                # A lease begins before its message arrives, so a part of it is over.
                job = Job(message, now + worker.lease * 0.9)
                self.held[message.lease] = job
                self.waiting.put_nowait(job)
            if messages or self.held:
                quiet_since = now
            elif self.idle is not None and now - quiet_since >= self.idle:
                self.stopping.set()

    async def _run_jobs(self) -> None:
        while True:
            job = await self.waiting.get()
            if job.is_cancelled:
                self._forget(job)
                continue
            try:
                failure = await self._outcome(job)
            except asyncio.CancelledError:
                self._done(job, {"action": "return"})
                raise
            if failure is None:
                self._done(job, None)
                continue
            self.failures[job.message.lease] = failure
            self._done(job, failure.fault.nack())

    async def _outcome(self, job: Job) -> _Failure | None:
        routes = self.worker._routes
        route = routes.get(job.type) or routes.get(None)
        if route is None:
            which = "messages without a type" if job.type is None else f"the type `{job.type}`"
            return _Failure(job, Permanent(f"no handler for {which}"), level=logging.WARNING)
        try:
            if route.is_async:
                await self._within(route.timeout, route.handler(job))  # type: ignore[arg-type]
            else:
                run = contextvars.copy_context().run
                await asyncio.get_running_loop().run_in_executor(self.threads, run, route.handler, job)
        except Fault as fault:
            return _Failure(job, fault, level=logging.INFO)
        except Exception as error:
            return _Failure(job, Transient(f"{type(error).__name__}: {error}"), level=logging.WARNING, error=error)
        return None

    def _log_failure(self, lease: str, outcome: str) -> None:
        failure = self.failures.pop(lease, None)
        if failure is not None:
            failure.log(self.worker.stream, self.attempts_max, outcome)

    @staticmethod
    async def _within(timeout: float | None, handler: Awaitable[None]) -> None:
        running = asyncio.ensure_future(handler)
        try:
            done, _ = await asyncio.wait([running], timeout=timeout)
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            raise
        if not done:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            raise Transient(f"timed out after {timeout:g} s")
        running.result()

    def _done(self, job: Job, nack: dict[str, Any] | None) -> None:
        if job.is_cancelled:
            self.stats.late += 1
            self._log_failure(job.message.lease, "not_yours")
            self._forget(job)
            return
        if nack is not None and "reason" in nack:
            nack["reason"] = nack["reason"].encode()[:REASON_MAX].decode(errors="ignore")
        self._forget(job)
        fields = "" if nack is None else json.dumps(nack, sort_keys=True)
        self.results.setdefault(fields, []).append(job.message.lease)
        self.unsettled += 1
        self.all_settled.clear()
        self.has_results.set()

    def _forget(self, job: Job) -> None:
        self.held.pop(job.message.lease, None)
        self.room.set()

    async def _settle(self) -> None:
        while True:
            await self.has_results.wait()
            self.has_results.clear()
            results, self.results = self.results, {}
            for fields, leases in results.items():
                for begin in range(0, len(leases), LEASES_MAX):
                    await self._settle_some(fields, leases[begin : begin + LEASES_MAX])

    async def _settle_some(self, fields: str, leases: list[str]) -> None:
        at = (self.worker.stream, self.worker.group, leases)
        call = _calls.nack(*at, **json.loads(fields)) if fields else _calls.ack(*at)
        outcomes = await self._call(call)
        for lease, outcome in zip(leases, outcomes, strict=True):
            self.stats.count(outcome)
            self._log_failure(lease, outcome)
        self.unsettled -= len(leases)
        if self.unsettled == 0:
            self.all_settled.set()

    async def _renew(self) -> None:
        worker = self.worker
        while True:
            await asyncio.sleep(worker.lease / 3)
            leases = [lease for lease, job in self.held.items() if not job.is_cancelled]
            for begin in range(0, len(leases), LEASES_MAX):
                some = leases[begin : begin + LEASES_MAX]
                asked = time.monotonic()
                outcomes = await self._call(_calls.extend(worker.stream, worker.group, some, worker.lease))
                for lease, outcome in zip(some, outcomes, strict=True):
                    job = self.held.get(lease)
                    if job is None:
                        continue
                    if outcome == "extended":
                        job._held_until = asked + worker.lease * 0.9
                    else:
                        job._is_lost = True
                        log.warning("the lease of message %s of %s is lost", job.seq, worker.stream)

    def _return_waiting(self) -> None:
        while not self.waiting.empty():
            self._done(self.waiting.get_nowait(), {"action": "return"})

    async def _finish_running(self) -> None:
        until = time.monotonic() + self.worker.shutdown_within
        while self.held and (left := until - time.monotonic()) > 0:
            self.room.clear()
            try:
                await asyncio.wait_for(self.room.wait(), left)
            except asyncio.TimeoutError:
                break

    async def _flush(self) -> None:
        """Waits until every result has been sent and answered."""
        try:
            await asyncio.wait_for(self.all_settled.wait(), FLUSH_WITHIN)
        except asyncio.TimeoutError:
            log.warning("%s results could not be sent; their messages will be delivered again", self.unsettled)
        for lease in list(self.failures):
            self._log_failure(lease, "unsent")
