"""The steps beside training as Jobs (batch/v1): sharding in parts, their merging, evaluation, the report. Pure.

Called by `render` and by whatever launches steps. Each step is idempotent: a pod that is lost is simply made again.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import FINAL_EXIT_CODES
from shardline.components.common.kubernetes.names import Names
from shardline.components.common.kubernetes.objects import Manifest
from shardline.components.common.kubernetes.pods import CONFIG_PATH, meta, queue_labels, step_pod

#: Attempts after a first one that failed, for what may go better the next time.
_RETRIES = 3


def shard_job(config: RunConfig) -> Manifest:
    """The Job that shards the corpus: an Indexed one of `kubernetes.sharding.parts` pods, a part each.

    With a single part it makes the whole data set; else `merge_job` comes after it.
    """
    parts = config.kubernetes.sharding.parts
    if parts == 1:
        return _job(config, "shard", ("shardline", "shard", CONFIG_PATH))
    command = ("shardline", "shard", CONFIG_PATH, "--part", f"$(JOB_COMPLETION_INDEX)/{parts}")
    job = _job(config, "shard", command)
    # A part fails by itself: one bad node must not use up the attempts of all.
    job["spec"] |= {"completionMode": "Indexed", "completions": parts, "parallelism": parts}
    job["spec"] |= {"backoffLimit": _RETRIES * parts}
    return job


def merge_job(config: RunConfig) -> Manifest:
    """The Job that makes a data set of what all parts have done; it fails at once while one has not."""
    return _job(config, "merge", ("shardline", "shard", CONFIG_PATH, "--merge"))


def evaluate_job(config: RunConfig) -> Manifest:
    """The Job that evaluates the newest checkpoint and exports the model; a model that the gate refuses fails it."""
    return _job(config, "evaluate", ("shardline", "evaluate", CONFIG_PATH))


def report_job(config: RunConfig) -> Manifest:
    """The Job that writes the run's report."""
    return _job(config, "report", ("shardline", "report", CONFIG_PATH))


def recurring(config: RunConfig, *, schedule: str, time_zone: str = "Etc/UTC") -> Manifest:
    """The CronJob that does a whole run, all steps in one pod, at each time of `schedule`; each is named after its Job.

    Args:
        schedule: five fields, as cron has them.
    """
    command = ("shardline", "run", CONFIG_PATH, "--set", "run=$(JOB_NAME)")
    job = _job(config, "recurring", command, fields={"JOB_NAME": "metadata.labels['batch.kubernetes.io/job-name']"})
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": job["metadata"],
        "spec": {
            "schedule": schedule,
            "timeZone": time_zone,
            "concurrencyPolicy": "Forbid",
            # A time that was missed is made up for within an hour, and not after that.
            "startingDeadlineSeconds": 3600,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {"metadata": {"labels": job["metadata"]["labels"]}, "spec": job["spec"]},
        },
    }


def failure_policy() -> Manifest:
    """Which ends of a pod end its Job: those that would come again. What the cluster itself ended does not count."""
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(FINAL_EXIT_CODES)}},
        ]
    }


def _job(
    config: RunConfig, step: str, command: tuple[str, ...], *, fields: Mapping[str, str] | None = None
) -> Manifest:
    spec: Manifest = {
        "backoffLimit": _RETRIES,
        "podFailurePolicy": failure_policy(),
        "template": step_pod(config, step, command=command, fields=fields).template(),
    }
    if config.kubernetes.ttl is not None:
        spec["ttlSecondsAfterFinished"] = config.kubernetes.ttl
    name = Names(config.run).job(step)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta(config, name, step, extra_labels=queue_labels(config)).manifest(),
        "spec": spec,
    }
