"""Data: where rows come from, how they are divided, and how they are encoded."""
