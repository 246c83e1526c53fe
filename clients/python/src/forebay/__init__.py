"""Forebay for Python: publish messages, and work through them with competing consumers.

```python
from forebay import Client, Worker

Client().publish("emails", {"to": "ann@example.com"}, type="email.send")

worker = Worker("emails", "senders")

@worker.on("email.send")
def send(job):
    print("to", job.body["to"])

worker.run()
```
"""

from ._calls import Call, Message, Page, Parked, Published, Received, Stored
from .aio import AsyncClient
from .client import Client
from .errors import (
    Busy,
    CertificateRejected,
    Conflict,
    ConnectionFailed,
    Fault,
    ForebayError,
    NotFound,
    OutcomeUnknown,
    Permanent,
    Problem,
    RetryAfter,
    Skip,
    Snooze,
    Throttled,
    Transient,
)
from .worker import Job, Stats, Worker

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Busy",
    "Call",
    "CertificateRejected",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "Fault",
    "ForebayError",
    "Job",
    "Message",
    "NotFound",
    "OutcomeUnknown",
    "Page",
    "Parked",
    "Permanent",
    "Problem",
    "Published",
    "Received",
    "RetryAfter",
    "Skip",
    "Snooze",
    "Stats",
    "Stored",
    "Throttled",
    "Transient",
    "Worker",
]
