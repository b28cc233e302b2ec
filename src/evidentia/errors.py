"""The exceptions of evidentia: few, and each about something the caller can correct."""

__all__ = ["EvidentiaError", "InputError", "InputTypeError"]


class EvidentiaError(Exception):
    """Base of every error that evidentia raises on purpose."""


class InputError(EvidentiaError, ValueError):
    """A value, shape, name or device that cannot be used; the message says which, where, and what to do."""


class InputTypeError(EvidentiaError, TypeError):
    """An object or dtype of the wrong kind, such as integer targets."""
