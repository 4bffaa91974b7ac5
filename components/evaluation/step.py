"""The evaluation step: the newest checkpoint measured on held-out text, tried out, exported and judged.

Called by the pipeline's evaluate component and by `shardline evaluate`. Run again it skips what is there for the same
checkpoint, data and settings; the gate decides anew, as its threshold may have changed.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from torch import nn

from shardline.components.common.config import RunConfig
from shardline.components.common.errors import DamagedData, UserError
from shardline.components.common.machine import device
from shardline.components.common.runfolder import read_json, write_json
from shardline.components.common.step import StepContext, stepping
from shardline.components.common.streams import jsonable, now
from shardline.components.common.workers import Agent, Job
from shardline.components.evaluation import compression, gate
from shardline.components.evaluation.convert import NO_FORM, source_of, write_model
from shardline.components.evaluation.export import is_exported
from shardline.components.evaluation.generate import generate
from shardline.components.evaluation.measures import measure
from shardline.components.planning.choose import choose
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.step import find_dataset
from shardline.components.training.checkpoint import catalog
from shardline.components.training.checkpoint.catalog import CheckpointRecord
from shardline.components.training.checkpoint.whole import load_model
from shardline.components.training.session import torch_device

ENTRY = "shardline.components.evaluation.worker:evaluate"
#: Held-out text below either of these gives a number that another draw of documents would change visibly.
_ENOUGH_DOCUMENTS, _ENOUGH_BYTES = 10, 64 << 10
MODEL_FOLDER = "model"
RESULT_VERSION = 1


def result_file(step: int) -> str:
    """Where in the run folder the result for the checkpoint of optimizer step `step` lies."""
    return f"evaluation/step-{step:012d}.json"


def run(config: RunConfig, *, agent: Agent, sources: dict[str, str] | None = None) -> dict[str, Any]:
    """Evaluate the run's current checkpoint and export it; returns the result as it is in the run folder.

    A refusal by the gate is part of the result and no error: `gate.enforce` makes one of it.

    Raises:
        UserError: there is no checkpoint or no data set.
        DamagedData: the checkpoint is not what was written.
        ShardlineError: the error that ended the workers.
    """
    with stepping(config, "evaluate", sources=sources) as context:
        config = context.config
        record = catalog.current(context.run)
        if record is None:
            raise UserError("nothing to evaluate", where=context.run.url, hint="run `shardline train CONFIG` first")
        subject = _Subject(config, context, record)
        before = read_json(context.run, result_file(record.step))
        result = before if subject.is_result(before) else subject.evaluate(agent)
        subject.export()
        result = _judged(result, config=config, context=context, decided=before)
        if result != before:
            context.lease.check()
            write_json(context.run, result_file(record.step), result)
        context.summary.update({name: result[name] for name in ("checkpoint", "loss", "bits_per_byte")})
        return result


def rough(*, documents: int, bytes: int) -> str | None:
    """What to say of a number that is over so little held-out text, in bytes; None where it is enough."""
    if documents >= _ENOUGH_DOCUMENTS and bytes >= _ENOUGH_BYTES:
        return None
    what = f"{documents:,} document{'s' * (documents != 1)}, {bytes / 1024:.1f} KiB"
    return f"the held-out text is little ({what}), so the number is rough; raise sharding.held_out in a new run"


def _judged(
    result: dict[str, Any], *, config: RunConfig, context: StepContext, decided: dict[str, Any] | None
) -> dict[str, Any]:
    bits = result["bits_per_byte"]
    # A number that JSON has no form for is stored as text.
    verdict = gate.decide(config.gate, bits_per_byte=None if bits is None else float(bits))
    judged = {**result, "gate": {**verdict.to_json(), "max_bits_per_byte": config.gate.max_bits_per_byte}}
    if judged != decided:
        context.events.emit("gate.decided", {"step": result["step"], **judged["gate"]}, reason=verdict.reason)
    return judged


class _Subject:
    """The checkpoint that is evaluated, with what belongs to it; the model is loaded when something needs it."""

    def __init__(self, config: RunConfig, context: StepContext, record: CheckpointRecord) -> None:
        self._config, self._context, self._record = config, context, record
        self._data: Dataset = find_dataset(config)
        self._folder = context.run.at(MODEL_FOLDER)
        self._source = source_of(record)
        self._settings = config.evaluation.model_dump(mode="json")

    @cached_property
    def _model(self) -> nn.Module:
        model = self._config.model
        shape = model.shape(self._data.manifest.vocab)
        return load_model(self._context.run, self._record, shape, named=model.class_).to(
            torch_device(device(self._config, world=1), local_rank=0)
        )

    def is_result(self, found: dict[str, Any] | None) -> bool:
        """Whether `found` is the result for this checkpoint, on this data, under these settings."""
        return found is not None and all(found.get(key) == value for key, value in self._identity().items())

    def _identity(self) -> dict[str, Any]:
        manifest = self._data.manifest
        return {
            "version": RESULT_VERSION,
            "step": self._record.step,
            **self._source,
            "dataset": {"key": manifest.key, "fingerprint": manifest.fingerprint},
            "settings": self._settings,
        }

    def evaluate(self, agent: Agent) -> dict[str, Any]:
        """The result without the gate's verdict, JSON-able."""
        held_out = self._data.manifest.held_out
        measured = self._measure(agent) if held_out.blocks else dict.fromkeys(("loss", "perplexity", "bits_per_byte"))
        compared = self._compare() if held_out.blocks and self._config.evaluation.compare else None
        result = {
            **self._identity(),
            "time": now(),
            "documents": held_out.documents,
            "tokens": held_out.tokens,
            "bytes": held_out.bytes,
            **measured,
            "compressors": compared and compared.compressors(),
            "decoded": compared and {"bytes": compared.decoded_bytes, "lossless": compared.lossless},
            "samples": self._samples(),
            "rough": rough(documents=held_out.documents, bytes=held_out.bytes) if held_out.blocks else None,
        }
        told = ("step", "loss", "perplexity", "bits_per_byte", "tokens", "bytes", "compressors")
        self._context.events.emit("evaluation.finished", {name: result[name] for name in told})
        if result["rough"]:
            about = {"documents": held_out.documents, "bytes": held_out.bytes}
            self._context.events.emit("evaluation.rough", about, reason=str(result["rough"]))
        return dict(jsonable(result))

    def _measure(self, agent: Agent) -> dict[str, Any]:
        run, manifest = self._context.run, self._data.manifest
        output = f"evaluation/work/{self._context.generation:06d}.json"

        def arguments(generation: int, world: int) -> dict[str, Any]:
            choice = choose(self._config, world=world, vocab=manifest.vocab)
            where = device(self._config, world=world)
            return {"dataset": manifest.key, "layout": choice.layout.to_json(), "device": where, "output": output}

        job = Job(name="evaluate", entry=ENTRY, arguments=arguments)
        agent.run(job, run=run, lease=self._context.lease, events=self._context.events)
        totals = read_json(run, output)
        run.delete_tree("evaluation/work")
        if (totals["step"], totals["generation"]) != (self._record.step, self._record.generation):
            raise DamagedData(
                "the checkpoint is not what was written and was put aside",
                where=run.url_of(self._record.folder),
                hint=f"run `shardline train CONFIG` again: it goes on from optimizer step {totals['step']}",
            )
        held_out = manifest.held_out
        if (totals["tokens"], totals["bytes"]) != (held_out.tokens, held_out.bytes):
            raise RuntimeError(f"{totals} is not over each of the {held_out.tokens} held-out tokens once")
        return measure(nats=float(totals["nats"]), tokens=totals["tokens"], bytes=totals["bytes"]).to_json()

    def _compare(self) -> compression.Comparison | None:
        held_out = self._data.manifest.held_out
        if held_out.bytes != held_out.text_bytes:
            return None  # the model is measured on responses alone, which are no text for a compressor
        return compression.compare(self._data.texts("held_out"), expected_bytes=held_out.bytes)

    def _samples(self) -> list[dict[str, Any]]:
        tokenizer, settings = self._data.tokenizer(), self._config.evaluation
        samples = []
        for number, prompt in enumerate(settings.prompts):
            tokens = generate(
                self._model,
                tokenizer.encode([prompt])[0].tolist(),
                new_tokens=settings.new_tokens,
                temperature=settings.temperature,
                seed=self._config.training.seed + number,
                end_of_text=tokenizer.end_of_text,
                context=self._config.training.sequence,
            )
            samples.append({"prompt": prompt, "text": tokenizer.decode(tokens), "tokens": len(tokens)})
        return samples

    def export(self) -> None:
        """Write the Hugging Face folder, unless it is there already."""
        if is_exported(self._folder, source=self._source):
            return
        if self._config.model.class_:
            told = {"checkpoint": self._record.folder, "class": self._config.model.class_}
            self._context.events.emit("model.not_exported", told, reason=NO_FORM)
            return
        marker = write_model(self._folder, self._context.run, self._record, config=self._config, data=self._data)
        size = sum(file["size"] for file in marker["files"].values())
        about = {"url": self._folder.url, "files": len(marker["files"]), "bytes": size, **self._source}
        self._context.events.emit("model.exported", about)
