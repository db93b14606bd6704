"""Kinds from outside the package: corpora, encoders, losses and others that register themselves.

A module is named by `brctc --import my_module ...`, by the environment variable BRCTC_IMPORT, or by an entry
point of the group "brctc" in an installed package. Neither a recipe nor a model can name one: loading
them must not run anybody's code.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points

VARIABLE = "BRCTC_IMPORT"
GROUP = "brctc"


def add_plugins(*modules: str) -> None:
    """Names modules for this process, and for those that it starts."""
    known = os.environ.get(VARIABLE, "").split(",")
    os.environ[VARIABLE] = ",".join(dict.fromkeys(name for name in (*known, *modules) if name))


def load_plugins() -> None:
    """Imports every module that was named; what it registers can then be used."""
    names = [name for name in os.environ.get(VARIABLE, "").split(",") if name]
    if names and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a module of one's own lies where the command is called
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ImportError(f"--import {name}: {error}") from error
    for point in entry_points(group=GROUP):
        point.load()
