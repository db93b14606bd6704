"""brctc: CTC alignments under control."""

from brctc import functional
from brctc.align import WILDCARD, BestPath, Infeasible, best_path, check_feasible, path_groups
from brctc.forced_alignment import Word, align_words, forced_align
from brctc.kernels.backend import backends
from brctc.kernels.ctc.groups import PathGroups
from brctc.loss import BayesRiskCTCLoss, bayes_risk_ctc_loss
from brctc.risk import BayesRisk, DelayPenalty, EarlyEmission, EarlyFinish, SumOfRisks, Within
from brctc.schedule import RiskSchedule
from brctc.skipping import Spikes, skip_blanks
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
    "RiskSchedule",
    "Spikes",
    "SumOfRisks",
    "WILDCARD",
    "Within",
    "Word",
    "align_words",
    "backends",
    "bayes_risk_ctc_loss",
    "best_path",
    "check_feasible",
    "forced_align",
    "functional",
    "path_groups",
    "skip_blanks",
    "transducer_joint_loss",
    "transducer_loss",
    "trim",
    "trimmed_lengths",
]
