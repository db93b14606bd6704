"""The door says which extra is missing."""

import pytest

from brctc.data import extras


def test_what_is_missing_is_named_with_its_extra():
    with pytest.raises(ImportError, match=r"needs no_such_module: in its checkout, pip install '.\[asr\]'"):
        extras.check(("torch", "no_such_module"))
