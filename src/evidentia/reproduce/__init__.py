"""The experiments of the paper, each a plan, a run that continues where it was, and a page."""
