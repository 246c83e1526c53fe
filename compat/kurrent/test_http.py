"""The HTTP side of version 4, by hand, beside the official client for Python."""

import json
import uuid

import pytest
from kurrentdbclient.exceptions import NotFoundError, StreamIsDeletedError


def one_event(number, version=None):
    headers = {"content-type": "application/json", "ES-EventType": "Tested", "ES-EventId": str(uuid.uuid4())}
    if version is not None:
        headers["ES-ExpectedVersion"] = str(version)
    return json.dumps({"n": number}).encode(), headers


def test_one_event_is_posted_with_headers(server, client, name):
    body, headers = one_event(1, version=-1)
    status, answer, _ = server.http("POST", f"/streams/{name}", body, headers)
    assert (status, answer["location"]) == (201, f"http://{server.address}/streams/{name.replace('-', '%2D')}/0")
    (got,) = client.get_stream(name)
    assert (str(got.id), got.type, got.data) == (headers["ES-EventId"], "Tested", body)
    assert got.content_type == "application/json"


def test_several_events_are_posted_as_a_list(server, client, name):
    listed = [
        {"eventId": str(uuid.uuid4()), "eventType": "Tested", "data": {"n": n}, "metadata": {"m": n}} for n in range(3)
    ]
    headers = {"content-type": "application/vnd.eventstore.events+json", "ES-ExpectedVersion": "-2"}
    assert server.http("POST", f"/streams/{name}", listed, headers)[0] == 201
    got = client.get_stream(name)
    assert [json.loads(one.data) for one in got] == [{"n": n} for n in range(3)]
    assert [json.loads(one.metadata) for one in got] == [{"m": n} for n in range(3)]


def test_the_expected_version_is_checked(server, name):
    def post(number, version):
        status, answer, _ = server.http("POST", f"/streams/{name}", *one_event(number, version))
        return status, answer.get("es-currentversion")

    assert post(0, 0) == (400, "-1")
    assert post(0, -4) == (400, "-1")
    assert post(0, -1) == (201, None)
    assert post(1, -1) == (400, "0")
    assert post(1, 0) == (201, None)
    assert post(2, -4) == (201, None)
    assert post(3, None) == (201, None)
    assert post(4, -3) == (400, None)


def test_a_post_that_is_repeated_is_answered_as_the_first_time(server, client, name):
    body, headers = one_event(1, version=-1)
    first = server.http("POST", f"/streams/{name}", body, headers)
    again = server.http("POST", f"/streams/{name}", body, headers)
    assert first[0] == again[0] == 201
    assert first[1]["location"] == again[1]["location"]
    assert len(client.get_stream(name)) == 1


@pytest.mark.parametrize(
    ("missing", "value"), [("ES-EventId", None), ("ES-EventId", "x"), ("ES-EventType", None), ("body", b"{")]
)
def test_what_is_wrong_with_a_post_is_said(server, name, missing, value):
    body, headers = one_event(1)
    if missing == "body":
        body = value
    elif value is None:
        del headers[missing]
    else:
        headers[missing] = value
    status, _, said = server.http("POST", f"/streams/{name}", body, headers)
    assert status == 400 and (missing in said.decode() or b"JSON" in said)


def test_a_stream_is_deleted(server, client, name):
    server.http("POST", f"/streams/{name}", *one_event(1))
    assert server.http("DELETE", f"/streams/{name}")[0] == 204
    with pytest.raises(NotFoundError):
        client.get_stream(name)
    assert server.http("DELETE", f"/streams/{name}", headers={"ES-HardDelete": "true"})[0] == 204
    with pytest.raises(StreamIsDeletedError):
        client.get_stream(name)
    assert server.http("POST", f"/streams/{name}", *one_event(1))[0] == 410


def test_pages_of_other_sites_are_refused(server, name):
    body, headers = one_event(1)
    status, _, said = server.http("POST", f"/streams/{name}", body, headers | {"origin": "http://other.example"})
    assert status == 403 and b"origin" in said
    assert server.http("GET", "/nothing")[0] == 404
