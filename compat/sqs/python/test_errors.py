"""Section 1.4: each error as it goes over the wire, in both protocols, and the class that botocore makes of it."""

from __future__ import annotations

import base64
import json
import urllib.parse
import uuid
from typing import Any

import botocore
import pytest
from botocore.exceptions import ClientError

from conftest import MakeQueue
from rows import messages, queues
from rows.errors import BY_ROW
from support import errors, http, query
from support.row import Row, fill
from support.server import FORM_TYPE, JSON_TYPE, Server, client, unique

ROWS = {row.id: row for row in [*queues.ROWS, *messages.ROWS]}


def reachable() -> list[Any]:
    found = []
    for code, row in BY_ROW.items():
        name = f"1.4-{errors.KINDS[code].shape}"
        found.append(pytest.param(code, ROWS[row], [name], id=name))
    return found


@pytest.mark.parametrize(("code", "row", "row_ids"), reachable())
def test_error(
    code: str,
    row: Row,
    row_ids: list[str],
    server: Server,
    standing: dict[str, str],
    words: dict[str, str],
) -> None:
    url = standing[row.queue]
    known = {**words, "$queue": url, "$arn": server.arn(url), "$unique": unique()}
    check_wire(server, row.action, fill(row.arguments, known), code)


def check_wire(server: Server, action: str, arguments: dict[str, Any], code: str) -> None:
    kind = errors.KINDS[code]
    reply = server.raw(action, plain(arguments), x_amzn_query_mode="true")
    assert reply.status == kind.status, reply.text
    assert reply.headers["Content-Type"] == JSON_TYPE
    uuid.UUID(reply.headers["x-amzn-RequestId"])
    assert reply.headers["x-amzn-query-error"] == f"{code};Sender"
    body = json.loads(reply.body)
    namespace, _, shape = body["__type"].partition("#")
    assert shape in errors.shapes(code) and namespace.startswith("com.amazon"), body
    assert body["message"]

    reply = server.form(query.encode(action, arguments))
    assert reply.status == kind.status, reply.text
    assert reply.headers["Content-Type"].startswith("text/xml")
    said = query.parse_error(reply.text)
    assert (said["Type"], said["Code"]) == ("Sender", code)
    uuid.UUID(said["RequestId"])
    assert f'<ErrorResponse xmlns="{query.NAMESPACE}"><Error><Type>' in reply.text
    assert "<Detail/></Error><RequestId>" in reply.text

    with pytest.raises(ClientError) as caught:
        getattr(server.loose, botocore.xform_name(action))(**arguments)
    modelled = kind.shape in server.loose.meta.service_model.shape_names
    expected = getattr(server.loose.exceptions, kind.shape) if modelled else ClientError
    assert type(caught.value) is expected
    assert caught.value.response["Error"]["Code"] == code


def plain(arguments: Any) -> Any:
    """As JSON has it, where bytes are base64."""
    if isinstance(arguments, bytes):
        return base64.b64encode(arguments).decode()
    if isinstance(arguments, dict):
        return {name: plain(one) for name, one in arguments.items()}
    if isinstance(arguments, list):
        return [plain(one) for one in arguments]
    return arguments


@pytest.mark.plays("1.4-QueueNameExists")
def test_a_name_that_is_taken(server: Server, queue: MakeQueue) -> None:
    name = queue().rpartition("/")[2]
    check_wire(
        server,
        "CreateQueue",
        {"QueueName": name, "Attributes": {"DelaySeconds": "5"}},
        "QueueAlreadyExists",
    )


@pytest.mark.plays("1.4-QueueDeletedRecently", "2.1-deleted-recently")
def test_a_name_that_rests_after_deletion(strict: Server) -> None:
    name = unique()
    url = strict.client.create_queue(QueueName=name)["QueueUrl"]
    strict.client.delete_queue(QueueUrl=url)
    code = errors.PREFIX + "QueueDeletedRecently"
    text = "You must wait 60 seconds after deleting a queue before you can create another with the same name."
    strict.refuses("CreateQueue", {"QueueName": name}, code, text)
    check_wire(strict, "CreateQueue", {"QueueName": name}, code)


@pytest.mark.plays("1.4-PurgeQueueInProgress", "2.14-in-progress")
def test_a_purge_soon_after_another(strict: Server) -> None:
    name = unique()
    url = strict.client.create_queue(QueueName=name)["QueueUrl"]
    strict.client.purge_queue(QueueUrl=url)
    code = errors.PREFIX + "PurgeQueueInProgress"
    text = f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
    strict.refuses("PurgeQueue", {"QueueUrl": url}, code, text)
    check_wire(strict, "PurgeQueue", {"QueueUrl": url}, code)
    strict.client.delete_queue(QueueUrl=url)


def refused_by_query(reply: http.Reply, code: str, message: str | None = None) -> None:
    said = query.parse_error(reply.text)
    assert (reply.status, said["Code"]) == (errors.KINDS[code].status, code), reply.text
    if message is not None:
        assert said["Message"].startswith(message)


def refused_by_json(made: Any, code: str, message: str | None = None) -> None:
    with pytest.raises(ClientError) as caught:
        made.list_queues()
    said = caught.value.response
    assert said["Error"]["Code"] == code, said
    assert said["ResponseMetadata"]["HTTPStatusCode"] == errors.KINDS[code].status
    assert said["Error"]["QueryErrorCode"] in errors.shapes(code)
    if message is not None:
        assert said["Error"]["Message"].startswith(message)


LIST = query.encode("ListQueues", {})
FORM = {"Content-Type": FORM_TYPE}


@pytest.mark.plays("1.4-InvalidClientTokenId")
def test_a_key_that_nobody_knows(keyed: Server) -> None:
    text = "The security token included in the request is invalid."
    refused_by_json(client(keyed.endpoint, key="nobody"), "InvalidClientTokenId", text)
    reply = http.post(keyed.endpoint + "/", FORM, LIST, key="nobody", secret="x")
    refused_by_query(reply, "InvalidClientTokenId", text)


@pytest.mark.plays("1.4-SignatureDoesNotMatch")
def test_a_signature_by_another_secret(keyed: Server) -> None:
    text = "The request signature we calculated does not match the signature you provided"
    refused_by_json(client(keyed.endpoint, key=keyed.key, secret="wrong"), "SignatureDoesNotMatch", text)
    reply = http.post(keyed.endpoint + "/", FORM, LIST, key=keyed.key, secret="wrong")
    refused_by_query(reply, "SignatureDoesNotMatch", text)


@pytest.mark.plays("1.4-MissingAuthenticationToken")
def test_no_signature(keyed: Server) -> None:
    reply = http.send("POST", keyed.endpoint + "/", FORM, LIST)
    refused_by_query(reply, "MissingAuthenticationToken")
    headers = {"Content-Type": JSON_TYPE, "X-Amz-Target": "AmazonSQS.ListQueues"}
    reply = http.send("POST", keyed.endpoint + "/", headers, b"{}")
    assert reply.status == 403
    assert reply.headers["x-amzn-query-error"] == "MissingAuthenticationToken;Sender"


@pytest.mark.plays("1.4-IncompleteSignature")
def test_half_a_signature(keyed: Server) -> None:
    headers = {**FORM, "Authorization": "AWS4-HMAC-SHA256 Credential=x"}
    refused_by_query(http.send("POST", keyed.endpoint + "/", headers, LIST), "IncompleteSignature")
    # The signatures of several regions at once.
    algorithm = signed_list(keyed)["Authorization"].replace("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256")
    headers = {**signed_list(keyed), "Authorization": algorithm}
    refused_by_query(http.send("POST", keyed.endpoint + "/", headers, LIST), "IncompleteSignature")


def signed_list(keyed: Server) -> dict[str, str]:
    return http.signed("POST", keyed.endpoint + "/", FORM, LIST, keyed.key, keyed.secret)


@pytest.mark.plays("1.7-body-is-signed")
def test_a_body_that_was_changed_on_the_way(keyed: Server) -> None:
    reply = http.send("POST", keyed.endpoint + "/", signed_list(keyed), LIST + b"&QueueNamePrefix=x")
    refused_by_query(reply, "SignatureDoesNotMatch")


@pytest.mark.plays("1.7-signed")
def test_a_signature_that_is_right(keyed: Server) -> None:
    url = keyed.client.create_queue(QueueName=unique())["QueueUrl"]
    keyed.client.send_message(QueueUrl=url, MessageBody="b")
    assert keyed.query("ReceiveMessage", QueueUrl=url, path=urllib.parse.urlsplit(url).path).result["Messages"]
    keyed.client.delete_queue(QueueUrl=url)


@pytest.mark.plays("1.4-AccessDenied", "1.5-other-account", "2.17-lets-in")
def test_the_queue_of_another_account(keyed: Server, stranger: Server) -> None:
    name = unique()
    url = keyed.client.create_queue(QueueName=name)["QueueUrl"]
    arn = keyed.arn(url)
    owner, other = (keyed.client, stranger.client)
    accounts = [arn.split(":")[4], "222222222222"]
    assert accounts[0] == "111111111111"
    send = {"QueueUrl": url, "MessageBody": "b"}
    check_wire(stranger, "SendMessage", send, "AccessDenied")
    with pytest.raises(ClientError) as caught:
        other.send_message(**send)
    said = caught.value.response["Error"]["Message"]
    assert accounts[1] in said and "sqs:sendmessage" in said.lower() and arn in said
    # Each account has names of its own.
    with pytest.raises(other.exceptions.QueueDoesNotExist):
        other.get_queue_url(QueueName=name)

    owner.add_permission(QueueUrl=url, Label="l", AWSAccountIds=[accounts[1]], Actions=["SendMessage", "GetQueueUrl"])
    other.send_message(**send)
    assert other.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=accounts[0])["QueueUrl"] == url
    check_wire(stranger, "ReceiveMessage", {"QueueUrl": url}, "AccessDenied")
    assert len(owner.receive_message(QueueUrl=url)["Messages"]) == 1
    owner.delete_queue(QueueUrl=url)
