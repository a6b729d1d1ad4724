"""docs/howto-monitor.md and the dashboard: every metric and bucket that they name is one that the server has."""

import json
import re
from pathlib import Path

import pytest
import yaml

from ggss.serve.guard import BUCKETS, HELP, ServerMetrics
from ggss.steering import SteeringRecord

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "howto-monitor.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((DOCS / "assets" / "grafana-dashboard.json").read_text(encoding="utf-8"))
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
RULES = next(yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml" and text.startswith("groups:"))
EXPRESSIONS = {
    **{rule["alert"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"]},
    **{panel["title"]: target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]},
    "the page": PAGE,
}


def exposed() -> set[str]:
    """The names of all samples of a server on which everything has happened once."""
    names = set()
    for name, (kind, _) in HELP.items():
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return names


def unknown(expression: str) -> set[str]:
    return set(re.findall(r"\bggss_\w+", expression)) - exposed() - set(BUCKETS)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_metric_is_one_of_the_servers(name):
    assert re.search(r"\bggss_\w+", EXPRESSIONS[name])
    assert not unknown(EXPRESSIONS[name])
    for metric, bound in re.findall(r'(ggss_\w+)_bucket\{le="([\d.]+)"\}', EXPRESSIONS[name]):
        assert bound in map(str, BUCKETS[metric])


def test_a_metric_that_does_not_exist_is_noticed():
    assert unknown("rate(ggss_gate_means_sum[1h]) > ggss_ready") == {"ggss_gate_means_sum"}


def test_what_is_exposed_is_what_a_server_shows():
    metrics = ServerMetrics()
    metrics.request(200, 1.0)
    metrics.answer({"race": SteeringRecord(1.0, 1, 16, 16, 8.0)}, 1, 1)
    shown = {re.split(r"[{ ]", line)[0] for line in metrics.text(True, {}).splitlines() if line[0] != "#"}
    assert shown <= exposed()
    assert {f"{name}_bucket" for name in BUCKETS} <= shown


def test_alerts_and_panels_are_whole():
    alerts = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert all(rule["annotations"]["summary"].endswith((".", "again.")) for rule in alerts)
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    drift = {"ggss_gate_mean", "ggss_steered_tokens", "ggss_request_steered_tokens"}
    everywhere = " ".join(EXPRESSIONS.values())
    assert all(f"{name}_" in everywhere for name in drift)
