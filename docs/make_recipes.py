"""Makes recipes.md of the configurations themselves: `python docs/make_recipes.py > docs/recipes.md`."""

import ast
import inspect
import json
import re
import textwrap
import typing
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from brctc.config import Config, inner_models, kinds_of
from brctc.train import Recipe

HEAD = """# Recipes

Every key of a recipe, its values and its default; any other key is refused. In a file, sections are YAML
mappings; `--set` joins keys by dots, as in `--set stages.first.steps=100`. `base: other.yaml`, or a list of
such files, begins with other recipes and changes what it names: sections are merged key by key, lists
are replaced, and `null` removes a key. A section that has a `kind` takes the keys of that kind.
[own-data.md](own-data.md) builds a recipe step by step, [extending.md](extending.md) adds kinds, and
[recipes/](../recipes) has many examples.

This page is made by `docs/make_recipes.py`.
"""

Schema = dict[str, Any]
Titles = dict[str, list[str]]
"""The titles of the sections that a class is described by: several if it has kinds."""


def describe_recipe() -> str:
    """The page: a table for each section, in the order in which they are met."""
    sections: dict[type[BaseModel], str] = {Recipe: "A recipe"}
    titles: Titles = {}
    for base, model, title in _sections("", Recipe):
        known = sections.setdefault(model, title)  # one that is met again has its first title
        found = titles.setdefault(base.__name__, [])
        found += [known] if known not in found else []
    return HEAD + "".join(_table(model, title, titles) for model, title in sections.items())


def _sections(
    path: str, model: type[BaseModel], above: tuple[type[BaseModel], ...] = ()
) -> Iterator[tuple[type[BaseModel], type[BaseModel], str]]:
    """The class that a field names, each kind of it, and its title. A kind that may hold others of its
    registry is not described again inside itself (`above`)."""
    for key, field in model.model_fields.items():
        named = typing.get_origin(field.annotation) is dict
        below = f"{path}{key}" + (".NAME" if named else "")
        for base in inner_models(field.annotation):
            kinds = kinds_of(base)
            for kind in kinds:
                if kind in (*above, model):
                    continue
                of_kind = f" of kind {kind.model_fields['kind'].default}" if len(kinds) > 1 else ""
                yield base, kind, f"`{below}`{of_kind}"
                yield from _sections(f"{below}.", kind, (*above, model))


def _table(model: type[BaseModel], title: str, titles: Titles) -> str:
    notes = {key: note for parent in reversed(model.__mro__) for key, note in _notes(parent).items()}
    schema = model.model_json_schema()
    required = schema.get("required", ())
    rows = [
        f"| `{key}` | {_values(field, titles)} | {_default(field, key in required)} | {notes.get(key, '')} |"
        for key, field in schema["properties"].items()
    ]
    about = " ".join((model.__doc__ or "").split())
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


def _link(title: str) -> str:
    return f"[{title}](#{re.sub(r'[^a-z0-9_ -]', '', title.lower()).replace(' ', '-')})"


def _values(field: Schema, titles: Titles) -> str:
    def inner(fields: list[Schema]) -> list[str]:
        return [_values(other, titles) for other in fields if other.get("type") != "null"]

    kinds = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true`, `false`"}
    limits = {"exclusiveMinimum": "above", "minimum": "from", "maximum": "to", "exclusiveMaximum": "below"}
    match field:
        case {"$ref": reference}:
            text = " or ".join(_link(title) for title in titles[reference.rpartition("/")[2]])
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
        return "**required**"
    return "" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`"


if __name__ == "__main__":
    print(describe_recipe(), end="")
