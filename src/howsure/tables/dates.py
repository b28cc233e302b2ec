"""Read dates and durations that are written as text.

The *form* of a column of dates is ``ISO``, or the day in the codes of ``strftime``: "%d.%m.%Y". Any form allows a time
of day behind the day. A text without a time zone is in UTC.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["DATE_FORMS", "ISO", "date_forms", "parse_dates", "parse_durations", "seconds_of"]

ISO = "ISO8601"
DATE_FORMS = (
    ISO,
    "%Y-%m",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%d/%m/%y",
    "%m/%d/%y",
    "%d %b %Y",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%d %B %Y",
    "%b %d, %Y",
    "%B %d, %Y",
)
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
MAX_SECONDS = 9_000_000_000_000  # in 64 bits of microseconds
SAMPLE = 50  # texts that choose the forms that all texts are read by

_ISO_DAY = r"\d{4}-\d\d-\d\d(?:[T ].*)?"
_LIKE_DATES = r"\w+[-/. ]\w+.*"
_DURATION = r"(?:-?\d+ days? )?[-+]?\d{1,3}:\d\d(?::\d\d(?:\.\d+)?)?"


def date_forms(texts: "pd.Series[str]") -> list[str]:
    """Return the form that reads most of the texts, none if no form reads any, and two if day and month are ambiguous.

    >>> date_forms(pd.Series(["31/12/2020", "01/02/2021"])), date_forms(pd.Series(["01/02/2021"]))
    (['%d/%m/%Y'], ['%d/%m/%Y', '%m/%d/%Y'])
    """
    sample = texts[:SAMPLE]
    if not sample.str.strip().str.fullmatch(_LIKE_DATES).any():
        return []
    if _count(parse_dates(sample, ISO)) == len(sample):
        return [ISO]
    likely = [form for form in DATE_FORMS if 2 * _count(parse_dates(sample, form)) > len(sample)]
    moments = {form: parse_dates(texts, form) for form in likely}
    most = max((_count(found) for found in moments.values()), default=0)
    best = [form for form, found in moments.items() if _count(found) == most]
    return [form for form in best if form == best[0] or (moments[form] != moments[best[0]]).any()]


def parse_dates(texts: "pd.Series[str]", form: str) -> NDArray[np.datetime64]:
    """Return the moments of texts that are written in a form or in ISO 8601, NaT for any other text.

    >>> parse_dates(pd.Series(["31.12.2020 18:30", "2020-12-31", "soon"]), "%d.%m.%Y").astype("M8[m]").tolist()
    [datetime.datetime(2020, 12, 31, 18, 30), datetime.datetime(2020, 12, 31, 0, 0), None]
    """
    stripped = texts.astype(object).str.strip()
    iso = stripped.str.fullmatch(_ISO_DAY).to_numpy(bool)
    found = np.full(len(texts), np.datetime64("NaT"), dtype="M8[us]")
    found[iso] = _parse(stripped[iso], ISO)
    for clock in CLOCKS if form != ISO else ():
        rest = np.isnat(found) & ~iso
        if not rest.any():
            break
        found[rest] = _parse(stripped[rest], form + clock)
    return found


def parse_durations(texts: "pd.Series[str]") -> NDArray[np.float64]:
    """Return the seconds of durations such as 18:30, 18:30:15 or "2 days 18:30:15", NaN for any other text.

    >>> parse_durations(pd.Series(["18:30", "1 days 00:00:01", "2:1"])).tolist()
    [66600.0, 86401.0, nan]
    """
    stripped = texts.astype(object).str.strip()
    like = stripped.str.fullmatch(_DURATION)
    whole = stripped.where(stripped.str.count(":") == 2, stripped + ":00").where(like)
    return seconds_of(pd.to_timedelta(whole, errors="coerce").to_numpy())


def seconds_of(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the seconds of moments since 1970 or of durations; NaN for NaT and beyond the range of microseconds."""
    kind = values.dtype.kind
    seconds = values.astype(f"{kind}8[s]").astype(np.int64)
    known = ~np.isnat(values) & (np.abs(seconds) < MAX_SECONDS)
    # the result is the same for every unit of NumPy, because it is rounded once
    micros = np.where(known, values, np.array(0, values.dtype)).astype(f"{kind}8[us]").astype(np.int64)
    return np.where(known, micros / 1e6, np.nan)


def _parse(texts: "pd.Series[str]", form: str) -> NDArray[np.datetime64]:
    """Return the moments of texts in exactly this form, in UTC, NaT for any other text."""
    moments = pd.to_datetime(texts, format=form, utc=True, errors="coerce")
    return moments.dt.tz_localize(None).to_numpy("M8[us]")


def _count(moments: NDArray[np.datetime64]) -> int:
    """Return the number of moments that are not NaT."""
    return int((~np.isnat(moments)).sum())
