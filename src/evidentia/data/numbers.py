"""Read numbers that are written with a unit, a currency, separators of thousands or a decimal comma.

How a column writes them is kept as a template: the number 1000.0 as the column would write it, such as "$1,000.0",
"1.000,0 km" or "1000,0 %".
"""

import re
from collections.abc import Iterable
from functools import lru_cache

__all__ = ["is_template", "number_template", "parse_with_template"]

_PREFIX = r"(?P<prefix>(?:[$€£¥₹]|USD|EUR|GBP|CHF|INR|Rs\.?)\s?)?"
_SUFFIX = r"(?P<suffix>\s?(?:%|[^\W\d_]|[°µ$€£¥₹])[^\d\s]{0,6}(?:\s[^\d\s]{1,6})?[23]?)?"  # % or km/h, sq ft, m2
_WRITTEN = re.compile(rf"{_PREFIX}(?P<number>[-+]?[0-9][0-9.,' \u00a0\u202f]*?){_SUFFIX}")
_MARKS = {  # separator of thousands and decimal mark, by the number 1000.0 with them
    "1000.0": ("", "."),
    "1000,0": ("", ","),
    "1,000.0": (",", "."),
    "1.000,0": (".", ","),
    "1 000,0": (" ", ","),
    "1 000.0": (" ", "."),
    "1'000.0": ("'", "."),
}


def number_template(texts: Iterable[str]) -> str | None:
    """Return how texts write numbers, with one unit and one way of writing, None if not all of them are such numbers.

    "1,200" counts as 1200, as long as commas have three digits behind them and no number above 999 lacks one;
    otherwise the comma is a decimal one. Where no number is without a comma, the two differ by a unit only.

    >>> number_template(["$1,200", "$850"]), number_template(["3,5 km", "12 km"]), number_template(["A12", "A13"])
    ('$1,000.0', '1000,0 km', None)
    """
    found = [_WRITTEN.fullmatch(text.strip()) for text in texts]
    matches = [match for match in found if match is not None]
    units = {(match["prefix"] or "", match["suffix"] or "") for match in matches}
    if len(matches) < len(found) or len(units) != 1:
        return None
    numbers = [_plain_spaces(match["number"]) for match in matches]
    for sample in ("1000.0", "1,000.0", "1.000,0", "1 000,0", "1 000.0", "1'000.0", "1000,0"):
        group = _MARKS[sample][0]
        grouped = any(group in number for number in numbers) if group else False
        if grouped and any(re.match(r"[-+]?(0\D|\d{4})", number) for number in numbers):
            continue  # a number above 999 without the mark, or 0,250: it is no separator of thousands
        if sample == "1000,0" and _is_in_doubt(numbers):
            return None
        if (grouped or not group) and all(_pattern(sample).fullmatch(number) for number in numbers):
            prefix, suffix = next(iter(units))
            return f"{prefix}{sample}{suffix}"
    return None


def _is_in_doubt(numbers: list[str]) -> bool:
    """Return whether 1,200 stands beside 1200, so that the comma may as well be a slip as a decimal one."""
    return all(re.fullmatch(r"[-+]?([1-9][0-9]{0,2},[0-9]{3}|[0-9]+)", number) for number in numbers)


def parse_with_template(text: str, template: str) -> float | None:
    """Return the number that a text means if it is written as the template, with its unit or without; else None.

    >>> parse_with_template("$1,234.5", "$1,000.0"), parse_with_template("1,2 km", "$1,000.0")
    (1234.5, None)
    """
    prefix, sample, suffix = _parts(template)
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        return None
    unit = (match["prefix"] or "", match["suffix"] or "")
    number = _plain_spaces(match["number"])
    if unit not in (("", ""), (prefix, suffix)) or not _pattern(sample).fullmatch(number):
        return None
    group, decimal = _MARKS[sample]
    return float((number.replace(group, "") if group else number).replace(decimal, "."))


def is_template(text: str) -> bool:
    """Return whether a text is a template of numbers."""
    try:
        return len(_parts(text)) == 3
    except ValueError:
        return False


@lru_cache(maxsize=256)
def _parts(template: str) -> tuple[str, str, str]:
    """Return what stands before the number of a template, the number, and what stands behind it, or raise."""
    match = _WRITTEN.fullmatch(template)
    if match is None or match["number"] not in _MARKS:
        raise ValueError(f"{template!r} is no template of numbers")
    return match["prefix"] or "", match["number"], match["suffix"] or ""


@lru_cache(maxsize=16)
def _pattern(sample: str) -> re.Pattern[str]:
    """Return the pattern of numbers that are written as 1000.0 is here."""
    group, decimal = map(re.escape, _MARKS[sample])
    whole = rf"(?:\d{{1,3}}(?:{group}\d{{3}})+|\d{{1,3}})" if group else r"\d+"
    return re.compile(rf"[-+]?{whole}(?:{decimal}\d+)?", re.ASCII)


def _plain_spaces(number: str) -> str:
    return number.strip().replace("\u00a0", " ").replace("\u202f", " ")
