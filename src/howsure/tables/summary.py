"""The types of the columns of a table, as a frame that shows its sentences whole."""

import pandas as pd

__all__ = ["ColumnSummary"]


class ColumnSummary(pd.DataFrame):
    """A pandas frame with one row for each column of a table. Its text and HTML show long sentences in full."""

    def __repr__(self) -> str:
        return self.to_string()

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None):
            return self.to_html()
