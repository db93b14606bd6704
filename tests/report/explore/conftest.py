"""Trained models to look at."""

from tests.evaluate.conftest import trained

__all__ = ["trained"]
