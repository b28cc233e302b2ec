"""Records and predictions as tables and figures."""
