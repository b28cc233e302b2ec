"""A user's data: tables and images, how their rows are divided, and how they are encoded."""
