"""Training: recipes, stages, the loop and its checkpoints."""

from brctc.extras import check_extra

check_extra()


from brctc.data.sampling import BatchConfig, CurriculumConfig
from brctc.train.begin import is_trained
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
    DecodeConfig,
    MonitorConfig,
    OptimiserConfig,
    Recipe,
    Stage,
)
from brctc.train.journal import read_metrics
from brctc.train.losses import LOSSES, Forward, Loss, LossConfig
from brctc.train.objective import Objective
from brctc.train.peers import PeerError
from brctc.train.recipe import RecipeError, load_recipe, parse_recipe, read_recipe
from brctc.train.risks import RISKS, RiskConfig
from brctc.train.schedule import learning_rate
from brctc.train.signals import Interrupted, NonFiniteError
from brctc.train.stages import train
from brctc.train.sweep import Cell, Plan, load_sweep
from brctc.train.timing import loss_seconds, step_shares

__all__ = [
    "BatchConfig",
    "Cell",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointError",
    "CurriculumConfig",
    "DecodeConfig",
    "Forward",
    "Interrupted",
    "LOSSES",
    "Loss",
    "LossConfig",
    "MonitorConfig",
    "NonFiniteError",
    "Objective",
    "OptimiserConfig",
    "PeerError",
    "Plan",
    "RISKS",
    "Recipe",
    "RecipeError",
    "RiskConfig",
    "Stage",
    "average_weights",
    "is_trained",
    "latest_checkpoint",
    "learning_rate",
    "list_checkpoints",
    "load_checkpoint",
    "load_recipe",
    "load_sweep",
    "loss_seconds",
    "parse_recipe",
    "read_metrics",
    "read_recipe",
    "save_checkpoint",
    "step_shares",
    "train",
]
