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


# Subscriptions


COMPETING = "application/vnd.eventstore.competingatom+json"


def links_of(feed):
    return {link["relation"]: link["uri"] for link in feed["links"]}


@pytest.fixture
def subscription(server, name):
    """The path of a subscription to five events."""
    listed = [{"eventId": str(uuid.uuid4()), "eventType": "Tested", "data": {"n": n}} for n in range(5)]
    headers = {"content-type": "application/vnd.eventstore.events+json"}
    assert server.http("POST", f"/streams/{name}", listed, headers)[0] == 201
    path = f"/subscriptions/{name}/g"
    assert server.http("PUT", path, {"maxSubscriberCount": 1})[0] == 201
    return path


def feed_of(server, path):
    status, headers, body = server.http("GET", path, headers={"accept": COMPETING})
    assert (status, headers["content-type"]) == (200, COMPETING)
    return json.loads(body)


def test_subscriptions_are_listed_in_pages(server, subscription):
    status, _, body = server.http("GET", "/subscriptions?offset=0&count=1")
    page = json.loads(body)
    assert status == 200 and set(page) == {"links", "offset", "count", "total", "subscriptions"}
    assert (page["offset"], page["count"], len(page["subscriptions"])) == (0, 1, 1)
    assert page["total"] == len(json.loads(server.http("GET", "/subscriptions")[2])) >= 1
    beyond = json.loads(server.http("GET", f"/subscriptions?offset={page['total']}&count=5")[2])
    assert beyond["subscriptions"] == []
    for query in ["offset=0", "offset=0&count=0", "count=x"]:
        assert server.http("GET", f"/subscriptions?{query}")[0] == 400, query
    assert server.http("GET", f"/subscriptions/{uuid.uuid4()}")[0] == 404


def test_a_feed_has_the_addresses_that_answer_for_all_of_it(server, subscription):
    feed = feed_of(server, f"{subscription}/2")
    base = f"http://{server.address}{subscription}"
    assert links_of(feed).keys() == {"ackAll", "nackAll", "previous", "self"}
    assert links_of(feed)["self"] == base
    assert [links_of(entry).keys() for entry in feed["entries"]] == [{"edit", "alternate", "ack", "nack"}] * 2
    # Pulled events are held by no consumer, and pulling takes no place of one.
    info = json.loads(server.http("GET", f"{subscription}/info")[2])
    assert (info["connections"], info["totalInFlightMessages"], info["outstandingMessagesCount"]) == ([], 0, 2)
    path = lambda uri: uri.removeprefix(f"http://{server.address}")  # noqa: E731
    assert server.http("POST", path(links_of(feed)["ackAll"]), b"")[0] == 202
    again = feed_of(server, f"{subscription}/2")
    assert server.http("POST", path(links_of(again)["nackAll"]) + "&action=Park", b"")[0] == 202
    info = json.loads(server.http("GET", f"{subscription}/info")[2])
    assert (info["outstandingMessagesCount"], info["parkedMessageCount"]) == (0, 2)
    last = feed_of(server, subscription)
    assert len(last["entries"]) == 1
    for word in ["ack", "nack"]:
        assert server.http("POST", f"{subscription}/{word}/not-a-uuid", b"")[0] == 400
        assert server.http("POST", f"{subscription}/{word}?ids=not-a-uuid", b"")[0] == 400
    for count in [0, 101, "many"]:
        assert server.http("GET", f"{subscription}/{count}")[0] == 400, count


@pytest.mark.parametrize(
    ("embed", "has", "has_not"),
    [
        ("None", "summary", "eventId"),
        ("Content", "content", "data"),
        ("Rich", "eventId", "data"),
        ("Body", "data", "content"),
        ("PrettyBody", "data", "content"),
        ("TryHarder", "data", "content"),
    ],
)
def test_an_entry_has_as_much_of_its_event_as_is_asked_for(server, subscription, embed, has, has_not):
    (entry,) = feed_of(server, f"{subscription}/1?embed={embed}")["entries"]
    assert has in entry and has_not not in entry
    assert server.http("GET", f"{subscription}/1?embed=other")[0] == 400


def test_parked_events_are_viewed_replayed_and_discarded(server, subscription, name):
    feed = feed_of(server, f"{subscription}/5")
    nack_all = links_of(feed)["nackAll"].removeprefix(f"http://{server.address}")
    assert server.http("POST", nack_all + "&action=Park", b"")[0] == 202
    view = f"/subscriptions/viewparkedmessages/{name}/g"

    def viewed(way):
        status, headers, body = server.http("GET", f"{view}/{way}?embed=rich")
        assert (status, headers["content-type"]) == (200, "application/vnd.eventstore.atom+json")
        return [entry["eventNumber"] for entry in json.loads(body)["entries"]]

    assert viewed("0/forward/3") == [0, 1, 2]
    assert viewed("3/backward/2") == [3, 2]
    assert viewed("head/backward/1") == [4]
    for call in ["replayParked", "truncateParked"]:
        assert server.http("POST", f"{subscription}/{call}?stopAt=-1", b"")[0] == 400
        assert server.http("POST", f"{subscription}-none/{call}", b"")[0] == 404
    assert server.http("POST", f"{subscription}/truncateParked?stopAt=2", b"")[0] == 200
    parked = lambda: json.loads(server.http("GET", f"{subscription}/info")[2])["parkedMessageCount"]  # noqa: E731
    assert parked() == 3
    assert server.http("POST", f"{subscription}/truncateParked", b"")[0] == 200
    assert parked() == 0


def test_a_subscription_to_all_is_not_changed_over_http(server, client):
    group = f"group-{uuid.uuid4()}"
    path = f"/subscriptions/%24all/{group}"
    assert server.http("PUT", path, {})[0] == 400
    client.create_subscription_to_all(group)
    for method, at in [("POST", path), ("DELETE", path), ("GET", path), ("POST", f"{path}/ack/{uuid.uuid4()}")]:
        assert server.http(method, at, {} if method == "POST" else None)[0] == 400, (method, at)
    assert server.http("GET", f"{path}/info")[0] == 200
    client.delete_subscription(group)


def test_names_in_paths_are_decoded(server, client, name):
    stream = f"{name} a/b"
    path = f"/subscriptions/{name}%20a%2Fb/g"
    status, headers, _ = server.http("PUT", path, {})
    assert (status, headers["location"]) == (201, f"http://{server.address}{path}")
    assert client.get_subscription_info("g", stream).event_source == stream
    assert server.http("DELETE", path)[0] == 200


def test_the_subsystem_is_restarted_and_other_addresses_are_not_there(server, subscription):
    assert server.http("POST", "/subscriptions/restart", b"")[0] == 200
    assert server.http("GET", "/health/live")[0] == 204
    for path in ["/gossip", "/streams/any", "/stats", "/projections/any"]:
        assert server.http("GET", path)[0] == 404, path
    for method in ["PATCH", "HEAD"]:
        assert server.http(method, subscription)[0] == 405
    assert server.http("POST", subscription, {"liveBufferSize": 0})[0] == 400
    assert server.http("POST", f"{subscription}-none", {})[0] == 404


def test_metrics_have_names_of_their_own(server, subscription):
    status, _, body = server.http("GET", "/metrics", native=True)
    assert status == 200
    names = {line.split("{")[0].split(" ")[0] for line in body.decode().splitlines() if not line.startswith("#")}
    assert any(name.startswith("forebay_group_") for name in names)
    assert [name for name in names if not name.startswith(("forebay_", "process_"))] == []
