"""Writes the manifests under k8s/ that are to be applied by hand, from the same builders that `shardline render` has.

    python -m shardline.components.common.kubernetes.generate examples/cluster.yaml k8s

Called by `make manifests`, and by the test that holds k8s/ to what is written here. The kustomizations beside these
files are written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shardline.components.common.config import Loaded, parse
from shardline.components.common.kubernetes import alerts, dashboard, extras, jobs, monitoring, operator
from shardline.components.common.kubernetes.access import access, access_everywhere
from shardline.components.common.kubernetes.documents import to_yaml
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.pods import config_map
from shardline.components.common.kubernetes.render import PARTS, render

#: Sundays, in the small hours.
_SCHEDULE = "0 3 * * 0"
_HEADER = "# Made by `make manifests` from {source}; for a run of your own use `shardline render`.\n"


def manifests(loaded: Loaded) -> dict[str, list[Manifest]]:
    """The objects of each file, by its path under k8s/."""
    config = loaded.config
    name = config.kubernetes.namespace
    found: dict[str, list[Manifest]] = {
        "base/namespace.yaml": [extras.namespace(name)],
        "base/access.yaml": access(name),
        "base/priority-class.yaml": [extras.priority_class()],
        "base/network-policy.yaml": [extras.network_policy(name)],
        "components/network-policy/egress.yaml": [extras.egress_policy(name)],
        "components/monitoring/pod-monitor.yaml": [monitoring.pod_monitor_of_all(name)],
        "components/monitoring/network-policy.yaml": [monitoring.scrape_policy(name)],
        "components/monitoring/rules.yaml": [alerts.prometheus_rule(name)],
        "components/monitoring/dashboard.yaml": [dashboard.config_map(name)],
        "components/operator/operator.yaml": [*access_everywhere(name), *operator.operator(config)],
        "jobs/recurring.yaml": [config_map(config), jobs.recurring(config, schedule=_SCHEDULE)],
    }
    for part in PARTS:
        if part != "access":
            found[f"jobs/{part}.yaml"] = render(loaded, only=[part])
    return found


def files(source: str) -> dict[str, str]:
    """The text of each file, by its path under k8s/; `source` is the path of the run config."""
    # The storage root is the file's, whatever SHARDLINE_ROOT says.
    loaded = parse(Path(source).read_text(encoding="utf-8"), source=source, ignore_environment=True)
    header = _HEADER.format(source=source)
    return {path: header + to_yaml(objects) for path, objects in manifests(loaded).items()}


def main(source: str, folder: str) -> None:
    for path, text in files(source).items():
        target = Path(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
