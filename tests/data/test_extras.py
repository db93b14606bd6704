"""The door says which extra is missing."""

import subprocess
import sys

import pytest

from brctc.extras import check_extra


def test_what_is_missing_is_named_with_its_extra():
    with pytest.raises(ImportError, match=r"needs no_such_module here: in its checkout, pip .* '\.\[asr\]'"):
        check_extra(("torch", "no_such_module"))
    check_extra(("torch",))
    check_extra()


@pytest.mark.parametrize("package", ["data", "models"])
def test_a_package_of_the_extra_says_so_when_it_is_imported(package):
    code = f"import sys; sys.modules.update(lhotse=None, safetensors=None); import brctc.{package}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    hint = "ImportError: brctc needs lhotse, safetensors here: in its checkout, pip install '.[asr]'"
    assert found.stderr.splitlines()[-1] == hint
