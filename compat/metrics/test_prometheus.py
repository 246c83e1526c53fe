"""The metrics, the alert rules and the dashboard, against Prometheus and a real server."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay import Client
from forebay.testing import Server

ROOT = Path(__file__).parent.parent.parent
MONITORING = ROOT / "packaging" / "monitoring"
RULES = MONITORING / "forebay.rules.yml"
WITHIN = 60.0


def promtool(*arguments: str, text: str | None = None) -> None:
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return str(reply.read().decode())


def until(condition: Any) -> Any:
    end = time.monotonic() + WITHIN
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.2)
    return condition()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Client]]:
    """A server with something to see: a group without consumers, one that is paused, and parked messages."""
    with Server(tmp_path_factory.mktemp("metrics") / "data") as server, Client(server.url) as client:
        client.create_group("orders", "billing")
        client.create_group("orders", 'odd "name" \\ ü\t'.strip())
        client.create_group("orders", "paused")
        client.pause("orders", "paused")
        for number in range(20):
            client.publish("orders", {"number": number}, type="order")
        yield server, client


def test_what_is_scraped_is_well_formed(busy: tuple[Server, Client]) -> None:
    server, client = busy
    [message] = client.receive("orders", "billing", wait=5)
    client.ack("orders", "billing", message)
    scraped = fetch(f"{server.url}/metrics")
    assert "forebay_group_lag" in scraped
    promtool("check", "metrics", text=scraped)


def test_every_alert_fires_under_its_condition() -> None:
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(MONITORING / "forebay.rules.test.yml"))
    alerts = re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)
    tested = set(re.findall(r"^ +- name: (\w+)$", (MONITORING / "forebay.rules.test.yml").read_text(), re.MULTILINE))
    assert len(alerts) == len(set(alerts)) > 0
    assert set(alerts) <= tested, f"alerts without a test: {set(alerts) - tested}"


def test_rules_and_dashboard_use_metrics_that_exist() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE))
    for file in (RULES, MONITORING / "forebay.rules.test.yml", MONITORING / "grafana-dashboard.json"):
        used = set(re.findall(r"\b(?:forebay|process)_[a-z0-9_]+\b", file.read_text()))
        used = {re.sub(r"_(bucket|sum|count)$", "", name) if name not in listed else name for name in used}
        assert used and used <= listed, f"{file.name} uses metrics that the server does not have: {used - listed}"


def queries() -> list[str]:
    panels = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [re.sub(r"\$(instance|stream|group)", ".*", query) for query in found]


class Prometheus:
    """Prometheus itself, which scrapes the server every second and waits for nothing before it alerts."""

    def __init__(self, server: Server, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        rules = re.sub(r"^( +for:) .*$", r"\1 0s", RULES.read_text(), flags=re.MULTILINE)
        (folder / "forebay.rules.yml").write_text(rules)
        settings = (MONITORING / "prometheus.yml").read_text()
        settings = re.sub(r"(_interval:) \w+", r"\1 1s", settings).replace("forebay:7070", f"127.0.0.1:{server.port}")
        (folder / "prometheus.yml").write_text(settings)
        promtool("check", "config", str(folder / "prometheus.yml"))
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        command.append(f"--web.listen-address={self.url.removeprefix('http://')}")
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def api(self, path: str) -> Any:
        try:
            return json.loads(fetch(f"{self.url}/api/v1/{path}"))["data"]
        except OSError:
            return None

    def firing(self) -> set[tuple[str, str]]:
        alerts = (self.api("alerts") or {"alerts": []})["alerts"]
        labels = [one["labels"] for one in alerts if one["state"] == "firing"]
        return {(one["alertname"], one.get("group", "")) for one in labels}


@pytest.fixture(scope="module")
def prometheus(busy: tuple[Server, Client], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    started = Prometheus(busy[0], tmp_path_factory.mktemp("prometheus"))
    yield started
    started.process.terminate()
    started.process.wait(30)


def test_the_dashboards_queries_find_something(busy: tuple[Server, Client], prometheus: Prometheus) -> None:
    def answer(query: str) -> Any:
        return prometheus.api("query?" + urllib.parse.urlencode({"query": query}))

    assert until(lambda: (answer("forebay_ready") or {}).get("result"))
    for query in queries():
        found = answer(query)
        assert found is not None and "result" in found, query
    found = answer('forebay_group_lag{stream="orders", group="billing"}')["result"]
    assert found and int(found[0]["value"][1]) >= 19


def test_alerts_fire_for_what_is_wrong_and_only_for_that(busy: tuple[Server, Client], prometheus: Prometheus) -> None:
    server, client = busy
    wanted = {("ForebayGroupWithoutConsumers", "billing"), ("ForebayGroupPaused", "paused")}
    assert until(lambda: wanted <= prometheus.firing()), prometheus.firing()
    wrong = {"ForebayDown", "ForebayNotReady", "ForebayStorageFull", "ForebayStorageScarce", "ForebayDataDamaged"}
    assert not wrong & {name for name, _ in prometheus.firing()}

    [message] = client.receive("orders", "billing", wait=5)
    assert client.nack("orders", "billing", message, action="park", reason="poison") == ["parked"]
    assert until(lambda: ("ForebayMessagesParked", "billing") in prometheus.firing())

    server.kill()
    assert until(lambda: ("ForebayDown", "") in prometheus.firing())
    server.start()
    assert until(lambda: ("ForebayDown", "") not in prometheus.firing())
