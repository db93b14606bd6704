"""Training: recipes, stages, the loop and its checkpoints."""

from brctc.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    average_weights,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from brctc.train.config import (
    CheckpointConfig,
    CorpusConfig,
    CurriculumConfig,
    DecodeConfig,
    MonitorConfig,
    OptimiserConfig,
    Recipe,
    RiskConfig,
    Stage,
    WeightConfig,
)
from brctc.train.journal import read_metrics
from brctc.train.recipe import RecipeError, load_recipe, parse_recipe, read_recipe
from brctc.train.run import Interrupted, NonFiniteError
from brctc.train.schedule import learning_rate, risk_at, risk_factor
from brctc.train.stages import is_trained, train
from brctc.train.sweep import Cell, Plan, load_sweep
from brctc.train.timing import loss_seconds, step_shares

__all__ = [
    "Cell",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointError",
    "CorpusConfig",
    "CurriculumConfig",
    "DecodeConfig",
    "Interrupted",
    "MonitorConfig",
    "NonFiniteError",
    "OptimiserConfig",
    "Plan",
    "Recipe",
    "RecipeError",
    "RiskConfig",
    "Stage",
    "WeightConfig",
    "average_weights",
    "latest_checkpoint",
    "is_trained",
    "learning_rate",
    "list_checkpoints",
    "loss_seconds",
    "load_checkpoint",
    "load_recipe",
    "load_sweep",
    "parse_recipe",
    "read_metrics",
    "read_recipe",
    "risk_at",
    "risk_factor",
    "save_checkpoint",
    "step_shares",
    "train",
]
