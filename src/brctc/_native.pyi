import numpy as np
from numpy.typing import NDArray
from torch import Tensor

class Input:
    def __init__(
        self,
        scores: int,
        is_double: bool,
        T: int,
        N: int,
        C: int,
        stride_t: int,
        stride_n: int,
        labels: int,
        label_count: int,
        label_stride: int,
        input_lengths: int,
        target_lengths: int,
        blank: int,
        from_logits: bool,
        nan: bool,
        threads: int,
    ) -> None: ...
    @staticmethod
    def of(
        scores: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        blank: int,
        from_logits: bool,
        nan: bool,
        threads: int,
    ) -> Input | None: ...

def learn_tensors(tensor: type[Tensor] | None, parameter: type[Tensor] | None) -> bool: ...
def are_plain(
    scores: object, targets: object, input_lengths: object, target_lengths: object, blank: object
) -> bool: ...
def is_one(tensor: Tensor) -> bool: ...
def loss(
    batch: Input,
    risk: int,
    factor: float,
    reduction: str,
    zero_infinity: bool,
    result: int,
    gradient: bool,
) -> Tensor | None: ...
def groups(batch: Input, at_start: bool, U_max: int, log_share: int, log_likelihood: int) -> None: ...
def groups_backward(
    batch: Input, at_start: bool, U_max: int, grad_share: int, grad_likelihood: int
) -> Tensor: ...
def weigh(
    log_share: int,
    log_risk: int,
    risk_strides: tuple[int, ...],
    shape: tuple[int, ...],
    log_likelihood: int,
    tokens: int,
    token_weights: int,
    last_only: bool,
    reduction: str,
    zero_infinity: bool,
    result: int,
    grad_likelihood: int,
    grad_share: int,
    is_double: bool,
    threads: int,
) -> None: ...
def first_scores(scores: Tensor) -> float: ...
def peaks(log_share: Tensor, tolerance: float, out: Tensor) -> bool: ...
def best_path(
    batch: Input, path: int, start: int, end: int, U_max: int, score: int, wild: int, price: float
) -> None: ...
def track_pitch(
    local: NDArray[np.float64],
    cost: NDArray[np.float64],
    factor: float,
    parents: NDArray[np.int32],
    best: NDArray[np.int32],
) -> None: ...
def instruction_set() -> str: ...
def poison_memory(on: bool) -> None: ...

class Transducer:
    def __init__(
        self,
        is_double: bool,
        N: int,
        T: int,
        U: int,
        C: int,
        targets: int,
        logit_lengths: int,
        target_lengths: int,
        blank: int,
        threads: int,
    ) -> None: ...
    def first_frame(self, n: int) -> int: ...
    def rows_before(self, frame: int) -> int: ...
    def end_of_part(self, first: int, most_rows: int) -> int: ...
    def read(self, logits: int, stride_n: int, stride_t: int, stride_u: int, cells: int) -> None: ...
    def read_packed(self, first: int, last: int, logits: int, stride: int, cells: int) -> None: ...
    def lattice(self, first: int, last: int, cells: int, losses: int, occupancies: bool) -> None: ...
    def gradient(
        self, logits: int, stride_n: int, stride_t: int, stride_u: int, cells: int, weights: int
    ) -> Tensor: ...
    def gradient_packed(
        self, first: int, last: int, logits: int, stride: int, cells: int, weights: int
    ) -> None: ...
    def join(self, first: int, last: int, encoder: int, prediction: int, D: int, hidden: int) -> None: ...
    def join_backward(
        self,
        first: int,
        last: int,
        hidden: int,
        grad_hidden: int,
        D: int,
        grad_encoder: int,
        grad_prediction: int,
    ) -> None: ...
