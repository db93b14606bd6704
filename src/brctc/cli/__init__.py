"""The command line, a thin layer over the packages: one file per command, imported when it is called."""

import difflib
import inspect
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import Any

from brctc.plugins import add_plugins, load_plugins

COMMANDS = {
    "demo": "train plain and Bayes-risk CTC on handwritten digits, side by side, and compare them",
    "prepare": "check a corpus and compute its features",
    "reference-times": "find out when each word is said, by forced alignment",
    "train": "train all stages of a recipe",
    "decode": "turn audio into text, or translate it",
    "stream": "turn audio into text while it plays, with an online model",
    "serve": "serve models: live streams, whole files, and a page to try them",
    "tune": "find the weights of the joint CTC/attention search on a development set",
    "evaluate": "measure errors, down-sampling and speed of trained models",
    "latency": "measure how late online models are, and their errors",
    "report": "write an HTML page about trained models",
    "plot": "draw where trained models predict what is said",
    "explore": "write an HTML page to try risks on: move a factor, type a formula",
    "compare": "all of it for several recipes: train side by side, decode, report",
    "sweep": "errors against latency: train an online recipe with many chunks and risks, measure, report",
    "export": "write a trained model for ONNX Runtime, for sherpa-onnx, or in another format",
    "gpu-check": "find out whether the GPUs of a machine compute what they should, and how fast",
}
FAILED, STOPPED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code of the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    while words[:1] == ["--import"]:
        if len(words) < 2:
            return _say("brctc:", "--import needs the name of a module", FAILED)
        add_plugins(words[1])
        words = words[2:]
    name, *rest = words or [""]
    if name in COMMANDS:
        return call(name, rest)
    if name in ("", "-h", "--help"):
        print(overview())
        return 0 if name else FAILED
    if name == "--version":
        print(f"brctc {metadata.version('brctc')}")
        return 0
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}"
    return _say("brctc:", f"there is no command {name!r}: {hint}", FAILED)


def call(name: str, arguments: Sequence[str]) -> int:
    """Runs a command; what the packages say of bad input becomes a line on stderr."""
    try:
        if missing := missing_packages():
            hint = (
                f"needs the extra asr: in its checkout, pip install '.[asr]' (missing: {', '.join(missing)})"
            )
            return _say(f"brctc {name}", hint, FAILED)
        load_plugins()
        parse(name, arguments).run()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has seen enough, as in `brctc decode ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt as stop:
        return _say(f"brctc {name}:", str(stop) or "stopped", STOPPED)
    except (ValueError, OSError, ArithmeticError, ImportError) as error:
        if os.environ.get("BRCTC_DEBUG") == "1":
            raise
        return _say(f"brctc {name}:", _describe(error), FAILED)
    return 0


def overview() -> str:
    """What `brctc --help` says."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: brctc [--import MODULE] COMMAND ...",
            "",
            "Speech recognition with Bayes-risk CTC, from data to report.",
            "",
            *lines,
            "",
            "--import registers kinds of your own: a corpus, an encoder, a loss (docs/extending.md).",
            "`brctc COMMAND --help` says more. Begin with `brctc demo`: it needs no data and four minutes.",
        ]
    )


def missing_packages() -> list[str]:
    """Packages of the extra that are not installed: better known now than from an import somewhere inside."""
    wanted = [
        re.split(r"[^\w.-]", requirement)[0]
        for requirement in metadata.requires("brctc") or ()
        if re.search("extra == .asr.", requirement)
    ]
    return [package for package in wanted if not any(metadata.distributions(name=package))]


def parse(name: str, arguments: Sequence[str]) -> Any:
    """The `Command` of the command's module, made from its arguments."""
    import tyro

    command = import_module(f"brctc.cli.{name.replace('-', '_')}").Command
    return tyro.cli(
        command,
        prog=f"brctc {name}",
        description=inspect.getdoc(command),  # tyro joins lines that begin with a letter, and keeps others
        args=arguments,
        config=(
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.DisallowNone,
            tyro.conf.HelptextFromCommentsOff,  # comments are for who reads the code
        ),
    )


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _say(who: str, what: str, code: int) -> int:
    print(who, what, file=sys.stderr)
    return code
