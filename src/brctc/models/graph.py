"""A graph of ONNX, run by ONNX Runtime: torch's tensors in and out, by their names."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brctc.extras import check_extra


class Graph:
    """An ONNX file, loaded. It takes as many threads as torch would."""

    def __init__(self, path: str | Path) -> None:
        check_extra(["onnxruntime"], "export")
        self.path = Path(path)
        self._sessions: dict[int, Any] = {}
        self.inputs = [given.name for given in self._session().get_inputs()]
        self.outputs = [found.name for found in self._session().get_outputs()]

    def _session(self) -> Any:
        """A session's threads are fixed when it is made."""
        threads = torch.get_num_threads()
        if threads not in self._sessions:
            self._sessions[threads] = _open(self.path, threads)
        return self._sessions[threads]

    def __call__(self, *inputs: Tensor) -> dict[str, Tensor]:
        """All outputs by name; inputs are in the order of the graph's."""
        arrays = {name: _array(value) for name, value in zip(self.inputs, inputs, strict=True)}
        found = self._session().run(None, arrays)
        return dict(zip(self.outputs, map(torch.from_numpy, found), strict=True))


def _array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return np.ascontiguousarray((tensor.float() if tensor.is_floating_point() else tensor.long()).numpy())


def _open(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # its warnings are about nodes that it leaves out
    try:
        return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has a class of its own for each of its error codes
        raise ValueError(f"{path} is not a graph that ONNX Runtime can run: {error}") from None
