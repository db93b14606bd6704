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
        threads: int,
    ) -> None: ...
    def find_problem(self) -> str: ...

def loss(
    batch: Input,
    risk: int,
    risk_factor: float,
    reduction: int,
    zero_infinity: bool,
    losses: int,
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
    stride_n: int,
    stride_u: int,
    stride_t: int,
    N: int,
    U: int,
    T: int,
    part: int,
    log_sum: int,
    is_double: bool,
    threads: int,
) -> None: ...
def best_path(batch: Input, path: int, start: int, end: int, U_max: int, score: int) -> None: ...
def instruction_set() -> str: ...
def poison_memory(on: bool) -> None: ...
