"""Read numbers that are written with a unit, a currency, separators of thousands or a decimal comma.

How a column writes them is kept as a template: the number 1000.0 as the column would write it, such as "$1,000.0",
"1.000,0 km" or "1000,0 %". "$1000.0 K/M/B" says that numbers are followed by K, M or B for thousands, millions and
billions, "₹1000.0 Lakh/Cr" the same of lakhs and crores.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

__all__ = ["dominant_template", "is_template", "number_template", "parse_with_template", "without_unit"]

_PREFIX = r"(?P<prefix>(?:[$€£¥₹]|USD|EUR|GBP|CHF|INR|Rs\.?)\s?)?"
_SUFFIX = r"(?P<suffix>\s?(?:%|[^\W\d_]|[°µ$€£¥₹])[^\d\s]{0,6}(?:\s[^\d\s]{1,6})?[23]?)?"  # % or km/h, sq ft, m2
_WRITTEN = re.compile(rf"(?P<sign>[-+])?{_PREFIX}(?P<number>[-+]?[0-9][0-9.,' \u00a0\u202f]*?){_SUFFIX}")
_MARKS = {  # separator of thousands and decimal mark, by the number 1000.0 with them
    "1000.0": ("", "."),
    "1000,0": ("", ","),
    "1,000.0": (",", "."),
    "1.000,0": (".", ","),
    "1 000,0": (" ", ","),
    "1 000.0": (" ", "."),
    "1'000.0": ("'", "."),
}
_FACTORS = {  # what stands behind numbers, and by what it multiplies them; by the end of the template
    " K/M/B": {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9},
    " Lakh/Cr": {"": 1.0, "Lakh": 1e5, "Lakhs": 1e5, "Lac": 1e5, "L": 1e5, "Cr": 1e7, "Crore": 1e7, "Crores": 1e7},
}
_PLAIN: dict[str, dict[int, str | None]] = {  # to a number as Python writes it, by the decimal mark
    ".": {ord(","): None, ord(" "): None, ord("'"): None},
    ",": {ord("."): None, ord(" "): None, ord("'"): None, ord(","): "."},
}

Unit = tuple[str, str]  # what stands before the number, and what stands behind it


def number_template(texts: Iterable[str]) -> str | None:
    """Return how texts write numbers, with one unit and one way of writing, None if not all of them are such numbers.

    "1,200" counts as 1200, as long as commas have three digits behind them and no number above 999 lacks one;
    otherwise the comma is a decimal one. Where no number is without a comma, the two differ by a unit only. K, M and B
    are factors beside a currency or where several of them occur, and units otherwise.

    >>> number_template(["$1,200", "$850"]), number_template(["3,5 km", "12 km"]), number_template(["A12", "A13"])
    ('$1,000.0', '1000,0 km', None)
    """
    matches = []
    for text in texts:
        match = _taken_apart(text)
        if match is None:
            return None
        matches.append(match)
    unit = _common_unit({(prefix, suffix) for _, prefix, suffix in matches})
    if unit is None:  # also of no texts
        return None
    sample = _common_marks([number for number, _, _ in matches])
    return None if sample is None else f"{unit[0]}{sample}{unit[1]}"


def dominant_template(counts: Mapping[str, int], most: float) -> str | None:
    """Return how the texts with the most frequent unit write numbers.

    Args:
        counts: how often each text occurs.
        most: how many rows may have texts that are no numbers; None is returned if there are more.

    >>> dominant_template({"5 km": 20, "7 km": 3, "3 mi": 1, "far": 2}, most=2)
    '1000.0 km'
    """
    units: Counter[Unit] = Counter()
    texts: dict[Unit, list[str]] = {}
    for text, count in counts.items():
        match = _taken_apart(text)
        if match is None:
            most -= count
            if most < 0:
                return None
            continue
        _, prefix, suffix = match
        if suffix:  # all factors of a kind are one unit, and K, M and B may be absent
            family = next((end for end, factors in _FACTORS.items() if suffix.strip() in factors), suffix)
            suffix = "" if family == " K/M/B" else family
        units[prefix, suffix] += count
        texts.setdefault((prefix, suffix), []).append(text)
    return number_template(texts[units.most_common(1)[0][0]]) if units else None


def _common_unit(units: set[Unit]) -> Unit | None:
    """Return the one unit of a column, with all factors as one; None if there are several."""
    prefixes, suffixes = {prefix for prefix, _ in units}, {suffix.strip() for _, suffix in units}
    prefix = next(iter(prefixes), "")
    for end, known in _FACTORS.items():
        factors = {known[suffix] for suffix in suffixes if suffix} if suffixes <= set(known) else set()
        clear = len(factors) > 1 or (factors and prefix and end == " K/M/B") or (1e3 in factors and "" in suffixes)
        if clear and len(prefixes) == 1:  # 3 beside 3B is a flat
            return prefix, end
    return next(iter(units)) if len(units) == 1 else None


def _common_marks(numbers: list[str]) -> str | None:
    """Return the number 1000.0 as all numbers would write it, None if they differ or leave it in doubt."""
    for sample in ("1000.0", "1,000.0", "1.000,0", "1 000,0", "1 000.0", "1'000.0", "1000,0"):
        group = _MARKS[sample][0]
        grouped = any(group in number for number in numbers) if group else False
        if grouped and any(re.match(rf"[-+]?(0{re.escape(group)}|\d{{4}})", number) for number in numbers):
            continue  # a number above 999 without the mark, or 0,250: it is no separator of thousands
        if sample == "1000,0" and _is_in_doubt(numbers):
            return None
        if (grouped or not group) and all(_pattern(sample).fullmatch(number) for number in numbers):
            return sample
    return None


def _is_in_doubt(numbers: list[str]) -> bool:
    """Return whether 1,200 stands beside 1200, so that the comma may as well be a slip as a decimal one."""
    return all(re.fullmatch(r"[-+]?([1-9][0-9]{0,2},[0-9]{3}|[0-9]+)", number) for number in numbers)


def parse_with_template(text: str, template: str) -> float | None:
    """Return the number that a text means if it is written as the template, with its unit or without; else None.

    The template says which mark is the decimal one. Separators of thousands may then be there or not, because whether
    training rows had any depends on how large their numbers were.

    >>> parse_with_template("$1,234.5", "$1000.0"), parse_with_template("1,2 km", "$1,000.0")
    (1234.5, None)
    """
    prefix, sample, suffix = _parts(template)
    match = _taken_apart(text)
    if match is None:
        return None
    number, *unit = match
    factor = 1.0
    if suffix in _FACTORS:
        if unit[1].strip() not in _FACTORS[suffix] or unit[0] not in ("", prefix):
            return None
        factor = _FACTORS[suffix][unit[1].strip()]
    elif tuple(unit) not in (("", ""), (prefix, suffix)):
        return None
    if not _later_pattern(sample).fullmatch(number):
        return None
    return factor * float(number.translate(_PLAIN[_MARKS[sample][1]]))


def without_unit(text: str, template: str) -> str:
    """Return a text without the unit of a template at its ends: "null" of "null km"."""
    prefix, _, suffix = _parts(template)
    return text.strip().removeprefix(prefix.strip()).removesuffix(suffix.strip()).strip()


def is_template(text: str) -> bool:
    """Return whether a text is a template of numbers."""
    try:
        return len(_parts(text)) == 3
    except ValueError:
        return False


def _taken_apart(text: str) -> tuple[str, str, str] | None:
    """Return a number with its sign in front, its prefix and its suffix; None if the text is no number with a unit.

    Signs are before the currency or behind it, and brackets stand for a minus: -$5, $-5 and ($5) are the same.
    """
    text = text.strip().replace("\u2212", "-")
    bracketed = text.startswith("(") and text.endswith(")")
    match = _WRITTEN.fullmatch(text[1:-1].strip() if bracketed else text)
    if match is None:
        return None
    number, prefix, suffix = match["number"], match["prefix"] or "", match["suffix"] or ""
    number = number.strip().replace("\u00a0", " ").replace("\u202f", " ")
    sign = "-" if bracketed else match["sign"] or ""
    if sign and not number[0].isdigit():
        return None  # two signs
    return sign + number, prefix, suffix


@lru_cache(maxsize=256)
def _parts(template: str) -> tuple[str, str, str]:
    """Return what stands before the number of a template, the number, and what stands behind it, or raise."""
    match = _WRITTEN.fullmatch(template)
    if match is None or match["sign"] or match["number"] not in _MARKS:
        raise ValueError(f"{template!r} is no template of numbers")
    return match["prefix"] or "", match["number"], match["suffix"] or ""


def _grouped(group: str) -> str:
    """Return the pattern of whole numbers with a separator: of thousands, or with commas also 4,79,000 as in India."""
    mark = re.escape(group)
    return rf"\d{{1,3}}(?:{mark}\d{{3}})+" + (r"|\d{1,2}(?:,\d{2})+,\d{3}" if group == "," else "")


@lru_cache(maxsize=16)
def _pattern(sample: str) -> re.Pattern[str]:
    """Return the pattern of numbers that are written as 1000.0 is here."""
    group, decimal = _MARKS[sample]
    whole = rf"(?:{_grouped(group)}|\d{{1,3}})" if group else r"\d+"
    return re.compile(rf"[-+]?{whole}(?:{re.escape(decimal)}\d+)?", re.ASCII)


@lru_cache(maxsize=16)
def _later_pattern(sample: str) -> re.Pattern[str]:
    """Return the pattern of numbers with the same decimal mark, with separators of thousands or without."""
    group, decimal = _MARKS[sample]
    groups = (group,) if group else (",", " ", "'") if decimal == "." else (".", " ")
    whole = "|".join((r"\d+", *map(_grouped, groups)))
    return re.compile(rf"[-+]?(?:{whole})(?:{re.escape(decimal)}\d+)?", re.ASCII)
