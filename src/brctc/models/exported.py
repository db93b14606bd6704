"""An exported model as a directory: graphs of ONNX, and `export.json`, which says what they are.

What is loaded is a `Model` like any other to those that decode: its system has no weights, and calls ONNX
Runtime. `brctc.export` writes such directories.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from brctc.config import Config, describe_problems
from brctc.data import Tokenizer
from brctc.data.batch import Padded
from brctc.data.features import StoredFeatures
from brctc.files import file_digest, read_json
from brctc.kernels.tensors import Lengths
from brctc.models.base import Encoder, StreamOutput, TrimConfig
from brctc.models.bundle import Model, Size
from brctc.models.exported_decoders import PARTS, load_decoder
from brctc.models.exported_encoder import (
    ExportedEncoded,
    ExportedStreamingEncoder,
    StateTensor,
    StreamSizes,
    graph_outputs,
)
from brctc.models.graph import Graph
from brctc.models.system import Encoded, System, SystemConfig

EXPORT = "export.json"
FORMAT, VERSION = "brctc-export", 1


class Streaming(Config):
    """How a graph takes streams."""

    sizes: StreamSizes
    state: list[StateTensor]


class Exported(Config):
    """What `export.json` says."""

    format: Literal["brctc-export"] = FORMAT
    version: Literal[1] = VERSION
    made_for: str
    """The format that was asked for."""
    files: dict[str, str]
    """SHA-256 of every file but this one."""
    graphs: dict[str, str]
    """The file of each graph: `encoder`, and `<decoder>.<part>`."""
    sherpa: dict[str, Any] | None = None
    """Which factory of sherpa-onnx takes the files, with which arguments."""
    input_size: Size
    vocab_sizes: dict[str, Size]
    system: SystemConfig
    features: StoredFeatures
    trim: TrimConfig | None
    """The rule that the encoder's graph trims by."""
    streaming: Streaming | None = None
    context: Annotated[int, Field(ge=0)] = 0
    """Labels that a transducer's prediction network takes; 0 if it takes one, and a state."""
    tail_s: float | None
    """Silence that a stream needs behind its end, where nobody says where the end is."""
    parameters: int
    tokenizers: dict[str, dict[str, Any]]
    description: dict[str, Any]
    versions: dict[str, str]
    check: dict[str, Any]
    """Differences from the model that was exported."""


class ExportedSystem(System):
    """The surface of a `System` that decoding needs, on graphs of ONNX Runtime. It always trims as it was
    trained to."""

    def __init__(self, about: Exported, directory: Path) -> None:
        nn.Module.__init__(self)  # there is nothing to build
        self.config, self.input_size, self.vocab_sizes = about.system, about.input_size, about.vocab_sizes
        self._outputs = graph_outputs(about.system, about.trim)
        self._parameters_before = about.parameters
        self._graph = Graph(directory / about.graphs["encoder"])
        self.encoder = Encoder()  # for whoever asks what it is
        if about.streaming is not None:
            streaming = about.streaming
            self.encoder = ExportedStreamingEncoder(
                about.system, self._graph, streaming.sizes, streaming.state
            )
        decoders = {}
        for name, config in about.system.decoders.items():
            files = {part: directory / about.graphs[f"{name}.{part}"] for part in PARTS[config.kind]}
            decoders[name] = load_decoder(config, about.vocab_sizes[config.text], about.context, files)
        self.decoders = nn.ModuleDict(decoders)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def num_parameters(self) -> int:
        return self._parameters_before

    def encode(self, source: Padded, trim: TrimConfig | None = None, at_least: Lengths = 1) -> Encoded:
        """All that the graph puts out; `trim` and `at_least` are not asked."""
        self._check_source(source)
        if self.config.streaming:
            found = self._exported_stream().run_all(source)
            frames = next(iter(found.values()))
            found = {output.name: found.get(output.name, frames) for output in self._outputs}
        else:
            raw = self._graph(source.values, source.lengths)
            found = {}
            for output in self._outputs:
                lengths = raw[f"{output.name}_len"]
                found[output.name] = Padded(raw.get(output.name, lengths[:, None, None]), lengths)
        return ExportedEncoded(self.config, self._outputs, found)

    def step(self, features: Tensor, lengths: Tensor, state: Any) -> tuple[StreamOutput, Any]:
        self._check_source(Padded(features, lengths))
        found, state = self._exported_stream().run(features, lengths, state)
        name = next(output.name for output in self._outputs if output.text == self.config.output)
        values, frames = found[name]
        return StreamOutput(Padded(values[..., :0], frames), values), state

    def _exported_stream(self) -> ExportedStreamingEncoder:
        encoder = self._streaming_encoder()
        assert isinstance(encoder, ExportedStreamingEncoder), "it was loaded so"
        return encoder

    def _streaming_encoder(self) -> Any:
        if not self.config.streaming:
            kind = self.config.encoder.kind
            raise ValueError(f"streams need a streaming encoder (kind: emformer), the export has a {kind}")
        return self.encoder


def load_exported(directory: str | Path) -> Model:
    """Reads what `brctc.export` wrote; a file that is not what was written is refused."""
    directory = Path(directory)
    path = directory / EXPORT
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'{path} is not of an exported model: its "format" is not "{FORMAT}"')
    if content.get("version") != VERSION:
        raise ValueError(f"{path} has format version {content.get('version')}, this brctc reads {VERSION}")
    try:
        about = Exported.model_validate(content)
    except ValidationError as error:
        problems = describe_problems(error, Exported, "export")
        raise ValueError(f"{path} does not describe an exported model: {problems}") from None
    check_files(directory, about.files)
    tokenizers = {text: Tokenizer.from_dict(known) for text, known in about.tokenizers.items()}
    try:
        system = ExportedSystem(about, directory)
    except KeyError as error:
        raise ValueError(f"{path} is damaged: it names no graph {error}") from None
    return Model(system.eval(), tokenizers, about.features, about.trim, about.description)


def check_files(directory: Path, files: dict[str, str]) -> None:
    """Refuses a directory whose files are not those that were written."""
    for name, digest in files.items():
        path = directory / Path(name).name
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: the exported model is not whole")
        if file_digest(path) != digest:
            raise ValueError(f"{path} is damaged: its SHA-256 is not the one in {EXPORT}")
