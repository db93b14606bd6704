"""Imports point down only, files and functions are small, and `import brctc` needs torch alone."""

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "brctc"

# a module may import from layers below its own
LAYERS = [
    {"__init__", "__main__"},
    {"cli"},
    {"check"},
    {"serve"},
    {"export"},
    {"report"},
    {"train"},
    {"evaluate"},
    {"decode"},
    {"models"},
    {"skipping"},
    {"trimming", "data"},
    {"functional", "forced_alignment", "integrations"},
    {"align"},
    {"loss", "transducer", "schedule"},
    {"risk"},
    {"kernels"},
    {"yaml_files"},
    {"_native", "config", "runs", "progress"},
    {"files", "plugins", "extras"},
]

MOST_LINES, MOST_FUNCTION_LINES = 400, 60


def modules() -> dict[str, Path]:
    """Every module by its name inside brctc; a package's __init__ is a module of it."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): path
        for path in sorted(SOURCE.rglob("*.py"))
    }


MODULES = modules()


def module_of(name: str) -> str | None:
    """The module that an import of the name loads last, if it is one of ours."""
    if name == "_native" or name in MODULES:
        return name
    package = f"{name}.__init__".strip(".")
    return package if package in MODULES else None


@cache
def imports_of(module: str) -> frozenset[str]:
    """Modules that this one imports, those inside its functions among them."""
    found: set[str | None] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively"
            if node.module and node.module.split(".")[0] == "brctc":
                inside = node.module.partition(".")[2]
                for alias in node.names:
                    found.add(module_of(f"{inside}.{alias.name}".strip(".")) or module_of(inside))
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "brctc"]
            found.update(module_of(name.partition(".")[2]) for name in names)
    return frozenset(name for name in found if name is not None)


def layer_of(module: str) -> int:
    for depth, layer in enumerate(LAYERS):
        if module.partition(".")[0] in layer:
            return depth
    raise AssertionError(f"brctc.{module} belongs to no layer: add it to LAYERS")


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    for imported in imports_of(module):
        same_package = imported.partition(".")[0] == module.partition(".")[0]
        assert same_package or layer_of(module) < layer_of(imported), f"{module} imports {imported}"


def packages() -> list[str]:
    return sorted({module.rpartition(".")[0] for module in MODULES})


@pytest.mark.parametrize("package", packages())
def test_no_cycles_inside_a_package(package):
    """Its modules and packages import each other in one order, and none imports the package itself."""
    prefix = f"{package}." if package else ""

    def child(module: str) -> str:
        return module.removeprefix(prefix).partition(".")[0]

    graph: dict[str, set[str]] = {}
    for module in (name for name in MODULES if name.startswith(prefix)):
        inside = {name for name in imports_of(module) if name.startswith(prefix)}
        graph.setdefault(child(module), set()).update(child(name) for name in inside)
    for name, imported in graph.items():
        imported.discard(name)
        assert "__init__" not in imported, f"{prefix}{name} imports its own package"
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"in brctc.{package}: {' imports '.join(reversed(error.args[1]))}")


def test_no_cycles_between_modules():
    graph = {module: imports_of(module) - {module} for module in MODULES}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def python_files() -> list[Path]:
    folders = ("src", "tests", "benchmarks", "docs", "examples")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def other_files() -> list[Path]:
    return sorted([*(ROOT / "native").iterdir(), *SOURCE.rglob("*.js")])


def sizes_of(path: Path) -> dict[str, int]:
    """Lines of a Python file's functions, by their names."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions)]
    return {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in found}


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for path in python_files() + other_files()])
def test_files_and_functions_are_small(path):
    lines = len((ROOT / path).read_text().splitlines())
    functions = sizes_of(ROOT / path) if path.endswith(".py") else {}
    large = [f"{name} has {size} lines" for name, size in functions.items() if size > MOST_FUNCTION_LINES]
    assert lines <= MOST_LINES
    assert not large


def test_import_needs_torch_alone():
    """Nothing but torch (with what torch itself loads) and the standard library."""
    code = (
        "import sys, torch; before = set(sys.modules); import brctc; "
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    added = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    outside = added - {"brctc", "torch"} - set(sys.stdlib_module_names)
    assert {m for m in outside if not m.startswith("_")} == set()


def test_import_time():
    """At most 0.1 s more than torch's own."""
    # processor time, the best of three: other work on the machine is not the import's
    code = "import time, torch; start = time.process_time(); import brctc; print(time.process_time() - start)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(times) < 0.1, times
