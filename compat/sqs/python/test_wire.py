"""Section 1: two protocols on the same paths, and the addresses of queues."""

from __future__ import annotations

import json
import urllib.parse
import uuid
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from conftest import MakeQueue, discard
from support import errors, http, query
from support.server import FORM_TYPE, JSON_TYPE, Server, client, unique
from support.use import bodies, receive, send


def path_of(url: str) -> str:
    return urllib.parse.urlsplit(url).path


@pytest.mark.plays("1.1-json-types")
@pytest.mark.parametrize(
    "content_type",
    ["application/x-amz-json-1.0", "application/x-amz-json-1.1", "application/x-amz-json-1.0; charset=utf-8"],
)
def test_json_by_any_of_its_names(server: Server, queue: MakeQueue, content_type: str) -> None:
    url = queue()
    reply = server.raw("SendMessage", {"QueueUrl": url, "MessageBody": "b"}, Content_Type=content_type)
    assert reply.status == 200
    assert "MessageId" in json.loads(reply.body)


@pytest.mark.plays("1.1-neither")
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("headers", [{}, {"Accept": "application/json"}])
def test_a_request_without_an_action(server: Server, method: str, headers: dict[str, str]) -> None:
    reply = http.send(method, server.endpoint + "/", headers)
    assert reply.status == 404
    assert "<UnknownOperationException/>" in reply.text


@pytest.mark.plays("1.1-json-to-queue-path")
def test_json_to_the_path_of_a_queue(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    reply = server.raw("SendMessage", {"QueueUrl": url, "MessageBody": "b"}, path_of(url))
    assert (reply.status, reply.headers["Content-Type"]) == (200, JSON_TYPE)
    assert bodies(receive(sqs, url)) == ["b"]


@pytest.mark.plays("1.2-success-headers")
def test_what_json_answers(server: Server, queue: MakeQueue) -> None:
    url = queue()
    reply = server.raw("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["QueueArn"]})
    assert (reply.status, reply.headers["Content-Type"]) == (200, JSON_TYPE)
    uuid.UUID(reply.headers["x-amzn-RequestId"])
    assert set(json.loads(reply.body)) == {"Attributes"}
    reply = server.raw("PurgeQueue", {"QueueUrl": url})
    assert reply.status == 200 and reply.body in (b"", b"{}")


@pytest.mark.plays("1.2-empty-body", "1.2-null-is-absent", "1.2-unknown-members", "1.2-numbers-as-text")
def test_json_is_read_with_an_open_mind(server: Server, queue: MakeQueue) -> None:
    assert server.raw("ListQueues", b"").status == 200
    url = queue()
    wide = {
        "QueueUrl": url,
        "MessageBody": "b",
        "DelaySeconds": "0",
        "MessageAttributes": None,
        "MessageGroupId": None,
        "Nothing": {"at": ["all"]},
    }
    reply = server.raw("SendMessage", wide)
    assert reply.status == 200, reply.text
    reply = server.raw("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": "10", "AttributeNames": None})
    [message] = json.loads(reply.body)["Messages"]
    assert "Attributes" not in message


@pytest.mark.plays("1.2-names-are-case-sensitive")
def test_names_of_members_are_case_sensitive(server: Server, queue: MakeQueue) -> None:
    url = queue()
    reply = server.raw("SendMessage", {"queueUrl": url, "MessageBody": "b"})
    assert reply.headers["x-amzn-query-error"] == "MissingParameter;Sender"


@pytest.mark.plays("1.2-broken")
@pytest.mark.parametrize("body", [b"{", b"[]", b"1", b"\xff", b'{"QueueName":{}}'])
def test_json_that_is_none_is_refused(server: Server, body: bytes) -> None:
    reply = server.raw("GetQueueUrl", body)
    assert reply.status == 400
    assert json.loads(reply.body)["__type"]


@pytest.mark.plays("1.2-nothing-is-left-out")
def test_what_is_empty_is_left_out(server: Server, queue: MakeQueue) -> None:
    url = queue()
    for action, more in (
        ("ReceiveMessage", {}),
        ("ListQueueTags", {}),
        ("GetQueueAttributes", {}),
        ("GetQueueAttributes", {"AttributeNames": ["Policy"]}),
    ):
        assert json.loads(server.raw(action, {"QueueUrl": url, **more}).body or "{}") == {}, action
    assert json.loads(server.raw("ListQueues", {"QueueNamePrefix": unique()}).body) == {}


@pytest.mark.plays("1.3-queue-path", "1.3-parameter-before-path")
def test_a_path_names_the_queue_unless_a_parameter_does(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url, other = queue(), queue()
    assert server.query("SendMessage", path=path_of(url), MessageBody="a").is_ok
    assert bodies(receive(sqs, url)) == ["a"]
    assert server.query("SendMessage", path=path_of(url), QueueUrl=other, MessageBody="b").is_ok
    assert bodies(receive(sqs, other)) == ["b"]


@pytest.mark.plays("1.3-get", "1.3-both-places")
def test_parameters_come_from_the_address_and_the_body(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    address = f"{url}?" + urllib.parse.urlencode({"Action": "SendMessage", "MessageBody": "a b+ü"})
    reply = http.send("GET", address, http.signed("GET", address, {}, b""))
    assert reply.status == 200, reply.text
    assert query.parse_result("SendMessage", reply.text)["MessageId"]
    reply = server.form(b"MessageBody=c", f"{path_of(url)}?Action=SendMessage")
    assert reply.status == 200, reply.text
    assert sorted(bodies(receive(sqs, url))) == ["a b+ü", "c"]


@pytest.mark.plays("1.3-invalid-action")
def test_an_action_that_is_not_there(server: Server, queue: MakeQueue) -> None:
    path = path_of(queue())
    for where, action in (("/", "Nothing"), (path, "Nothing"), (path, "CreateQueue"), (path, "ListQueues")):
        outcome = server.query(action, path=where, QueueName=unique())
        text = f"The action {action} is not valid for this endpoint."
        assert (outcome.status, outcome.code, outcome.message) == (400, "InvalidAction", text)
    reply = server.raw("Nothing", {})
    assert (reply.status, reply.headers["x-amzn-query-error"]) == (400, "InvalidAction;Sender")


@pytest.mark.plays("1.3-version-is-optional", "1.3-gaps", "1.3-unnumbered")
def test_query_is_read_with_an_open_mind(server: Server, sqs: Any) -> None:
    def ask(**parameters: str) -> str:
        given = {name.replace("_", "."): value for name, value in parameters.items()}
        reply = server.form(urllib.parse.urlencode(given).encode())
        assert reply.status == 200, reply.text
        return reply.text

    name = unique()
    ask(Action="CreateQueue", QueueName=name, Attribute_Name="DelaySeconds", Attribute_Value="7")
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    assert server.attributes(url, "DelaySeconds") == {"DelaySeconds": "7"}
    found = ask(
        Action="GetQueueAttributes",
        QueueUrl=url,
        AttributeName_10="DelaySeconds",
        AttributeName_3="VisibilityTimeout",
    )
    assert query.parse_result("GetQueueAttributes", found)["Attributes"] == {
        "VisibilityTimeout": "30",
        "DelaySeconds": "7",
    }
    discard(sqs, url)


@pytest.mark.plays("1.3-xml")
def test_xml_has_no_blanks_between_its_tags(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a\r\n<b> & \"c\"")
    reply = server.form(query.encode("ReceiveMessage", {"QueueUrl": url, "AttributeNames": ["All"]}))
    assert reply.headers["Content-Type"].startswith("text/xml")
    start = f'<ReceiveMessageResponse xmlns="{query.NAMESPACE}"><ReceiveMessageResult><Message><'
    assert start in reply.text
    assert "a&#xD;\n&lt;b&gt; &amp; " in reply.text
    assert "<Attribute><Name>SenderId</Name><Value>" in reply.text
    assert "</ReceiveMessageResult><ResponseMetadata><RequestId>" in reply.text
    arn = server.arn(url)
    reply = server.form(query.encode("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["QueueArn"]}))
    assert f"<Attribute><Name>QueueArn</Name><Value>{arn}</Value></Attribute>" in reply.text


@pytest.mark.plays("1.3-xml-void", "1.3-xml-empty")
def test_an_action_without_a_result(server: Server, queue: MakeQueue) -> None:
    url = queue()
    reply = server.form(query.encode("TagQueue", {"QueueUrl": url, "Tags": {"a": "b"}}))
    assert "Result" not in reply.text and query.parse_result("TagQueue", reply.text) == {}
    reply = server.form(query.encode("ReceiveMessage", {"QueueUrl": url}))
    assert "<ReceiveMessageResult/>" in reply.text


@pytest.mark.plays("1.3-accept-json")
def test_query_answers_in_json_when_asked_to(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a")

    def ask(action: str, **arguments: Any) -> tuple[int, dict[str, Any]]:
        reply = server.form(query.encode(action, arguments), Accept="application/json")
        return reply.status, json.loads(reply.body)

    status, found = ask("GetQueueAttributes", QueueUrl=url, AttributeNames=["DelaySeconds"])
    assert status == 200
    result = found["GetQueueAttributesResponse"]["GetQueueAttributesResult"]
    assert result["Attributes"] == [{"Name": "DelaySeconds", "Value": "0"}]
    uuid.UUID(found["GetQueueAttributesResponse"]["ResponseMetadata"]["RequestId"])
    _, found = ask("ReceiveMessage", QueueUrl=url)
    [message] = found["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"]
    assert message["Body"] == "a"
    status, found = ask("GetQueueUrl", QueueName=unique())
    assert (status, found["Error"]["Code"]) == (400, errors.NO_SUCH_QUEUE)


@pytest.mark.plays("1.5-host-of-request")
def test_the_address_of_a_queue_follows_the_request(server: Server, queue: MakeQueue) -> None:
    url = queue()
    name = url.rpartition("/")[2]
    body = query.encode("GetQueueUrl", {"QueueName": name})
    # A server that lets anybody in may insist on being called by a name of this machine.
    host = f"localhost:{urllib.parse.urlsplit(server.endpoint).port}"
    headers = {"Content-Type": FORM_TYPE, "Host": host}
    reply = http.post(server.endpoint + "/", headers, body)
    assert reply.status == 200, reply.text
    found = query.parse_result("GetQueueUrl", reply.text)["QueueUrl"]
    assert found == f"http://{host}{path_of(url)}"
    # And any of its addresses finds it.
    assert server.json("GetQueueAttributes", QueueUrl=found, AttributeNames=["QueueArn"]).is_ok


@pytest.mark.plays("1.5-bare-name", "1.5-any-address")
def test_a_queue_is_known_by_many_addresses(server: Server, queue: MakeQueue) -> None:
    url = queue()
    account, name = url.split("/")[-2:]
    arn = server.arn(url)
    for address in (
        name,
        f"{url}/",
        f"https://sqs.us-east-1.amazonaws.com/{account}/{name}",
        f"http://elsewhere.example:1234/{account}/{name}",
        f"{server.endpoint}/queue/{name}",
        f"{server.endpoint}/queue/us-east-1/{account}/{name}",
    ):
        for call in (server.json, server.query):
            found = call("GetQueueAttributes", QueueUrl=address, AttributeNames=["QueueArn"])
            assert found.result == {"Attributes": {"QueueArn": arn}}, (address, found.said)


@pytest.mark.plays("1.5-region-of-caller")
def test_an_arn_names_the_region_of_who_asks(server: Server) -> None:
    made = boto3.client(
        "sqs",
        endpoint_url=server.endpoint,
        region_name="eu-central-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    url = made.create_queue(QueueName=unique())["QueueUrl"]
    found = made.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    assert found.split(":")[3] == "eu-central-1"
    made.delete_queue(QueueUrl=url)


@pytest.mark.plays("1.7-presigned")
def test_a_presigned_address_receives(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a")
    parameters = query.parameters("ReceiveMessage", {"MaxNumberOfMessages": 10, "AttributeNames": ["All"]})
    request = AWSRequest(method="GET", url=f"{url}?{urllib.parse.urlencode(parameters)}")
    credentials = Credentials(http.ACCESS_KEY, http.SECRET_KEY)
    SigV4QueryAuth(credentials, "sqs", http.REGION, expires=60).add_auth(request)
    reply = http.get(request.url)
    assert reply.status == 200, reply.text
    [message] = query.parse_result("ReceiveMessage", reply.text)["Messages"]
    assert message["Body"] == "a" and message["Attributes"]["ApproximateReceiveCount"] == "1"


@pytest.mark.plays("1.7-any-credentials")
def test_without_keys_anybody_is_let_in(server: Server, queue: MakeQueue) -> None:
    url = queue()
    other = client(server.endpoint, key="anybody", secret="anything")
    assert other.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
