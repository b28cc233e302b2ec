"""Advice of the library in words of the shell: it is written for Python, and here there are files and options."""

import re

__all__ = ["in_shell_words"]

_WORDS = [
    (r"make (?:it|the column) a category with \.astype\('category'\)", "take it for a category with --category"),
    (r"convert the column with pandas\.to_datetime\(.*?\) or [^,;]*", "write them as year-month-day"),
    (r"to a category with \.astype\('category'\), or to their middles", "to text, or to their middles"),
    (r"convert periods to dates with \.dt\.to_timestamp\(\)", "write periods as dates"),
    (r", for example with \.astype\(str\)", ", for example to text"),
    (r"convert them to (dates|durations), for example with pandas\.\w+ and their unit", r"write \1 as in training"),
    (r"write it again with pandas\.DataFrame\.to_feather", "write it again as version 2, or as Parquet"),
    (
        r"CRPS and coverage say more than NLL here: howsure\.metrics\.summary\(prediction, y\)",
        "Look at CRPS and coverage, not at NLL",
    ),
    (r' target_transform="positive" gives zeros', ' In Python, target_transform="positive" gives zeros'),
    (r"lower learning_rate, and look for outliers in X and y", "look for outliers in the columns and in the target"),
    (r"\by (is|has|varies|reaches)\b(.*); pass y in other units", r"the target \1\2; write it in other units"),
    (
        r"name another file, or replace it with replace=True \(--force on the command line\)",
        "--force replaces it, -o names another file",
    ),
]


def in_shell_words(text: str) -> str:
    """Return a message of the library with advice that a user of the shell can follow.

    >>> in_shell_words("other text, make it a category with .astype('category').")
    'other text, take it for a category with --category.'
    """
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text
