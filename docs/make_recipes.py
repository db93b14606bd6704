"""Makes recipes.md of the configurations themselves: `python docs/make_recipes.py > docs/recipes.md`."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from brctc.data import CORPORA, Config
from brctc.train.config import ManifestOptions, Recipe

HEAD = """# Recipes

Every key of a recipe, what it may be, and what it is if it is not said; any other key is refused. In a file,
sections are YAML mappings; `--set` joins keys by dots, as in `--set stages.first.steps=100`.
`base: other.yaml` begins with another recipe and changes what it names, and `null` takes a section away.
[own-data.md](own-data.md) builds a recipe step by step, and [recipes/](../recipes) has many.

This page is made by `docs/make_recipes.py`.
"""

Schema = dict[str, Any]


def describe_recipe() -> str:
    """The page: a table for each section, in the order in which they are met."""
    schema = Recipe.model_json_schema()
    sections = {"Recipe": ("A recipe", schema)}
    for name, found in _sections("", schema, schema["$defs"]):
        sections.setdefault(name, found)  # one that is met again has its first title
    for of, config in {"manifests": ManifestOptions, **{k: v.config for k, v in CORPORA.items()}}.items():
        own = config.model_json_schema()
        own["properties"].pop("features", None)  # a recipe has them in a section of their own
        sections[config.__name__] = (f"`corpus.options` of {of}", own)
    titles = {name: title for name, (title, _) in sections.items()}
    configs = {config.__name__: config for config in _subclasses(Config)}
    return HEAD + "".join(_table(configs[name], *found, titles) for name, found in sections.items())


def _subclasses(base: type[Config]) -> Iterator[type[Config]]:
    for config in base.__subclasses__():
        yield config
        yield from _subclasses(config)


def _sections(
    path: str, schema: Schema, known: dict[str, Schema]
) -> Iterator[tuple[str, tuple[str, Schema]]]:
    """Name, title and schema of each section below."""
    for key, field in schema["properties"].items():
        below = f"{path}{key}" + (".NAME" if "additionalProperties" in field else "")
        for name in dict.fromkeys(re.findall(r"#/\$defs/(\w+)", json.dumps(field))):
            kind = known[name]["properties"].get("kind", {}).get("const")
            yield name, (f"`{below}`" + (f" of kind {kind}" if kind else ""), known[name])
            yield from _sections(f"{below}.", known[name], known)


def _table(config: type[Config], title: str, schema: Schema, titles: dict[str, str]) -> str:
    notes = {key: note for parent in reversed(config.__mro__) for key, note in _notes(parent).items()}
    required = schema.get("required", ())
    rows = [
        f"| `{key}` | {_values(field, titles)} | {_default(field, key in required)} | {notes.get(key, '')} |"
        for key, field in schema["properties"].items()
    ]
    about = " ".join((config.__doc__ or "").split())
    return "\n".join(
        [f"\n## {title}\n", f"{about}\n", "| key | values | default | |", "|---|---|---|---|", *rows, ""]
    )


def _notes(config: type) -> dict[str, str]:
    """What stands below each field in the source."""
    if not issubclass(config, Config) or config is Config:
        return {}
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field, note in pairwise(node.body):
        match field, note:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                found[key] = " ".join(text.split()).replace("|", "\\|")
    return found


def _values(field: Schema, titles: dict[str, str]) -> str:
    def inner(fields: list[Schema]) -> list[str]:
        return [_values(other, titles) for other in fields if other.get("type") != "null"]

    kinds = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true`, `false`"}
    limits = {"exclusiveMinimum": "above", "minimum": "from", "maximum": "to", "exclusiveMaximum": "below"}
    match field:
        case {"$ref": reference}:
            title = titles[reference.rpartition("/")[2]]
            text = f"[{title}](#{re.sub(r'[^a-z0-9_ -]', '', title.lower()).replace(' ', '-')})"
        case {"anyOf": choices} | {"oneOf": choices}:
            text = " or ".join(inner(choices))
        case {"enum": values}:
            text = ", ".join(f"`{value}`" for value in values)
        case {"const": value}:
            text = f"`{value}`"
        case {"type": "array", "prefixItems": items}:
            text = f"[{', '.join(inner(items))}]"
        case {"type": "array", "items": item}:
            text = f"a list of: {_values(item, titles)}"
        case {"type": "object", "additionalProperties": dict() as value}:
            text = f"by name: {_values(value, titles)}"
        case _:
            bounds = [f"{word} {field[key]:g}" for key, word in limits.items() if key in field]
            text = " ".join([kinds.get(field.get("type", ""), "a section"), *bounds])
    return text


def _default(field: Schema, required: bool) -> str:
    default = field.get("default")
    if required:
        return "**to be said**"
    return "" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`"


if __name__ == "__main__":
    print(describe_recipe(), end="")
