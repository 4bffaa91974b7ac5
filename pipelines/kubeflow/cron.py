"""When a schedule fires: cron as people write it, five fields, in UTC. Pure.

Called by `shardline schedule`. Kubeflow reads six fields, seconds first, so that five would mean something else there
(`0 2 * * *` fires at minute 2 of every hour). Numbers are handed on written out, as the readers of cron differ in what
they make of steps, of names and of Sunday as 7.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shardline.components.common.errors import UserError

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FORM = "write minute, hour, day of the month, month and day of the week, as in '30 2 * * *', every day at 02:30 UTC"
#: 29 February is eight years away at most, as 2100 is no leap year.
_DAYS_AHEAD = 8 * 366 + 2


@dataclass(frozen=True)
class _Field:
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _WEEKDAYS),
)


@dataclass(frozen=True)
class Values:
    """What a field allows, in order; `every` where it is left open."""

    numbers: tuple[int, ...]
    every: bool

    def __str__(self) -> str:
        return "*" if self.every else ",".join(str(number) for number in self.numbers)


@dataclass(frozen=True)
class Cron:
    """The minutes at which a schedule fires. In `weekdays` Sunday is 0."""

    minutes: Values
    hours: Values
    days: Values
    months: Values
    weekdays: Values

    def for_kubeflow(self) -> str:
        """The six fields that Kubeflow reads."""
        return f"0 {self.minutes} {self.hours} {self.days} {self.months} {self.weekdays}"

    def fires_on(self, day: datetime) -> bool:
        """Whether it fires at some time of that day; when both kinds of day are given, either is enough, as in cron."""
        if day.month not in self.months.numbers:
            return False
        in_month = day.day in self.days.numbers
        in_week = day.isoweekday() % 7 in self.weekdays.numbers
        return in_month and in_week if self.days.every or self.weekdays.every else in_month or in_week

    def times(self, *, after: datetime, count: int) -> list[datetime]:
        """The next `count` times after `after`, in UTC."""
        found: list[datetime] = []
        for moment in self._times(after.astimezone(UTC)):
            found.append(moment)
            if len(found) == count:
                break
        return found

    def _times(self, after: datetime) -> Iterator[datetime]:
        midnight = after.replace(hour=0, minute=0, second=0, microsecond=0)
        while True:
            day = next(day for n in range(_DAYS_AHEAD) if self.fires_on(day := midnight + timedelta(days=n)))
            for hour in self.hours.numbers:
                for minute in self.minutes.numbers:
                    if (moment := day.replace(hour=hour, minute=minute)) > after:
                        yield moment
            midnight = day + timedelta(days=1)


def parse(text: str) -> Cron:
    """The schedule that `text` means.

    Raises:
        UserError: it has not five fields, a value that is out of range, a date that never comes, or a time zone.
    """
    if re.search(r"TZ\s*=", text, re.IGNORECASE):
        raise _error(text, "times are in UTC, and Kubeflow knows no zone", "leave the zone out, and convert the hour")
    words = text.split()
    if text.strip().lower() in _SHORTHANDS:
        raise _error(text, "is a shorthand", f"write '{_SHORTHANDS[text.strip().lower()]}'")
    if len(words) != len(_FIELDS):
        raise _error(text, f"has {len(words)} field{'s' * (len(words) != 1)} and should have 5{_seconds(words)}", _FORM)
    minutes, hours, days, months, weekdays = (
        _values(text, word, field) for word, field in zip(words, _FIELDS, strict=True)
    )
    cron = Cron(minutes, hours, days, months, _weekdays(weekdays))
    _check_days(text, words, cron)
    return cron


def _error(text: str, rule: str, hint: str) -> UserError:
    return UserError(f"{text!r} {rule}", where="--cron", hint=hint)


def _seconds(words: list[str]) -> str:
    return ", without the seconds that Kubeflow's own form begins with" if len(words) == 6 else ""


def _values(text: str, word: str, field: _Field) -> Values:
    if word in ("*", "*/1"):
        return Values(tuple(range(field.least, field.most + 1)), every=True)
    numbers: set[int] = set()
    for part in word.split(","):
        numbers.update(_range(text, part, field))
    return Values(tuple(sorted(numbers)), every=False)


def _range(text: str, part: str, field: _Field) -> range:
    match = re.fullmatch(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?", part, re.ASCII)
    if match is None:
        raise _error(text, f"has {part!r} as {field.name}", "give numbers, ranges such as 1-5, or steps such as */15")
    star, first, last, step = match.groups()
    if step is not None and not 1 <= int(step) <= field.most:
        raise _error(text, f"has the step {step} as {field.name}", f"give one from 1 to {field.most}")
    if star:
        return range(field.least, _last(field) + 1, int(step or 1))
    start = _number(text, first, field)
    # A step from one number on goes to the end of the field: 5/15 is 5-59/15.
    end = _number(text, last, field) if last else _last(field) if step else start
    if end < start:
        raise _error(text, f"has {part!r} as {field.name}, which runs backwards", "write two ranges, with a comma")
    return range(start, end + 1, int(step or 1))


def _last(field: _Field) -> int:
    return 6 if field.names == _WEEKDAYS else field.most


def _number(text: str, word: str, field: _Field) -> int:
    if word.lower() in field.names:
        return field.names.index(word.lower()) + field.least
    if not (word.isdecimal() and field.least <= int(word) <= field.most):
        named = f", or a name such as {field.names[1]}" if field.names else ""
        rule = f"has {word!r} as {field.name}"
        raise _error(text, rule, f"give a number from {field.least} to {field.most}{named}")
    return int(word)


def _weekdays(values: Values) -> Values:
    """Sunday may be 0 or 7; to Kubeflow it is 0."""
    return Values(tuple(sorted({number % 7 for number in values.numbers})), values.every)


def _check_days(text: str, words: list[str], cron: Cron) -> None:
    if words[2].startswith("*/") and not cron.days.every and not cron.weekdays.every:
        rule = "has a step over the days of the month beside a day of the week, which readers of cron take differently"
        raise _error(text, rule, "give the days of the month as numbers, such as 1,15")
    if words[4].startswith("*/") and not cron.weekdays.every and not cron.days.every:
        rule = "has a step over the days of the week beside a day of the month, which readers of cron take differently"
        raise _error(text, rule, "give the days of the week as numbers, such as 1,3,5")
    # In a leap year: 29 February does come.
    longest = max(calendar.monthrange(2000, month)[1] for month in cron.months.numbers)
    if cron.days.numbers[0] > longest:
        months = ", ".join(calendar.month_name[month] for month in cron.months.numbers)
        raise _error(text, f"never fires: there is no day {cron.days.numbers[0]} in {months}", "correct day or month")
