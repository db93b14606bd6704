"""Reading recipes: YAML files that may build on one another, with overrides; wrong ones are refused."""

import difflib
import itertools
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from brctc.config import RecipeLoader
from brctc.runs import RunDirectory
from brctc.train.config import KeyedError, OptionsError, Recipe


class RecipeError(ValueError):
    """A recipe that cannot be run; the message names every wrong key."""


def load_recipe(path: str | Path, *overrides: Mapping[str, Any] | None, source: str | None = None) -> Recipe:
    """A recipe from a YAML (or JSON) file.

    `base: other.yaml` in the file, or a list of such names, seen from where it lies, gives the values
    that it does not say: sections are merged key by key, lists replaced, what comes later wins.
    Overrides come last, in their order: {"optimiser.peak_rate": 1e-3, "stages.first.steps": 50}. Unknown
    keys and impossible combinations are refused; `source` is what messages name instead of the path.
    """
    path = Path(path)
    content = read_with_bases(path)
    for changes in overrides:
        for key, value in (changes or {}).items():
            _override(content, key, _copy(value))
    return parse_recipe(content, source or str(path))


def parse_recipe(content: Mapping[str, Any], source: str = "recipe") -> Recipe:
    """A recipe from plain data, as `Recipe.model_dump(mode="json")` gives it."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise RecipeError(describe_problems(error, Recipe, source)) from None


def read_recipe(run_dir: str | Path) -> Recipe:
    """The recipe that a run was begun with; keys that recipes did not have then are as by default."""
    run = RunDirectory(run_dir)
    return parse_recipe(run.read_recipe(), str(run.recipe_file))


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


def _read_yaml(path: Path) -> dict[str, Any]:
    """The sections of a file; what is none is refused."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=RecipeLoader)
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {path}") from None
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not YAML: {error}") from None
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
    content = _copy(_read_yaml(path))
    content |= {key: str(path.parent / content[key]) for key in paths if isinstance(content.get(key), str)}
    bases = content.pop("base", [])
    merged: dict[str, Any] = {}
    for base in bases if isinstance(bases, list) else [bases]:
        if not isinstance(base, str):
            raise RecipeError(f"{path}: base: expected the name of a recipe, got {base!r}")
        merged = _merge(merged, read_with_bases(path.parent / base, (*children, path.resolve()), paths))
    return _merge(merged, content)


def _copy(value: Any) -> Any:
    """Of plain data. Unlike a deep copy, it parts what is in two places, by an anchor of YAML's."""
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


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


def describe_problems(error: ValidationError, model: type[BaseModel], source: str) -> str:
    """pydantic's findings, a line each, with the source and the key in front."""
    return "\n".join(f"{source}: {problem}" for problem in _describe_all(error, model, ()))


def _describe_all(error: ValidationError, model: type[BaseModel], prefix: tuple[str | int, ...]) -> list[str]:
    found = []
    for problem in error.errors(include_url=False):
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, OptionsError):
            found += _describe_all(cause.error, cause.options, (*prefix, *problem["loc"]))
        else:
            found.append(_describe(problem, cause, model, prefix))
    return found


def _describe(
    problem: Any, cause: Exception | None, model: type[BaseModel], prefix: tuple[str | int, ...]
) -> str:
    place, section = _follow(model, problem["loc"])
    if isinstance(cause, KeyedError):
        place += cause.key.split(".")
    key = ".".join(map(str, (*prefix, *place)))
    if problem["type"] == "extra_forbidden":
        return f"{key}: unknown key; {_suggest(key, section)}"
    if problem["type"] == "missing":
        return f"{key}: missing"
    if cause is not None:
        return f"{key}: {cause}"
    message = problem["msg"][0].lower() + problem["msg"][1:]
    if problem["type"] == "literal_error":
        valid = re.findall(r"'([^']+)'", problem["ctx"]["expected"])
        near = difflib.get_close_matches(str(problem["input"]), valid, n=1)
        message = f"expected {problem['ctx']['expected']}" + (f"; did you mean {near[0]!r}?" if near else "")
    elif problem["type"] == "union_tag_invalid":
        return f"{key}.kind: expected {problem['ctx']['expected_tags']}, got {problem['ctx']['tag']!r}"
    return f"{key}: {message}, got {problem['input']!r}"


def _suggest(key: str, section: type[BaseModel]) -> str:
    """The valid key that an unknown one was probably meant to be: in its section, or else anywhere."""
    sections, _, name = key.rpartition(".")
    near = difflib.get_close_matches(name, section.model_fields, n=1)
    if near:
        return f"did you mean {f'{sections}.{near[0]}'.lstrip('.')}?"
    others = [
        other for other in _all_keys(Recipe, "") if other != key
    ]  # a section of another kind may have it
    elsewhere = {other.rpartition(".")[2]: other for other in reversed(others)}
    near = difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.75)
    if near:
        return f"did you mean {elsewhere[near[0]]}?"
    return f"valid here: {', '.join(section.model_fields)}"


def _follow(
    section: type[BaseModel], location: tuple[str | int, ...]
) -> tuple[list[str | int], type[BaseModel]]:
    """A problem's place in the file, and the section that it is in.

    pydantic's location is the same, but names the kind behind a section that may be of several kinds.
    """
    place: list[str | int] = []
    names = iter(location)
    for name in names:
        place.append(name)
        field = section.model_fields.get(str(name))
        inner = _inner_models(field.annotation) if field else []
        if field and typing.get_origin(field.annotation) is dict:
            place += itertools.islice(names, 1)  # the name of a stage
        if len(inner) > 1:
            kind = next(names, None)
            inner = [model for model in inner if model.model_fields["kind"].default == kind]
        if not inner:
            break
        section = inner[0]
    return [*place, *names], section


def _all_keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in _inner_models(field.annotation):
            named = typing.get_origin(field.annotation) is dict
            yield from _all_keys(inner, f"{prefix}{name}.{'<name>.' if named else ''}")


def _inner_models(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field's type speaks of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in typing.get_args(annotation) for model in _inner_models(inner)]
