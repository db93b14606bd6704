"""Reading recipes: YAML files that may build on one another, with overrides; wrong ones are refused."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from brctc.config import describe_problems
from brctc.data.features import complete_features
from brctc.runs import RunDirectory
from brctc.train.config import Recipe
from brctc.yaml_files import copy_plain, read_yaml


class RecipeError(ValueError):
    """A recipe that cannot be run; the message names every wrong key."""


def load_recipe(path: str | Path, *overrides: Mapping[str, Any] | None, source: str | None = None) -> Recipe:
    """A recipe from a YAML (or JSON) file.

    `base: other.yaml` in the file, or a list of such names, seen from where it lies, gives the values
    that it does not say: sections are merged key by key, lists replaced, what comes later wins, and `null`
    removes a key. Overrides come last, in their order: {"optimiser.peak_rate": 1e-3, "stages.a.steps": 50}.
    Unknown keys and impossible combinations are refused; `source` is what messages name instead of the path.
    """
    path = Path(path)
    content = read_with_bases(path)
    for changes in overrides:
        for key, value in (changes or {}).items():
            _override(content, key, copy_plain(value))
    return parse_recipe(without_nulls(content), source or str(path))


def parse_recipe(content: Mapping[str, Any], source: str = "recipe") -> Recipe:
    """A recipe from plain data, as `Recipe.model_dump(mode="json")` gives it."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise RecipeError(describe_problems(error, Recipe, source)) from None


def read_recipe(run_dir: str | Path) -> Recipe:
    """The recipe that a run was begun with; keys that recipes did not have then are as by default, but for
    the filterbank's limits, which are as they were."""
    run = RunDirectory(run_dir)
    return parse_recipe(complete_features(run.read_recipe()), str(run.recipe_file))


def differences(a: Any, b: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where plain data differ: dotted key and both values."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        a, b = dict(enumerate(a)), dict(enumerate(b))
    if not isinstance(a, dict) or not isinstance(b, dict):
        if a != b:
            yield key, a, b
        return
    for name in {**a, **b}:
        yield from differences(a.get(name), b.get(name), f"{key}.{name}".lstrip("."))


def _read_sections(path: Path) -> dict[str, Any]:
    """The sections of a file; what is none is refused."""
    try:
        content = read_yaml(path)
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {path}") from None
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from None
    except ValueError as error:
        raise RecipeError(str(error)) from None
    if not isinstance(content, dict):
        raise RecipeError(f"{path} is not a recipe: it holds {type(content).__name__}, not sections")
    return content


def read_with_bases(
    path: Path, children: tuple[Path, ...] = (), paths: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The sections of a file, with those of its bases merged in as `load_recipe` says.

    `paths` are keys of files that are seen from where they are named, as bases are.
    """
    if path.resolve() in children:
        raise RecipeError(f"{path}: base: the recipe builds on itself")
    content = _read_sections(path)
    content |= {key: str(path.parent / content[key]) for key in paths if isinstance(content.get(key), str)}
    bases = content.pop("base", [])
    merged: dict[str, Any] = {}
    for base in bases if isinstance(bases, list) else [bases]:
        if not isinstance(base, str):
            raise RecipeError(f"{path}: base: expected the name of a recipe, got {base!r}")
        merged = _merge(merged, read_with_bases(path.parent / base, (*children, path.resolve()), paths))
    return _merge(merged, content)


def without_nulls(value: Any) -> Any:
    """Plain data without the keys that are null: a recipe removes what its base says that way."""
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}


def _merge(base: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in content.items():
        inner = merged.get(key)
        if isinstance(inner, dict) and isinstance(value, dict):
            merged[key] = _merge(inner, value)
        else:
            merged[key] = value
    return merged


def _override(content: dict[str, Any], key: str, value: Any) -> None:
    place = content
    *sections, last = key.split(".")
    for i, section in enumerate(sections):
        if place.get(section) is None:
            place[section] = {}
        place = place[section]
        if not isinstance(place, dict):
            raise RecipeError(f"{key}: {'.'.join(sections[: i + 1])} is a value, not a section")
    place[last] = value
