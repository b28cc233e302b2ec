"""Read dates and times of day that are written as text, without guessing which number is the month."""

import datetime
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["DateOrder", "Writing", "are_seasons", "choose_order", "parse_date", "parse_time", "writing_of"]

# What comes first in dates such as 03/04/21, whose month is a number and whose year does not come first with four
# digits; empty if no such date was met.
DateOrder = Literal["", "day first", "month first", "year first"]

_MONTHS = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?"
)
_MONTH_NUMBERS = {name[:3]: k + 1 for k, name in enumerate(_MONTHS.split("|"))}
_WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+)?"
_NAME = rf"(?P<name>{_MONTHS})\.?"
_YEAR = r"(?P<year>\d{4}|\d{2})"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.ASCII)


_BEGINNING = _pattern(rf"\d|q[1-4]|{_MONTHS}|mon|tue|wed|thu|fri|sat|sun")  # tells most text that is no date
_YEAR_FIRST = _pattern(r"(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})")
_THREE_NUMBERS = _pattern(rf"(?P<first>\d{{1,2}})(?P<mark>[-/.])(?P<middle>\d{{1,2}})(?P=mark){_YEAR}")
_DAY_NAME = _pattern(rf"{_WEEKDAY}(?P<day>\d{{1,2}})(?:st|nd|rd|th|\.)?[\s-]*{_NAME},?[\s-]*{_YEAR}")
_NAME_DAY = _pattern(rf"{_WEEKDAY}{_NAME}\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<year>\d{{4}})")
_MONTH_NUMBER = _pattern(r"(?P<year>[12]\d{3})[-/M](?P<month>\d\d)")
_NUMBER_MONTH = _pattern(r"(?P<month>\d{1,2})[-/](?P<year>(?:1[89]|20)\d\d)")
_MONTH_NAME = _pattern(rf"{_NAME}(?:[\s-]+(?P<year>\d{{4}})|[-'](?P<short>\d\d))")
_QUARTER = _pattern(r"(?P<year>[12]\d{3})[\s-]?Q(?P<quarter>[1-4])|Q(?P<before>[1-4])[\s/-]?(?P<behind>[12]\d{3})")
_WEEK = _pattern(r"(?P<year>[12]\d{3})[\s-]?W(?P<week>\d\d)")
_SEASON = _pattern(r"(?P<first>[12]\d{3})[-/](?P<last>\d\d)")
_CLOCK = _pattern(
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?"
    r"(?:\s*(?P<half>[ap])\.?m\.?)?(?:\s*(?P<zone>z|utc|gmt|[+-]\d{2}(?::?\d{2})?))?"
)


@dataclass(frozen=True)
class Writing:
    """How a text writes a date.

    Attributes:
        form: a date, a month, quarter or week without a day, or a time of day.
        orders: the orders that give a date that exists; empty where the text itself says which number is what.
        mark: what divides three numbers, where the order matters.
        short_year: whether the year has two digits.
    """

    form: Literal["date", "month", "quarter", "week", "time"]
    orders: tuple[DateOrder, ...] = ()
    mark: str = ""
    short_year: bool = False


def writing_of(text: str) -> Writing | None:
    """Return how a text writes a date, a month or a time of day, None if it does not."""
    text = text.strip()
    if not 4 <= len(text) <= 60 or not _BEGINNING.match(text):
        return None
    if _from_iso(text) is not None:
        return _ISO
    parts = _split(text)
    if parts is None:
        return None if parse_time(text) is None else Writing("time")
    found = _days_of(parts[0])
    return None if found is None or _clock(parts[1]) is None else found[0]


_ISO = Writing("date")


def parse_date(text: str, order: DateOrder) -> datetime.datetime | None:
    """Return the moment that a text means in this order, in UTC without a zone, None if it means none.

    Two-digit years are those from 1969 to 2068, as for the C library. A month, quarter or week without a day is its
    first day.

    >>> parse_date("31.12.2020 18:30", "day first")
    datetime.datetime(2020, 12, 31, 18, 30)
    """
    text = text.strip()
    moment = _from_iso(text)
    if moment is not None:
        return moment
    parts = _split(text)
    found = None if parts is None else _days_of(parts[0])
    if parts is None or found is None:
        return None
    day, time = found[1].get("", found[1].get(order)), _clock(parts[1])
    if day is None or time is None:
        return None
    try:
        return day + time
    except OverflowError:
        return None


def parse_time(text: str) -> float | None:
    """Return the seconds since midnight of a time of day such as 18:30, 18:30:15 or 6:30 PM, None of other text."""
    match = _CLOCK.fullmatch(text.strip())
    time = None if match is None or match["zone"] else _clock(match.group())
    return None if time is None else time.total_seconds()


def choose_order(
    texts: Sequence[str], writings: Sequence[Writing]
) -> DateOrder | tuple[DateOrder, str, DateOrder, str]:
    """Return the one order in which every text is a date, or two orders that are in doubt, each with an example.

    Points mean day.month.year unless a value forbids it: month.day.year is usual nowhere. With two digits for the year,
    year first is considered only where nothing else is possible, or where hyphens divide the numbers. A position that
    is always 1, beside one that is not, is the day: such dates are the first days of months.
    """
    numeric = [(text, w) for text, w in zip(texts, writings, strict=True) if w.orders]
    if not numeric:
        return ""
    possible = [order for order in numeric[0][1].orders if all(order in w.orders for _, w in numeric)]
    if not possible:
        return _contradiction(numeric)
    marks = {w.mark for _, w in numeric}
    if len(possible) > 1 and marks != {"-"} and "year first" in possible:
        possible.remove("year first")
    if marks == {"."} and "day first" in possible:
        return "day first"
    if len(possible) == 1:
        return possible[0]
    if set(possible) == {"day first", "month first"}:
        firsts, middles = ({_part(text, k) for text, _ in numeric} for k in (0, 1))
        if {1} in (firsts, middles) and max(len(firsts), len(middles)) >= 3:
            return "day first" if firsts == {1} else "month first"
    example = next((text for text, w in numeric if set(possible) <= set(w.orders)), numeric[0][0])
    return possible[0], example, possible[-1], example


def _part(text: str, position: int) -> int:
    """Return one of the numbers that a date begins with."""
    return int(re.findall(r"\d+", text)[position])


def are_seasons(texts: Sequence[str]) -> bool:
    """Return whether all texts name two years in a row, as in 2001-02 and 1999/00, which also look like months."""
    found = [_SEASON.fullmatch(text.strip()) for text in texts]
    return all(match is not None and int(match["last"]) == (int(match["first"]) + 1) % 100 for match in found)


def _contradiction(numeric: Sequence[tuple[str, Writing]]) -> tuple[DateOrder, str, DateOrder, str]:
    """Return an order that one text demands and another text forbids, with both texts."""
    text, writing = min(numeric, key=lambda pair: len(pair[1].orders))
    other, against = next((t, w) for t, w in numeric if writing.orders[0] not in w.orders)
    return writing.orders[0], text, against.orders[0], other


def _from_iso(text: str) -> datetime.datetime | None:
    """Return the moment of an ISO text with a full date; other ways of writing are slower to recognise."""
    if not (text[4:5] == "-" and text[7:8] == "-") and text[8:9] != "T":
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
        return moment if moment.tzinfo is None else moment.astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _split(text: str) -> tuple[str, str] | None:
    """Return the texts of the day and of the time, which may be empty; None if there is no day."""
    colon = text.find(":")
    if colon < 0:
        return text, ""
    start = colon - (2 if text[colon - 2 : colon].isdigit() and colon > 1 else 1)
    before = text[:start]
    day = before.rstrip(" ,\t") if before[-1:].isspace() else before[:-1] if before[-1:] in ("T", "t") else ""
    return (day, text[start:]) if day else None


@functools.lru_cache(maxsize=1 << 14)  # a column of moments has few days
def _days_of(text: str) -> tuple[Writing, dict[DateOrder, datetime.datetime]] | None:
    """Return how a day is written, and which day it is in each order; under "" where the order does not matter."""
    match = _THREE_NUMBERS.fullmatch(text)
    if match is not None:
        return _days_of_numbers(match["first"], match["middle"], match["year"], match["mark"])
    for pattern in (_YEAR_FIRST, _DAY_NAME, _NAME_DAY, _MONTH_NUMBER, _NUMBER_MONTH, _MONTH_NAME):
        match = pattern.fullmatch(text)
        if match is not None:
            parts = match.groupdict()
            year = parts["year"] or parts["short"]
            month = int(parts["month"]) if "month" in parts else _MONTH_NUMBERS[parts["name"][:3].lower()]
            day = _day(_full_year(year), month, int(parts.get("day", 1)))
            form: Literal["date", "month"] = "date" if "day" in parts else "month"
            return None if day is None else (Writing(form, short_year=len(year) == 2), {"": day})
    return _quarter_or_week(text)


def _quarter_or_week(text: str) -> tuple[Writing, dict[DateOrder, datetime.datetime]] | None:
    """Return the first day of a quarter such as 1950Q2, or of a week such as 2020-W12, counted as in ISO 8601."""
    match = _QUARTER.fullmatch(text)
    if match is not None:
        year, quarter = int(match["year"] or match["behind"]), int(match["quarter"] or match["before"])
        return Writing("quarter"), {"": datetime.datetime(year, 3 * quarter - 2, 1)}
    match = _WEEK.fullmatch(text)
    try:
        monday = None if match is None else datetime.datetime.fromisocalendar(int(match["year"]), int(match["week"]), 1)
    except ValueError:
        return None
    return None if monday is None else (Writing("week"), {"": monday})


def _days_of_numbers(
    first: str, middle: str, last: str, mark: str
) -> tuple[Writing, dict[DateOrder, datetime.datetime]] | None:
    """Return the days that three numbers may mean."""
    a, b, year = int(first), int(middle), _full_year(last)
    short = len(last) == 2
    tried: dict[DateOrder, datetime.datetime | None] = {
        "day first": _day(year, b, a),
        "month first": _day(year, a, b),
        "year first": _day(_full_year(first), b, int(last)) if short and len(first) == 2 else None,
    }
    days = {order: day for order, day in tried.items() if day is not None}
    if not days:
        return None
    if not short and a == b:
        return Writing("date"), {"": next(iter(days.values()))}
    return Writing("date", tuple(days), mark, short), days


def _full_year(digits: str) -> int:
    year = int(digits)
    return year if len(digits) == 4 else year + (1900 if year >= 69 else 2000)


def _day(year: int, month: int, day: int) -> datetime.datetime | None:
    try:
        return datetime.datetime(year, month, day)
    except ValueError:
        return None


@functools.lru_cache(maxsize=1 << 14)
def _clock(text: str) -> datetime.timedelta | None:
    """Return the time since midnight UTC that a text means, none of an empty text, None if there is no such time."""
    if not text:
        return datetime.timedelta()
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute, second, half, zone = (match[name] for name in ("hour", "minute", "second", "half", "zone"))
    hours = int(hour)
    if int(minute) > 59 or int(second or 0) > 59 or hours > 23 or (half and not 1 <= hours <= 12):
        return None
    if half:
        hours = hours % 12 + (12 if half.lower() == "p" else 0)
    microseconds = int((match["fraction"] or "0").ljust(6, "0")[:6])
    time = datetime.timedelta(0, int(second or 0), microseconds, 0, int(minute), hours)
    if zone is None or zone[0] not in "+-":
        return time
    offset = datetime.timedelta(hours=int(zone[1:3]), minutes=int(zone[3:].lstrip(":") or 0))
    return time - (offset if zone[0] == "+" else -offset)
