"""The HTTP API against its own OpenAPI document.

The document must be valid, and `schemathesis` makes requests from it: valid ones and invalid ones, one by one and in
chains in which one call uses what another answered. The server must never fail, and must answer as the document says.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from openapi_spec_validator import validate

STARTS_WITHIN = 30.0
# Requests that are made for each call. More of them find more, and take longer.
EXAMPLES = os.environ.get("FOREBAY_TEST_EXAMPLES", "25")
# Rules that a schema cannot state: the longest duration, settings that depend on each other, numbers beyond 63 bits.
# So a refusal of a request that fits the schema, or the other way round, is not a mistake by itself.
EXCLUDED = "positive_data_acceptance,negative_data_rejection"
# Calls whose answers do not end.
ENDLESS = ["/events", "/log/follow", "/streams/{stream}/follow"]
# A receive may wait for ten minutes, as asked, once a chain of calls has made its group.
WAITS = "/streams/{stream}/groups/{group}/receive"
# How many seconds chains and random requests may take; the cases that follow from the document are all played.
CHAINS_WITHIN = os.environ.get("FOREBAY_TEST_SECONDS", "45")


@pytest.fixture
def server():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % probe.getsockname()[1]
    words = ["serve", "--memory", "--listen", address, "--sqs", "none", "--kurrent", "none"]
    process = subprocess.Popen([os.environ["FOREBAY_BIN"], *words], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + STARTS_WITHIN
    url = f"http://{address}"
    while True:
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=5).close()
            break
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None and time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.02)
    yield url
    process.terminate()
    assert process.wait(timeout=60) == 0, "the server stops as asked"


def test_the_document_is_valid(server):
    with urllib.request.urlopen(f"{server}/openapi.json") as reply:
        validate(json.load(reply))


@pytest.mark.parametrize(
    ("phases", "more"),
    [
        ("examples,coverage", []),
        ("fuzzing,stateful", ["--exclude-path", WAITS, "--max-time", CHAINS_WITHIN]),
    ],
)
def test_generated_requests_are_answered_as_the_document_says(server, tmp_path, phases, more):
    words = [sys.executable, "-m", "schemathesis.cli", "run", f"{server}/openapi.json", "--phases", phases, *more]
    words += ["--max-examples", EXAMPLES, "--seed", "4711", "--request-timeout", "60", "--no-color"]
    words += ["--exclude-checks", EXCLUDED]
    for path in ENDLESS:
        words += ["--exclude-path", path]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]


def test_a_generated_client_publishes_consumes_and_understands_refusals(server, tmp_path, monkeypatch):
    with urllib.request.urlopen(f"{server}/openapi.json") as reply:
        (tmp_path / "openapi.json").write_bytes(reply.read())
    # The generator formats its files with a program beside it.
    programs = os.path.dirname(sys.executable)
    words = [os.path.join(programs, "openapi-python-client"), "generate", "--meta", "none"]
    words += ["--path", "openapi.json", "--output-path", "generated", "--fail-on-warning"]
    path = programs + os.pathsep + os.environ["PATH"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert ran.returncode == 0, ran.stdout + ran.stderr

    monkeypatch.syspath_prepend(tmp_path)
    from generated import Client, models
    from generated.api.consumers import ack, nack, receive
    from generated.api.groups import create_group, get_group
    from generated.api.parked import list_parked, replay_parked
    from generated.api.streams import publish

    client = Client(base_url=server)
    place = ("orders", "billing")
    created = create_group.sync(*place, client=client, body=models.GroupSettings(max_retries=0))
    assert isinstance(created, models.GroupReport)
    message = models.Message(body={"order": 17}, key="ann", type_="order.placed")
    stored = publish.sync("orders", client=client, body=models.PublishRequest(messages=[message]))
    assert [result.seq for result in stored.results] == [1]

    def lease():
        received = receive.sync(*place, client=client, body=models.ReceiveRequest(wait="10s"))
        (delivery,) = received.messages
        assert (delivery.seq, delivery.body, delivery.key) == (1, {"order": 17}, "ann")
        return delivery.lease

    nacked = nack.sync(*place, client=client, body=models.NackRequest(leases=[lease()], reason="no card"))
    assert nacked.results[0].outcome == models.Outcome.PARKED
    (parked,) = list_parked.sync(*place, client=client).parked
    assert (parked.seq, parked.reason) == (1, "no card")
    again = replay_parked.sync(*place, client=client, body={"all": True})
    assert not isinstance(again, models.Problem), again
    acked = ack.sync(*place, client=client, body=models.AckRequest(leases=[lease()]))
    assert acked.results[0].outcome == models.Outcome.ACKED
    report = get_group.sync(*place, client=client)
    assert (report.lag, report.parked) == (0, 0)

    missing = get_group.sync("orders", "nobody", client=client)
    assert isinstance(missing, models.Problem) and missing.type_ == "/problems/no-such-group"
    wrong = receive.sync(*place, client=client, body=models.ReceiveRequest(max_=0))
    assert isinstance(wrong, models.Problem) and wrong.status == 400
