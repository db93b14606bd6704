"""Weights of eight bits, and sums of products in integers: ONNX Runtime's dynamic quantisation."""

import logging
from pathlib import Path

from brctc.export.convert import strip

KINDS = ["MatMul", "Gemm", "Gather"]
"""Operators whose weights are quantised. Convolutions stay: in integers they are slower than in floats."""


def quantise(source: Path, target: Path) -> None:
    """Writes a graph with weights of eight bits."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)  # it advises steps that dynamic quantisation does not need
    try:
        quantize_dynamic(source, target, op_types_to_quantize=KINDS, weight_type=QuantType.QInt8)
    finally:
        root.setLevel(before)
    model = onnx.load(target)
    metadata = [(given.key, given.value) for given in model.metadata_props]
    strip(model)
    for key, value in metadata:
        model.metadata_props.add(key=key, value=value)
    target.write_bytes(model.SerializeToString())
