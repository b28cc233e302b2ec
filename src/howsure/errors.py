"""The exceptions of howsure: few, and each about something the caller can correct."""

__all__ = ["HowsureError", "InputError", "InputTypeError", "install_hint"]


class HowsureError(Exception):
    """Base of every error that howsure raises on purpose."""


class InputError(HowsureError, ValueError):
    """A value, shape, name or device that cannot be used; the message says which, where, and what to do."""


class InputTypeError(HowsureError, TypeError):
    """An object or dtype of the wrong kind, such as integer targets."""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, for error messages.

    >>> install_hint("onnx")
    'pip install ".[onnx]" in a checkout of howsure'
    """
    return f'pip install ".[{extra}]" in a checkout of howsure'
