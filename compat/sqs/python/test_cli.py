"""The AWS command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from support import http
from support.server import Server, unique


def aws(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "awscli", "--endpoint-url", server.endpoint, "--output", "json", "sqs", *arguments]
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": http.ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": http.SECRET_KEY,
        "AWS_DEFAULT_REGION": http.REGION,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def said(server: Server, *arguments: str) -> dict[str, Any]:
    done = aws(server, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "{}")


def test_a_message_by_the_command_line(server: Server) -> None:
    name = unique(".fifo")
    attributes = "FifoQueue=true,ContentBasedDeduplication=true"
    url = said(server, "create-queue", "--queue-name", name, "--attributes", attributes)["QueueUrl"]
    assert said(server, "list-queues", "--queue-name-prefix", name) == {"QueueUrls": [url]}
    sent = said(server, "send-message", "--queue-url", url, "--message-body", "a", "--message-group-id", "g")
    received = said(server, "receive-message", "--queue-url", url, "--wait-time-seconds", "1")
    [message] = received["Messages"]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "a")
    said(server, "delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
    said(server, "delete-queue", "--queue-url", url)


def test_an_error_by_the_command_line(server: Server) -> None:
    done = aws(server, "get-queue-url", "--queue-name", unique())
    assert done.returncode != 0
    assert "(AWS.SimpleQueueService.NonExistentQueue)" in done.stderr
    assert "The specified queue does not exist." in done.stderr
