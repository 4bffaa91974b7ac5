"""The report of runs at every point of their life, parsed as a browser would."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from shardline.components.common.runfolder import write_json
from shardline.components.common.streams import StreamWriter
from shardline.components.monitoring import report

if TYPE_CHECKING:
    from conftest import MadeRun


class Parsed(HTMLParser):
    """The page's elements, their balance, its text."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += f" {data}"

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def written(made: MadeRun) -> tuple[str, Parsed]:
    url = report.run(made.config)
    assert url == made.folder.url_of("report.html")
    page = made.folder.read("report.html").decode()
    parsed = Parsed(page)
    assert parsed.open == []
    return page, parsed


def test_a_complete_run_shows_all_there_is(made: MadeRun) -> None:
    made.add_dataset()
    made.add_training(last=150)
    made.add_training(generation=3, first=140)
    made.add_evaluation()
    page, parsed = written(made)
    for text in (
        "quickstart complete gate passed",
        "1.274 bits per byte",
        "gzip -9 1.823 xz 1.611",
        "nats per token, perplexity 22.7",
        "983 k 0.12 times the training text",
        "240 of 240, 16 samples each",
        "held-out 3.123",
        "generation 3",
        "1,583 17",
        "3 documents (68.4 KiB) not UTF-8: 2, binary: 1",
        "2 near-duplicates of held-out documents",
        "3b1f9d0a5a6e4d1f8e7c6b5a49382716",
        "the least idle time (20%)",
        "rank 3 ended with signal 9",
        "_get_value(self, name)",
        "quickstart/model (7.00 MiB)",
        "version: 1",
    ):
        assert text in parsed.words, text
    assert parsed.tags.count("svg") == 1 + 2 + 4  # the wordmark, the loss for wide and narrow screens, four small ones
    assert "nan" not in re.sub(r"[a-z]{1}nan|nan[a-z]{1}", "", page)


def test_the_page_is_self_contained_and_nothing_from_the_run_is_markup(made: MadeRun) -> None:
    made.add_dataset()
    made.add_training()
    made.add_evaluation()
    write_json(made.folder, "errors/train.json", {"message": f"oh {made.hostile}", "exit_code": 175})
    page, parsed = written(made)
    assert parsed.tags.count("script") == 1
    assert parsed.words.count(made.hostile) == 3  # a skipped file, a sample, the error
    assert not [name for name, _ in parsed.attributes if name in ("src", "href")]
    assert "http" not in page and "@import" not in page


def test_a_run_that_has_only_begun_says_what_is_missing(made: MadeRun) -> None:
    _, parsed = written(made)
    for text in ("begun", "Not evaluated yet", "No metrics yet", "Not written yet", "Not chosen yet", "None yet"):
        assert text in parsed.words, text


def test_a_run_on_its_way(made: MadeRun) -> None:
    made.add_dataset()
    made.add_training(last=1)
    _, parsed = written(made)
    assert "step 1 of 240" in parsed.words
    assert "Not evaluated yet" in parsed.words


def test_numbers_that_are_not_finite_are_shown_as_such(made: MadeRun) -> None:
    made.add_training(last=3)
    with StreamWriter(made.folder.at("metrics"), generation=3, writer="rank0") as metrics:
        metrics.append("train", {"step": 3, "loss": float("nan"), "grad_norm": float("inf"), "tokens": 1})
    gate = {"passed": False, "reason": "no finite number", "max_bits_per_byte": 2.5}
    made.add_evaluation(loss="nan", perplexity="nan", bits_per_byte="nan", gate=gate)
    page, parsed = written(made)
    assert "nan bits per byte" in parsed.words
    assert "gate refused" in parsed.words
    assert not re.search(r'(points|cx|cy|x1|y1)="[^"]*nan', page)


def test_a_run_without_held_out_text_or_comparison(made: MadeRun) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("loss", "perplexity", "bits_per_byte", "compressors", "decoded"))
    made.add_evaluation(**nothing)
    _, parsed = written(made)
    assert "No text was held out" in parsed.words


def test_a_failed_step_is_at_the_top(made: MadeRun) -> None:
    made.add_training(last=20)
    error = {"message": "the corpus is gone", "exit_code": 2, "type": "UserError"}
    write_json(made.folder, "errors/train.json", error)
    _, parsed = written(made)
    assert "failed in step train" in parsed.words
    assert parsed.words.index("the corpus is gone") < parsed.words.index("Held-out text")


def test_a_stop_is_no_failure(made: MadeRun) -> None:
    made.add_training(last=20)
    write_json(made.folder, "errors/train.json", {"message": "interrupted", "exit_code": 130, "type": "Stopped"})
    _, parsed = written(made)
    assert "stopped in step train" in parsed.words
    assert "failed" not in parsed.words


def test_steps_are_never_more_than_were_to_be_done(made: MadeRun) -> None:
    made.add_training()
    made.add_evaluation()
    training = made.config.training.model_copy(update={"steps": 60})
    made.config = made.config.model_copy(update={"training": training})
    _, parsed = written(made)
    assert "of 60" not in parsed.words
    assert "Optimizer steps 240 16 samples each" in parsed.words


def test_a_result_of_an_earlier_step_is_not_the_runs(made: MadeRun) -> None:
    made.add_training()
    made.add_evaluation(step=120)
    _, parsed = written(made)
    assert "step 240, not evaluated yet" in parsed.words


def test_the_config_is_the_one_that_the_run_uses(made: MadeRun) -> None:
    assert made.config.training.schedule.decay_steps is None
    _, parsed = written(made)
    assert "decay_steps: 240" in parsed.words


def test_a_rough_number_says_so(made: MadeRun) -> None:
    made.add_training()
    made.add_evaluation(rough="the held-out text is little (3 documents, 1.0 KiB), so the number is rough")
    _, parsed = written(made)
    assert "The held-out text is little (3 documents, 1.0 KiB)" in parsed.words


def test_a_redone_step_counts_once(made: MadeRun) -> None:
    made.add_training(last=150)
    made.add_training(generation=3, first=140)
    _, parsed = written(made)
    assert f"{240 * 4096 / 1e3:.0f} k" in parsed.words


def test_very_many_events_do_not_make_a_page_that_nobody_reads(made: MadeRun) -> None:
    with StreamWriter(made.folder.at("events"), generation=2, writer="train") as events:
        for step in range(1, 5001):
            events.append("checkpoint.committed", {"step": step})
    page, parsed = written(made)
    assert "4,701 events left out" in parsed.words  # of 5,001: the report's own first one is there too
    assert len(page) < 200_000


def test_a_run_that_lost_a_worker_on_the_way(made: MadeRun) -> None:
    made.folder.write("errors/000003/00001.json", b'{"message": "a peer is gone", "exit_code": 175}')
    _, page = written(made)
    assert "a peer is gone" not in page.text
