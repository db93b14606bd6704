"""What is drawn here was measured there."""

from tests.evaluate.conftest import evaluation, model, split, trained

__all__ = ["evaluation", "model", "split", "trained"]
