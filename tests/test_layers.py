"""Imports point down only, and `import brctc` needs torch alone and little time."""

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "brctc"

# a module may import from layers below its own
LAYERS = [
    {"__init__", "__main__"},
    {"cli"},
    {"report"},
    {"train"},
    {"evaluate"},
    {"decode"},
    {"models"},
    {"trim", "data"},
    {"align"},
    {"loss", "transducer"},
    {"kernels"},
    {"risk"},
    {"kernels.inputs", "kernels.operators", "kernels.reduction", "kernels.transducer_inputs"},
    {"_native", "config", "runs", "progress"},
    {"files"},
]


def layer_of(module: str) -> int:
    """The layer that names the module itself, or else its package."""
    for name in (module, module.partition(".")[0]):
        for depth, layer in enumerate(LAYERS):
            if name in layer:
                return depth
    raise AssertionError(f"brctc.{module} belongs to no layer: add it to LAYERS")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "brctc":
            inside = node.module.partition(".")[2]
            names = [f"{inside}.{alias.name}".strip(".") for alias in node.names]
            found.update(name if is_module(name) else inside for name in names)
        elif isinstance(node, ast.Import):
            found.update(a.name.partition(".")[2] for a in node.names if a.name.split(".")[0] == "brctc")
    return found - {""}


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split("."))
    return name == "_native" or path.is_dir() or path.with_suffix(".py").exists()


def test_imports_point_down():
    for path in SOURCE.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        module = module.removesuffix(".__init__") or "__init__"
        for imported in imports_of(path):
            same_package = imported.partition(".")[0] == module.partition(".")[0]
            assert same_package or layer_of(module) < layer_of(imported), f"{module} imports {imported}"


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
