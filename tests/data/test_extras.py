"""The door says which extra is missing."""

import pytest

from brctc.extras import check_extra


def test_what_is_missing_is_named_with_its_extra():
    with pytest.raises(ImportError, match=r"needs no_such_module here: in its checkout, pip .* '\.\[asr\]'"):
        check_extra(("torch", "no_such_module"))
    check_extra(("torch",))
    check_extra()
