"""The errors of calls, and the faults with which a handler says what becomes of a message."""

from __future__ import annotations

from typing import Any


class ForebayError(Exception):
    """The base of every error that a call raises."""


class ConnectionFailed(ForebayError):
    """The server could not be reached, or the connection broke before the request was sent. Nothing was done."""


class CertificateRejected(ConnectionFailed):
    """The certificate of the server is not trusted, or is not one for its name. Raised at once, without retries."""


class OutcomeUnknown(ForebayError):
    """The connection broke after the request was sent. The server may have carried it out or not.

    A client repeats calls that are safe to repeat by itself; this error is raised for the others, and for safe ones
    when `retry_for` is over.
    """


class Problem(ForebayError):
    """The server refused the call. The attributes are those of its problem document (RFC 9457)."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        self.status = status
        #: The kind of the problem, as in `no-such-stream`; docs/reference/problems.md lists them.
        self.kind = str(document.get("type", "")).rpartition("/")[2]
        self.title = str(document.get("title", ""))
        self.detail = str(document.get("detail", ""))
        #: What to do: `never` (fix the request), `later`, or `same_id` (repeat it with the same message ids).
        self.retry = str(document.get("retry", "never"))
        #: The field, setting or parameter that is wrong.
        self.field: str | None = document.get("field")
        #: After how many seconds the server may accept the call, if it knows.
        self.retry_after: float | None = document.get("retry_after")
        #: The last position of the stream, for problems about positions.
        self.last_seq: int | None = document.get("last_seq")
        where = f" field=`{self.field}`" if self.field and self.field not in self.detail else ""
        super().__init__(f"{self.detail or self.title}{where} ({self.kind or 'status'}, {status})")


class NotFound(Problem):
    """The stream, group, job or parked message does not exist."""


class Conflict(Problem):
    """The call contradicts the state of the server, as in `settings-differ` or `wrong-last-seq`."""


class Busy(Problem):
    """The server cannot take the call now: a limit is reached, the stream is full, or the server stops."""


def problem(status: int, document: dict[str, Any]) -> Problem:
    """The error for a refused call, of the class that callers tell apart."""
    kinds: dict[int, type[Problem]] = {404: NotFound, 409: Conflict, 429: Busy, 503: Busy, 507: Busy}
    return kinds.get(status, Problem)(status, document)


class Fault(Exception):
    """Raised by a handler to say what becomes of its message. Any other exception counts as `Transient`."""

    #: The action of the nack.
    action = "retry"

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        #: Stored with the message. Use the same text for the same problem, because reasons are counted by text.
        self.reason = reason

    def nack(self) -> dict[str, Any]:
        """The fields of the nack, beside the leases."""
        fields: dict[str, Any] = {"action": self.action}
        if self.reason:
            fields["reason"] = self.reason
        return fields


class Transient(Fault):
    """The message is retried, by the group's backoff. Costs an attempt."""


class RetryAfter(Fault):
    """The message is retried after so many seconds. Costs an attempt."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason)
        self.seconds = seconds

    def nack(self) -> dict[str, Any]:
        return {**super().nack(), "delay": _duration(self.seconds)}


class Permanent(Fault):
    """The message is parked as a dead letter, where it waits for a person."""

    action = "park"


class Skip(Fault):
    """The message is settled without being processed."""

    action = "skip"


class Snooze(Fault):
    """The message is offered again after so many seconds. Costs no attempt."""

    action = "return"

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason)
        self.seconds = seconds

    def nack(self) -> dict[str, Any]:
        # A return is not a failure, so the server keeps no reason for it.
        return {"action": self.action, "delay": _duration(self.seconds)}


class Throttled(Snooze):
    """A service that the handler needs asks for a rest: the whole group delivers nothing for so many seconds.

    The server limits the rest to five minutes. Costs no attempt.
    """

    def __init__(self, seconds: float = 1.0, reason: str = "") -> None:
        super().__init__(seconds, reason)

    def nack(self) -> dict[str, Any]:
        return {**super().nack(), "rest": _duration(min(self.seconds, 300))}


def _duration(seconds: float) -> str:
    from ._calls import duration

    return duration(seconds)
