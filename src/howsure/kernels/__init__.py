"""Fast versions of code elsewhere in the package, for one kind of machine: the same arithmetic, up to rounding."""
