"""From a module to the bytes of an ONNX file, by torch's dynamo exporter.

The older exporter is not offered: it writes the one cut that it has seen into the graph as a number.
"""

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from brctc.export.modules import DYNAMIC, Example

LARGEST = 2**31 - 2**20
"""Bytes: protobuf takes no more."""


def to_onnx(module: Any, metadata: Mapping[str, str] | None = None) -> bytes:
    """The graph of a module for any size of its free axes, with nothing of this machine in it."""
    examples, names = module.examples(), module.output_names()
    assert isinstance(module, nn.Module)
    size = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    if size > LARGEST:
        raise ValueError(f"a graph would have {size / 2**30:.1f} GB, ONNX files have at most 2")
    inputs, shapes = _grouped(module, examples)
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            module.eval(),
            inputs,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=[example.name for example in examples],
            output_names=names,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    strip(proto)
    for key, value in (metadata or {}).items():
        proto.metadata_props.add(key=key, value=value)
    return proto.SerializeToString()


def _grouped(module: nn.Module, examples: list[Example]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """A module whose last argument is a sequence gets all tensors that are left in it."""
    code = module.forward.__code__
    arguments = code.co_argcount - 1
    values = [example.value for example in examples]
    free = [dict.fromkeys(example.free, DYNAMIC) for example in examples]
    if arguments == len(examples):
        return tuple(values), tuple(free)
    first = arguments - 1
    return (*values[:first], tuple(values[first:])), (*free[:first], tuple(free[first:]))


def strip(model: Any) -> None:
    """Takes away what is about the making: the exporter writes a stack trace into every node."""
    _strip_all([model, *model.functions])
    for function in model.functions:
        _strip_nodes(function.node)
    _strip_graph(model.graph)


def _strip_graph(graph: Any) -> None:
    del graph.value_info[:]
    _strip_all([graph, *graph.input, *graph.output, *graph.initializer])
    _strip_nodes(graph.node)


def _strip_nodes(nodes: Iterable[Any]) -> None:
    for node in nodes:
        _strip_all([node])
        for attribute in node.attribute:
            attribute.doc_string = ""
            for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _strip_graph(graph)


def _strip_all(parts: Iterable[Any]) -> None:
    for part in parts:
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of packages that nobody needs, and of its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
