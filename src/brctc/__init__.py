"""brctc: CTC alignments under control."""

from brctc.align import BestPath, Infeasible, best_path, check_feasible, path_groups
from brctc.kernels.backend import backends
from brctc.kernels.ctc.groups import PathGroups
from brctc.loss import BayesRiskCTCLoss, bayes_risk_ctc_loss
from brctc.risk import BayesRisk, DelayPenalty, EarlyEmission, EarlyFinish
from brctc.transducer import transducer_joint_loss, transducer_loss
from brctc.trimming import trim, trimmed_lengths

__version__ = "0.1.0"

__all__ = [
    "BayesRisk",
    "BayesRiskCTCLoss",
    "BestPath",
    "DelayPenalty",
    "EarlyEmission",
    "EarlyFinish",
    "Infeasible",
    "PathGroups",
    "backends",
    "bayes_risk_ctc_loss",
    "best_path",
    "check_feasible",
    "path_groups",
    "transducer_joint_loss",
    "transducer_loss",
    "trim",
    "trimmed_lengths",
]
