"""What status and the end of a run say: where it stands, where it goes on, and what to type next."""

from __future__ import annotations

from typing import Any

import pytest

from shardline.pipelines import results
from shardline.pipelines.summary import goes_on, next_steps, table

STOPPED = {"message": "interrupted", "exit_code": 130}
FAILED = {"message": "the loss diverged", "exit_code": 2}
GATE = {"passed": True, "reason": "no threshold is set", "max_bits_per_byte": None}


def evaluation(step: int, **changes: Any) -> dict[str, Any]:
    compressors = {"gzip_9": 1.7, "xz": 1.5}
    return {"step": step, "bits_per_byte": 2.0, "compressors": compressors, "gate": GATE, **changes}


def summary(*, step: int = 60, steps: int = 60, **changes: Any) -> dict[str, Any]:
    training = {
        "step": step,
        "steps": steps,
        "decay_steps": 60,
        "floor": 0.1,
        "loss": 2.5,
        "tokens": 6000,
        "seconds": 60.0,
        "tokens_per_second": 100.0,
    }
    nothing = dict.fromkeys(("done", "status", "evaluation", "model", "model_step", "report", "last_finished"))
    owner = {"pid": 1, "host": "here", "alive": False}
    return {
        "run": "small",
        "folder": "/runs/small",
        "owner": owner,
        "errors": {},
        "dataset": {"tokens": 5},
        "checkpoint": step,
        "training": training,
        **nothing,
        **changes,
    }


def state(**changes: Any) -> str:
    return dict(table(summary(**changes), command="bin/shardline"))["state"]


def test_the_state_names_what_comes_next() -> None:
    assert state(training=None, checkpoint=None) == "sharded; next: bin/shardline train CONFIG"
    assert state() == "trained; next: bin/shardline evaluate CONFIG"
    assert state(evaluation=evaluation(40)) == "trained; next: bin/shardline evaluate CONFIG"
    assert state(evaluation=evaluation(60)) == "evaluated; next: bin/shardline report CONFIG"
    assert state(evaluation=evaluation(60), last_finished="report") == "evaluated and reported"
    assert state(done={"finished": "today"}) == "done, today"


def test_a_stop_is_a_stop_and_says_what_is_done_again() -> None:
    stopped = summary(step=76, steps=400, checkpoint=60, errors={"train": STOPPED})
    rows = dict(table(stopped, command="shardline"))
    assert rows["state"] == (
        "stopped in train; the same command goes on from optimizer step 60 (16 steps will be done again)"
    )
    assert "error in train" not in rows
    assert state(step=76, steps=400, checkpoint=60).startswith("stopped in train")  # killed: it left no record
    rows = dict(table(summary(errors={"train": FAILED}), command="shardline"))
    assert (rows["state"], rows["error in train"]) == ("failed in train", "the loss diverged")


def test_where_a_run_goes_on() -> None:
    assert goes_on(summary(), step="shard") == "the same command goes on from here"
    assert goes_on(summary(step=60), step="train") == "the same command goes on from optimizer step 60"
    # Metrics may be written for some steps alone, the status for each.
    status = {"phase": "train", "step": 61}
    assert goes_on(summary(status=status), step="train").endswith("step 60 (1 step will be done again)")
    early = goes_on(summary(step=9, checkpoint=None), step="train")
    assert early == "no checkpoint yet: the same command begins training again (9 steps done)"


@pytest.mark.parametrize(("step", "steps", "shown"), [(60, 60, "step 60 of 60"), (265, 60, "step 265, ")])
def test_no_more_steps_are_shown_than_there_are(step: int, steps: int, shown: str) -> None:
    line = results.training_line(summary(step=step, steps=steps)["training"])
    assert line is not None and line.startswith(shown)


def test_results_say_which_step_they_are_of() -> None:
    done = summary(evaluation=evaluation(60, rough="it is rough"), model="/model", model_step=60)
    rows = dict(table(done, command="shardline"))
    assert rows["held-out"] == "2.000 bits per byte at step 60 (gzip -9 1.700, xz 1.500)"
    assert rows["note"] == "it is rough"
    assert rows["model"] == "/model (step 60)"


def test_training_further_than_the_decay_is_told_with_its_price() -> None:
    text = next_steps(summary(), train_to=lambda steps: f"shardline run x --set training.steps={steps}")
    assert "train further:       shardline run x --set training.steps=120\n" in text
    assert "(steps 61-120 run at the floor, 0.1 x lr; set training.schedule.decay_steps at the beginning" in text
    constant = summary()
    constant["training"]["decay_steps"] = None
    assert "floor" not in next_steps(constant, train_to=str)
