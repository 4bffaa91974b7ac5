"""Cron as people write it: what it fires at, what Kubeflow makes of what it is given, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardline.components.common.errors import UserError
from shardline.pipelines.kubeflow.cron import parse

NOW = datetime(2026, 12, 2, 14, 5, 30, tzinfo=UTC)
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def shown(text: str, *, after: datetime = NOW, count: int = 3) -> list[str]:
    return [f"{moment:%Y-%m-%d %H:%M}" for moment in parse(text).times(after=after, count=count)]


@pytest.mark.parametrize(
    ("text", "kubeflow", "times"),
    [
        ("0 2 * * *", "0 0 2 * * *", ["2026-12-03 02:00", "2026-12-04 02:00", "2026-12-05 02:00"]),
        ("*/20 14 * * *", "0 0,20,40 14 * * *", ["2026-12-02 14:20", "2026-12-02 14:40", "2026-12-03 14:00"]),
        ("5/30 * * * *", "0 5,35 * * * *", ["2026-12-02 14:35", "2026-12-02 15:05", "2026-12-02 15:35"]),
        ("5 14 * * *", "0 5 14 * * *", ["2026-12-03 14:05", "2026-12-04 14:05", "2026-12-05 14:05"]),
        ("0 0 * * 7", "0 0 0 * * 0", ["2026-12-06 00:00", "2026-12-13 00:00", "2026-12-20 00:00"]),
        ("0 0 * * Fri-7", "0 0 0 * * 0,5,6", ["2026-12-04 00:00", "2026-12-05 00:00", "2026-12-06 00:00"]),
        ("0 0 29 feb *", "0 0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"]),
        ("0 0 13 * 5", "0 0 0 13 * 5", ["2026-12-04 00:00", "2026-12-11 00:00", "2026-12-13 00:00"]),
        ("0 0 31 * *", "0 0 0 31 * *", ["2026-12-31 00:00", "2027-01-31 00:00", "2027-03-31 00:00"]),
    ],
)
def test_it_fires_when_people_mean(text: str, kubeflow: str, times: list[str]) -> None:
    assert parse(text).for_kubeflow() == kubeflow
    assert shown(text) == times


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 0 2 * * *", "6 fields and should have 5, without the seconds"),
        ("0 2 * *", "4 fields"),
        ("", "0 fields"),
        ("2", "has 1 field and"),
        ("0 2 31 2 *", "never fires: there is no day 31 in February"),
        ("0 2 31 4,6 1", "never fires"),
        ("0 24 * * *", "'24' as hour; give a number from 0 to 23"),
        ("60 2 * * *", "'60' as minute"),
        ("0 2 0 * *", "'0' as day of the month"),
        ("0 2 * 13 *", "'13' as month"),
        ("0 2 * * 8", "'8' as day of the week"),
        ("0 2 * feb *x", "as day of the week"),
        ("0 22-2 * * *", "runs backwards; write two ranges"),
        ("*/0 2 * * *", "the step 0 as minute"),
        ("0 2 L * *", "'L' as day of the month"),
        ("0 2 ? * *", "'?' as day of the month"),
        ("0 2 */2 * 1", "readers of cron take differently"),
        ("0 2 1 * */2", "readers of cron take differently"),
        ("CRON_TZ=Europe/Berlin 30 2 * * *", "times are in UTC"),
        ("TZ=UTC 30 2 * * *", "times are in UTC"),
        ("@daily", "write '0 0 * * *'"),
        ("0 ２ * * *", "'２' as hour"),
    ],
)
def test_what_would_fire_at_another_time_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert str(caught.value).startswith("--cron: ")


def test_the_night_when_clocks_change_is_as_any_other() -> None:
    berlin = timezone(timedelta(hours=2))
    before = datetime(2026, 10, 24, 12, tzinfo=berlin)
    assert shown("30 2 * * *", after=before) == ["2026-10-25 02:30", "2026-10-26 02:30", "2026-10-27 02:30"]


def field(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    pair = st.tuples(number, number).map(lambda both: f"{min(both)}-{max(both)}")
    stepped = st.tuples(pair, st.integers(1, most)).map(lambda both: f"{both[0]}/{both[1]}")
    one = st.one_of(number.map(str), pair, stepped)
    return st.one_of(st.just("*"), st.lists(one, min_size=1, max_size=3).map(",".join))


crons = st.tuples(*(field(least, most) for least, most in RANGES)).map(" ".join)
moments = st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


def as_kubeflow_reads(text: str, moment: datetime) -> bool:
    """Whether six fields, seconds first, of numbers and stars alone fire at `moment`: the rules of its cron library."""
    fields = [None if each == "*" else {int(number) for number in each.split(",")} for each in text.split(" ")]
    weekday = moment.isoweekday() % 7
    now = (moment.second, moment.minute, moment.hour, moment.day, moment.month, weekday)
    hits = [allowed is None or value in allowed for allowed, value in zip(fields, now, strict=True)]
    if fields[3] is None or fields[5] is None:
        return all(hits)
    return all(hits[:3]) and hits[4] and (hits[3] or hits[5])


@given(crons, moments)
def test_the_times_shown_are_those_at_which_kubeflow_fires(text: str, start: datetime) -> None:
    try:
        cron = parse(text)
    except UserError as error:
        assert "never fires" in str(error)
        assume(False)
    six = cron.for_kubeflow()
    assert len(six.split(" ")) == 6
    times = cron.times(after=start, count=3)
    assert times == sorted(set(times)) and times[0] > start
    assert all(as_kubeflow_reads(six, moment) for moment in times)
    # Nothing in between is passed over; a gap of years is looked at in part.
    minute = start.replace(second=0, microsecond=0)
    for _ in range(2000):
        minute += timedelta(minutes=1)
        if minute > times[-1]:
            break
        assert as_kubeflow_reads(six, minute) == (minute in times)
