"""What the commands ask of Kubeflow Pipelines: a method for each request, a record for its answer.

Called by `submit`, `schedules` and `follow`, which never see the API's own types.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kfp_server_api as api

from shardline.components.common.config.kubeflow_schema import Kubeflow
from shardline.components.common.errors import EnvironmentLacking, UserError
from shardline.pipelines.kubeflow.failures import Absent, Asked, Conflict, too_old
from shardline.pipelines.kubeflow.records import KubeflowRun, Schedule, Task, filter_by_name
from shardline.pipelines.kubeflow.transport import PAGE, Transport


class Client:
    """Kubeflow Pipelines as the config's `kubeflow` section says.

    Every method raises what `failures.explain` makes of a request that failed.
    """

    def __init__(self, kubeflow: Kubeflow) -> None:
        """Connect, and see who is there.

        Raises:
            UserError: no host is named, or a namespace is needed and not set.
            EnvironmentLacking: it cannot be reached, is too old, or does not know who asks.
        """
        self._kubeflow = kubeflow
        self._transport = Transport(kubeflow)
        self.host = self._transport.host
        self.namespace = self._namespace()

    def _namespace(self) -> str | None:
        """The namespace to send: where Kubeflow has one user it refuses any."""
        asked = Asked("get", "healthz", "health of Kubeflow Pipelines")
        call = api.HealthzServiceApi(self._transport.api).healthz_service_get_healthz
        try:
            health = self._transport.call(asked, call)
        except Absent:
            raise too_old(self.host) from None
        if not health.multi_user:
            return None
        if self._kubeflow.namespace is None:
            hint = "set it to the namespace of a profile (`kubectl get profiles`)"
            raise UserError("is needed: this Kubeflow has several users", where="kubeflow.namespace", hint=hint)
        return self._kubeflow.namespace

    # Experiments and pipelines.

    def experiment(self, name: str) -> str | None:
        """The id of the experiment `name`, or None when there is none."""
        call = api.ExperimentServiceApi(self._transport.api).experiment_service_list_experiments
        asked = Asked("list", "experiments", "experiments")
        return self._named(name, asked, call, "experiments", id="experiment_id", namespace=self.namespace)

    def make_experiment(self, name: str) -> str:
        """The id of the experiment `name`, which is made when it is not there."""
        if (found := self.experiment(name)) is not None:
            return found
        body = api.V2beta1Experiment(display_name=name, namespace=self.namespace)
        call = api.ExperimentServiceApi(self._transport.api).experiment_service_create_experiment
        try:
            made = self._transport.call(Asked("create", "experiments", f"experiment {name}"), call, experiment=body)
        except Conflict:  # somebody else made it meanwhile
            return self._known(self.experiment(name), f"experiment {name}")
        return self._transport.identifier(made, "experiment_id")

    def upload(self, name: str, *, version: str, package: bytes) -> tuple[str, str]:
        """The ids of the pipeline `name` and of its version `version`, each made when it is not there."""
        pipeline = self._pipeline(name) or self._make_pipeline(name)
        return pipeline, self._version(pipeline, version) or self._make_version(pipeline, version, package)

    def _pipeline(self, name: str) -> str | None:
        call = api.PipelineServiceApi(self._transport.api).pipeline_service_list_pipelines
        asked = Asked("list", "pipelines", "pipelines")
        return self._named(name, asked, call, "pipelines", id="pipeline_id", namespace=self.namespace)

    def _make_pipeline(self, name: str) -> str:
        body = api.V2beta1Pipeline(display_name=name, name=name, namespace=self.namespace)
        call = api.PipelineServiceApi(self._transport.api).pipeline_service_create_pipeline
        try:
            made = self._transport.call(Asked("create", "pipelines", f"pipeline {name}"), call, pipeline=body)
        except Conflict:
            return self._known(self._pipeline(name), f"pipeline {name}")
        return self._transport.identifier(made, "pipeline_id")

    def _version(self, pipeline: str, version: str) -> str | None:
        call = api.PipelineServiceApi(self._transport.api).pipeline_service_list_pipeline_versions
        asked = Asked("list", "pipelines", "versions of the pipeline")
        return self._named(version, asked, call, "pipeline_versions", id="pipeline_version_id", pipeline_id=pipeline)

    def _make_version(self, pipeline: str, version: str, package: bytes) -> str:
        call = api.PipelineUploadServiceApi(self._transport.api).upload_pipeline_version
        asked = Asked("create", "pipelines", f"version {version} of the pipeline")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pipeline.yaml"
            path.write_bytes(package)
            try:
                made = self._transport.call(
                    asked, call, str(path), name=version, display_name=version, pipelineid=pipeline
                )
            except Conflict:
                return self._known(self._version(pipeline, version), f"version {version}")
        return self._transport.identifier(made, "pipeline_version_id")

    def _named(
        self, name: str, asked: Asked, call: Callable[..., Any], field: str, *, id: str, **options: Any
    ) -> str | None:
        """The `id` of what is called `name` in the list `field`, or None when nothing is."""
        found = self._transport.every(asked, call, field, filter=filter_by_name(name), **options)
        return next((self._transport.identifier(each, id) for each in found if each.display_name == name), None)

    def _known(self, found: str | None, thing: str) -> str:
        if found is None:
            hint = "is it in another namespace, or was it deleted just now?"
            raise EnvironmentLacking(f"{thing} is there already and cannot be seen", where=self.host, hint=hint)
        return found

    # Runs.

    def start(
        self,
        name: str,
        *,
        experiment: str,
        pipeline: tuple[str, str],
        parameters: dict[str, Any],
        service_account: str | None,
    ) -> KubeflowRun:
        """Start a run of the pipeline version `pipeline` (its ids)."""
        body = api.V2beta1Run(
            display_name=name,
            experiment_id=experiment,
            pipeline_version_reference=_reference(pipeline),
            runtime_config=api.V2beta1RuntimeConfig(parameters=parameters),
            service_account=service_account,
        )
        call = api.RunServiceApi(self._transport.api).run_service_create_run
        return self._run(self._transport.call(Asked("create", "runs", f"run {name}"), call, run=body))

    def run(self, run: str) -> KubeflowRun:
        call = api.RunServiceApi(self._transport.api).run_service_get_run
        return self._run(self._transport.call(Asked("get", "runs", f"run {run}"), call, run))

    def runs(self, experiment: str) -> list[KubeflowRun]:
        """The newest runs of an experiment, one page of them."""
        call = api.RunServiceApi(self._transport.api).run_service_list_runs
        page = self._transport.call(
            Asked("list", "runs", "runs"), call, experiment_id=experiment, page_size=PAGE, sort_by="created_at desc"
        )
        return [self._run(each) for each in page.runs or []]

    def cancel(self, run: str) -> None:
        call = api.RunServiceApi(self._transport.api).run_service_terminate_run
        self._transport.call(Asked("terminate", "runs", f"run {run}"), call, run)

    # Schedules, which Kubeflow calls recurring runs, and its rights call jobs.

    def make_schedule(
        self,
        name: str,
        *,
        cron: str,
        experiment: str,
        pipeline: tuple[str, str],
        parameters: dict[str, Any],
        service_account: str | None,
    ) -> Schedule:
        """A schedule that starts one run at a time, and none for the times that passed while it could not.

        Args:
            cron: six fields, seconds first.
        """
        body = api.V2beta1RecurringRun(
            display_name=name,
            experiment_id=experiment,
            pipeline_version_reference=_reference(pipeline),
            runtime_config=api.V2beta1RuntimeConfig(parameters=parameters),
            service_account=service_account,
            trigger=api.V2beta1Trigger(cron_schedule=api.V2beta1CronSchedule(cron=cron)),
            mode=api.RecurringRunMode.ENABLE,
            max_concurrency="1",
            no_catchup=True,
        )
        call = api.RecurringRunServiceApi(self._transport.api).recurring_run_service_create_recurring_run
        return self._schedule(
            self._transport.call(Asked("create", "jobs", f"schedule {name}"), call, recurring_run=body)
        )

    def schedules(self, experiment: str) -> list[Schedule]:
        call = api.RecurringRunServiceApi(self._transport.api).recurring_run_service_list_recurring_runs
        found = self._transport.every(
            Asked("list", "jobs", "schedules"), call, "recurring_runs", experiment_id=experiment
        )
        return [self._schedule(each) for each in found]

    def enable(self, schedule: Schedule) -> None:
        call = api.RecurringRunServiceApi(self._transport.api).recurring_run_service_enable_recurring_run
        self._transport.call(Asked("enable", "jobs", f"schedule {schedule.name}"), call, schedule.id)

    def disable(self, schedule: Schedule) -> None:
        call = api.RecurringRunServiceApi(self._transport.api).recurring_run_service_disable_recurring_run
        self._transport.call(Asked("disable", "jobs", f"schedule {schedule.name}"), call, schedule.id)

    def delete(self, schedule: Schedule) -> None:
        call = api.RecurringRunServiceApi(self._transport.api).recurring_run_service_delete_recurring_run
        self._transport.call(Asked("delete", "jobs", f"schedule {schedule.name}"), call, schedule.id)

    # Records of answers.

    def _run(self, found: Any) -> KubeflowRun:
        history = [status.state for status in found.state_history or ()]
        details = found.run_details.task_details if found.run_details else None
        tasks = [
            Task(str(each.display_name), str(each.state), _pod(each)) for each in details or () if each.display_name
        ]
        return KubeflowRun(
            id=self._transport.identifier(found, "run_id"),
            name=str(found.display_name),
            state=str(found.state or "PENDING"),
            created=found.created_at,
            scheduled=found.scheduled_at,
            finished=found.finished_at,
            # A run that was cancelled ends as FAILED; that it went through CANCELING stays.
            canceled=found.state == "CANCELED" or "CANCELING" in history,
            parameters=dict((found.runtime_config and found.runtime_config.parameters) or {}),
            tasks=tuple(tasks),
        )

    def _schedule(self, found: Any) -> Schedule:
        reference = found.pipeline_version_reference
        cron = found.trigger.cron_schedule.cron if found.trigger and found.trigger.cron_schedule else None
        return Schedule(
            id=self._transport.identifier(found, "recurring_run_id"),
            name=str(found.display_name),
            enabled=found.mode == "ENABLE" if found.mode else found.status != "DISABLED",
            cron=cron,
            experiment=str(found.experiment_id),
            pipeline=(str(reference.pipeline_id), str(reference.pipeline_version_id)) if reference else ("", ""),
            service_account=found.service_account or None,
            parameters=dict((found.runtime_config and found.runtime_config.parameters) or {}),
        )


def _reference(pipeline: tuple[str, str]) -> Any:
    return api.V2beta1PipelineVersionReference(pipeline_id=pipeline[0], pipeline_version_id=pipeline[1])


def _pod(task: Any) -> str | None:
    names = [task.pod_name, *(child.pod_name for child in task.child_tasks or ())]
    return next((str(name) for name in names if name), None)
