"""Read numbers that are written as text: thousands separators, currency signs, percent signs and decimal commas.

The *form* of a column is the notation of its numbers. It is ``PLAIN`` for a decimal point without a sign. Any other
form is the number 1000 as the column would write it, without separators and with the sign at the end: ``"1000.0 $"``,
``"1000,0"`` or ``"1000.0 %"``.
"""

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = [
    "PLAIN",
    "are_quantities",
    "is_number_form",
    "number_form",
    "parse_number",
    "parse_numbers",
    "warn_of_rounding",
]

PLAIN = "number"
SEPARATORS = {".": ", '\u00a0\u202f", ",": ". '\u00a0\u202f"}  # of thousands, by the decimal mark
SIGNS = r"[$€£¥₹%]|USD|EUR|GBP|CHF|JPY|INR"
MAX_UNITS = 5  # a column with more endings than these has codes such as "12A", not quantities

_FORM = re.compile(rf"1000(?P<mark>[.,])0(?: (?P<sign>{SIGNS}))?")
_SIGN_AT_AN_END = re.compile(rf"^[-+]?\s?({SIGNS})|({SIGNS})$")
_QUANTITY = re.compile(
    rf"[-+]?\s?(?P<before>{SIGNS})?\s?[-+]?\d[\d.,']*\s?"
    rf"(?P<after>{SIGNS}|(?!(?:st|nd|rd|th)$)(?:[^\W\d_]|°)[^\d\s]{{0,7}}(?:\s[^\d\s]{{1,3}})?[23]?)?"
)


def warn_of_rounding(name: str, whole: NDArray[np.generic], values: NDArray[np.float64]) -> None:
    """Warn if float64 ``values`` of a column are equal where its ``whole`` numbers, beyond 2**53, are not."""
    if whole.dtype.kind in "iu" and values.size and np.abs(values).max() >= 2**53:
        lost = len(np.unique(whole)) - len(np.unique(values))
        if lost > 0:
            warnings.warn(
                f"{name}: of the different whole numbers beyond 2**53, {lost} become equal to others as float64; "
                "subtract a constant, or make them a category",
                UserWarning,
                stacklevel=2,
            )


def number_form(texts: Sequence[str]) -> str:
    """Return the form that reads most of the texts; `PLAIN` if two forms read equally many.

    >>> number_form(["$1,200", "$850"]), number_form(["3,5", "12,75"]), number_form(["1,200", "850"])
    ('1000.0 $', '1000,0', 'number')
    """
    series = pd.Series(texts, dtype=object)
    read = {PLAIN: np.isfinite(parse_numbers(series, PLAIN)).sum()}
    if read[PLAIN] < len(texts):
        found = (match[1] or match[2] for text in texts if (match := _SIGN_AT_AN_END.search(text.strip())))
        for sign in ("", *(sign for sign, _ in Counter(found).most_common(1))):
            for mark in ".,":
                form = f"1000{mark}0 {sign}".strip()
                read[form] = np.isfinite(parse_numbers(series, form)).sum()
    return max(read, key=lambda form: read[form])


def is_number_form(text: str) -> bool:
    """Return whether a text is the form of a column of numbers."""
    return text == PLAIN or _FORM.fullmatch(text) is not None


def parse_numbers(texts: "pd.Series[str]", form: str) -> NDArray[np.float64]:
    """Return the numbers of texts that are written in a form, NaN for any other text."""
    if _mark_and_sign(form)[0] == ".":
        numbers: NDArray[np.float64] = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64).copy()
    else:
        numbers = np.full(len(texts), np.nan)
    cells = texts.to_numpy(object)
    for k in np.flatnonzero(np.isnan(numbers)):
        numbers[k] = parse_number(cells[k], form)
    return numbers


def parse_number(text: str, form: str = PLAIN) -> float:
    """Return the number that a text writes in a form, with its sign or without it; NaN for any other text.

    >>> parse_number("$1,234.5", "1000.0 $"), parse_number("1.234,5", "1000,0"), parse_number("5 km")
    (1234.5, 1234.5, nan)
    """
    mark, sign = _mark_and_sign(form)
    match = _pattern(mark, sign).fullmatch(text.strip().replace("\u2212", "-"))
    if match is None:
        return np.nan
    digits = re.sub(f"[{SEPARATORS[mark]}]", "", match["number"]).replace(",", ".")
    return -float(digits) if "-" in match["front"] else float(digits)


def are_quantities(texts: Sequence[str]) -> NDArray[np.bool_]:
    """Return which texts are a number with a unit or a currency sign; none if there are more than `MAX_UNITS` units.

    >>> are_quantities(["12 kg", "0.5 kg", "heavy"]).tolist(), are_quantities(["1st", "2nd"]).tolist()
    ([True, True, False], [False, False])
    """
    matches = [_QUANTITY.fullmatch(text.strip()) for text in texts]
    units = [(match["before"], match["after"]) if match else (None, None) for match in matches]
    found = np.array([unit != (None, None) for unit in units], dtype=bool)
    return found & (len(set(units) - {(None, None)}) <= MAX_UNITS)


def _mark_and_sign(form: str) -> tuple[str, str]:
    """Return the decimal mark and the sign of a form."""
    match = _FORM.fullmatch(form)
    return (".", "") if match is None else (match["mark"], match["sign"] or "")


@lru_cache(maxsize=64)
def _pattern(mark: str, sign: str) -> re.Pattern[str]:
    """Return the pattern of a number with optional thousands separators and an optional sign on either side."""
    one = f"(?:{re.escape(sign)})?"
    separator = f"[{SEPARATORS[mark]}]"
    whole = rf"(?:[1-9]\d{{0,2}}(?P<separator>{separator})\d{{3}}(?:(?P=separator)\d{{3}})*|\d+)"
    decimals = re.escape(mark)
    return re.compile(
        rf"(?P<front>[-+]?\s?{one}\s?|{one}\s?[-+]?)"
        rf"(?P<number>(?:{whole}(?:{decimals}\d*)?|{decimals}\d+)(?:[eE][-+]?\d+)?)\s?{one}",
        re.ASCII,
    )
