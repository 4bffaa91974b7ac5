"""What a job and its pods tell, from objects as an API server gives them."""

from __future__ import annotations

from typing import Any

import pytest

from shardline.components.elasticity import jobstate


def job(*conditions: str) -> dict[str, Any]:
    """Every condition that a job ever had stays; those named here hold."""
    known = ("Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed")
    return {
        "status": {
            "conditions": [
                {"type": each, "status": str(each in conditions), "message": f"about {each}"} for each in known
            ]
        }
    }


@pytest.mark.parametrize(
    ("conditions", "phase"),
    [
        (("Created",), "created"),
        (("Created", "Running"), "running"),
        (("Created", "Restarting"), "created"),
        (("Created", "Suspended"), "suspended"),
        (("Created", "Succeeded"), "succeeded"),
        (("Created", "Failed"), "failed"),
    ],
)
def test_the_phase_is_that_of_what_holds(conditions: tuple[str, ...], phase: str) -> None:
    assert jobstate.phase_of(job(*conditions)) == phase


def test_a_job_that_nobody_has_seen_yet_is_created() -> None:
    assert jobstate.phase_of({}) == "created"
    assert jobstate.reason_of_failure(job("Failed")) == "about Failed"
    assert jobstate.reason_of_failure(job("Running")) == ""


def pod(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": status}


def waiting(reason: str) -> list[dict[str, Any]]:
    return [{"state": {"waiting": {"reason": reason, "message": f"{reason} it is"}}}]


def test_obstacles_name_the_pod_and_the_reason() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu."}
    quota = {"type": "Warning", "reason": "FailedCreatePod", "message": "exceeded quota: compute"}
    pods = [
        pod("a", conditions=[unscheduled]),
        pod("b", containerStatuses=waiting("ImagePullBackOff")),
        pod("c", containerStatuses=waiting("ContainerCreating")),
        pod("d", initContainerStatuses=waiting("CreateContainerConfigError")),
        pod("e"),
    ]
    assert jobstate.obstacles(pods, [quota, quota, {"type": "Normal", "reason": "SuccessfulCreatePod"}]) == [
        "a is not scheduled: 0/3 nodes are available: 3 Insufficient cpu.",
        "b: its image cannot be pulled: ImagePullBackOff it is",
        "d: its container cannot be configured: CreateContainerConfigError it is",
        "exceeded quota: compute",
    ]


def ended(code: int, at: str, **more: str) -> list[dict[str, Any]]:
    return [{"state": {"terminated": {"exitCode": code, "finishedAt": at, **more}}}]


def test_the_pod_that_ended_badly_first_has_the_first_word() -> None:
    pods = [
        pod("later", containerStatuses=ended(175, "2026-01-01T00:00:09Z", reason="Error", message="lost a peer\n")),
        pod("first", containerStatuses=ended(137, "2026-01-01T00:00:01Z", reason="OOMKilled")),
        pod("well", containerStatuses=ended(0, "2026-01-01T00:00:00Z")),
    ]
    assert jobstate.last_words(pods) == [
        "first ended with exit code 137 (OOMKilled)",
        "later ended with exit code 175:\nlost a peer",
    ]
    assert jobstate.exit_code_of(pods) == 137
    assert jobstate.exit_code_of([]) == 1


def test_only_a_person_cancels() -> None:
    assert jobstate.is_cancelled({"spec": {"activeDeadlineSeconds": 0}})
    assert jobstate.is_cancelled({"spec": {"shutdown": "Terminate"}})
    assert not jobstate.is_cancelled({"spec": {"activeDeadlineSeconds": 3600}})
    assert not jobstate.is_cancelled({"spec": {}})
    assert not jobstate.is_cancelled(None)
