import pickle

import pytest

from howsure.errors import HowsureError, InputError, InputTypeError

FIELDS = {"column": "size", "row": 3, "value": "12 kg", "hint": "write numbers"}


@pytest.mark.parametrize("kind", [HowsureError, InputError, InputTypeError])
def test_error_keeps_its_fields_through_pickle(kind):
    error = pickle.loads(pickle.dumps(kind("'12 kg' is not a number", **FIELDS)))
    assert type(error) is kind
    assert error.message == "'12 kg' is not a number"
    assert {name: getattr(error, name) for name in FIELDS} == FIELDS
    assert str(error) == "'12 kg' is not a number (row 3); write numbers"


def test_error_without_fields_is_its_message():
    error = InputError("empty")
    assert str(error) == "empty"
    assert (error.column, error.row, error.value, error.hint) == (None, None, None, None)
    assert isinstance(error, ValueError)
    assert isinstance(InputTypeError("x"), TypeError)
