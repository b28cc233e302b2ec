"""Numbers and counts as sentences show them."""

import numpy as np

__all__ = ["clip", "counted", "percent", "show"]


def show(value: float | None, digits: int = 4) -> str:
    """Return a number with ``digits`` significant digits, with an exponent only if it is tiny or huge.

    >>> show(1234567.0), show(0.0123456), show(2.0), show(1e-9), show(-3.14159), show(None)
    ('1,234,567', '0.01235', '2', '1e-09', '−3.142', '–')
    """
    if value is None or np.isnan(value):
        return "–"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size and not 1e-4 <= size < 1e9:
        text = f"{value:.{digits - 1}e}"
        mantissa, exponent = text.split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"
    else:
        decimals = max(0, digits - 1 - int(np.floor(np.log10(size)))) if size else 0
        text = f"{value:,.{decimals}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−", 1) if text.startswith("-") else text


def percent(share: float) -> str:
    """Return a share as a percentage, with one decimal near 0 and 1.

    >>> " ".join(map(percent, (0.895, 0.999, 0.0, 0.0012, 0.0004)))
    '90% 99.9% 0% 0.1% below 0.1%'
    """
    value = 100 * share
    if 0 < value < 0.1:
        return "below 0.1%"
    if 99.9 < value < 100:
        return "above 99.9%"
    near_end = 0 < min(value, 100 - value) < 2
    return f"{value:.1f}%" if near_end else f"{value:.0f}%"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun.

    >>> counted(1, "row"), counted(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def clip(text: str, most: int = 80) -> str:
    """Return a text from a table, cut to ``most`` characters.

    >>> clip("abcdef", 4), clip("abc", 4)
    ('abc…', 'abc')
    """
    return text if len(text) <= most else text[: most - 1] + "…"
