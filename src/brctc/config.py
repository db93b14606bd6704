"""The base of all configuration: typed sections, and registries of the kinds that a section may be of.

Every wrong key is named with its place; an unknown one with what was probably meant.
"""

import difflib
import re
import typing
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, ClassVar, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Place = tuple[str | int, ...]
MOST_PROBLEMS = 20
"""So many are named at once."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class Config(BaseModel):
    """A section of a recipe: typed, unchangeable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Kind(Config):
    """A section that may be of several kinds. The base of each has the registry of its kinds."""

    registry: ClassVar["Registry[Any]"]
    kind: str


K = TypeVar("K", bound=Kind)
C = TypeVar("C", bound=Kind)


class Registry(Generic[K]):
    """The kinds of a section, by name. Each kind registers itself where it is defined.

    A field that holds a section of any kind has the type
    `Annotated[SerializeAsAny[Base], BeforeValidator(REGISTRY.parse)]`.

    >>> ENCODERS = Registry("encoder", default="conformer")
    >>> @ENCODERS.register
    ... class ConformerConfig(EncoderConfig):
    ...     kind: Literal["conformer"] = "conformer"
    """

    def __init__(self, what: str, default: str | None = None) -> None:
        self.what, self.default = what, default
        self._kinds: dict[str, type[K]] = {}

    def register(self, config: type[C]) -> type[C]:
        """Adds a kind; its name is the default of its field `kind`."""
        name = config.model_fields["kind"].default
        if not isinstance(name, str):
            raise TypeError(f'{config.__name__} needs a name: kind: Literal["..."] = "..."')
        known = self._kinds.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (
            config.__module__,
            config.__qualname__,
        ):
            raise ValueError(f"there is a {self.what} {name!r} already: {known.__module__}.{known.__name__}")
        self._kinds[name] = cast("type[K]", config)
        return config

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __contains__(self, name: object) -> bool:
        return name in self._kinds

    def __getitem__(self, name: str) -> type[K]:
        if name not in self._kinds:
            raise ValueError(f"there is no {self.what} {name!r}{did_you_mean(name, self._kinds)}")
        return self._kinds[name]

    def parse(self, value: Any) -> Any:
        """A section's content as the config of its kind; what is one already stays."""
        if not isinstance(value, Mapping):
            return value
        content = dict(value)
        name = content.setdefault("kind", self.default)
        if name is None:
            raise KeyedError("kind", f"required; there are: {', '.join(self._kinds)}")
        if not isinstance(name, str) or name not in self._kinds:
            raise KeyedError("kind", f"there is no {self.what} {name!r}{did_you_mean(name, self._kinds)}")
        config = self._kinds[name]
        try:
            return config.model_validate(content)
        except ValidationError as error:
            raise SectionError(config, error) from None


class KeyedError(ValueError):
    """A value that does not go with others; `key` says where it is, seen from its section."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class SectionError(ValueError):
    """A section of some kind that is wrong inside."""

    def __init__(self, config: type[BaseModel], error: ValidationError) -> None:
        super().__init__(str(error))
        self.config, self.error = config, error


def did_you_mean(name: object, known: Mapping[str, Any] | typing.Iterable[str]) -> str:
    """The nearest of the known names, and all of them."""
    names = list(known)
    nearest = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    hint = f": did you mean {nearest[0]!r}?" if nearest else ";"
    return f"{hint} There are: {', '.join(names) or 'none'}"


def describe_problems(error: ValidationError, model: type[BaseModel], source: str) -> str:
    """pydantic's findings, a line each, with the source and the key in front."""
    problems = list(islice(_describe_all(error, model, model, ()), MOST_PROBLEMS + 1))
    more = ["and more"] if len(problems) > MOST_PROBLEMS else []
    return "\n".join(f"{source}: {problem}" for problem in [*problems[:MOST_PROBLEMS], *more])


def _describe_all(
    error: ValidationError, model: type[BaseModel], top: type[BaseModel], prefix: Place
) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, SectionError):
            yield from _describe_all(cause.error, cause.config, top, (*prefix, *problem["loc"]))
        else:
            yield _describe(problem, cause, model, top, prefix)


def _describe(
    problem: Any, cause: Exception | None, model: type[BaseModel], top: type[BaseModel], prefix: Place
) -> str:
    place, section = _follow(model, problem["loc"])
    if isinstance(cause, KeyedError):
        place += cause.key.split(".")
    key = ".".join(map(str, (*prefix, *place)))
    if problem["type"] == "extra_forbidden":
        return f"{key}: unknown key; {_suggest(key, section, top)}"
    if problem["type"] == "missing":
        return f"{key}: missing"
    if cause is not None:
        return f"{key}: {cause}"
    message = problem["msg"][0].lower() + problem["msg"][1:]
    if problem["type"] == "literal_error":
        valid = re.findall(r"'([^']+)'", problem["ctx"]["expected"])
        near = difflib.get_close_matches(str(problem["input"]), valid, n=1)
        message = f"expected {problem['ctx']['expected']}" + (f"; did you mean {near[0]!r}?" if near else "")
    return f"{key}: {message}, got {_short(problem['input'])}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _suggest(key: str, section: type[BaseModel], top: type[BaseModel]) -> str:
    """The valid key that an unknown one was probably meant to be: in its section, or else anywhere."""
    sections, _, name = key.rpartition(".")
    near = difflib.get_close_matches(name, section.model_fields, n=1)
    if near:
        return f"did you mean {f'{sections}.{near[0]}'.lstrip('.')}?"
    others = [other for other in all_keys(top) if other != key]  # a section of another kind may have it
    elsewhere = {other.rpartition(".")[2]: other for other in reversed(others)}
    near = difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.75)
    if near:
        return f"did you mean {elsewhere[near[0]]}?"
    return f"valid here: {', '.join(section.model_fields)}"


def _follow(section: type[BaseModel], location: Place) -> tuple[list[str | int], type[BaseModel]]:
    """A problem's place in the file, and the section that it is in."""
    place: list[str | int] = []
    names = iter(location)
    for name in names:
        place.append(name)
        field = section.model_fields.get(str(name))
        inner = inner_models(field.annotation) if field else []
        if field and typing.get_origin(field.annotation) is dict:
            place += islice(names, 1)  # the name of a stage or a loss
        if not inner:
            break
        section = inner[0]
    return [*place, *names], section


def all_keys(
    model: type[BaseModel], prefix: str = "", above: tuple[type[BaseModel], ...] = ()
) -> Iterator[str]:
    """Every dotted key of a section, those of all kinds included; what the user names is `<name>`. A kind
    that may hold others of its registry is not looked for inside itself (`above`)."""
    for name, field in model.model_fields.items():
        yield prefix + name
        named = typing.get_origin(field.annotation) is dict
        for inner in inner_models(field.annotation):
            for kind in kinds_of(inner):
                if kind not in (*above, model):
                    below = f"{prefix}{name}.{'<name>.' if named else ''}"
                    yield from all_keys(kind, below, (*above, model))


def kinds_of(model: type[BaseModel]) -> list[type[BaseModel]]:
    """All kinds of a section that has several, or the section itself."""
    if issubclass(model, Kind) and "registry" in vars(model):
        return [model.registry[name] for name in model.registry]
    return [model]


def inner_models(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field's type speaks of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in typing.get_args(annotation) for model in inner_models(inner)]
