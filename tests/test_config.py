"""The base of all configuration: every wrong key is named with its place, every kind is found by its name."""

from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator

from brctc.config import (
    Config,
    Count,
    KeyedError,
    Kind,
    NotNegative,
    Positive,
    Registry,
    SectionError,
    Share,
    all_keys,
    describe_problems,
    did_you_mean,
    inner_models,
    kinds_of,
)

SHAPES: Registry["ShapeConfig"] = Registry("shape", default="circle")
PAINTS: Registry["PaintConfig"] = Registry("paint")


class ShapeConfig(Kind):
    registry: ClassVar[Registry] = SHAPES
    kind: str
    label: str = ""


@SHAPES.register
class CircleConfig(ShapeConfig):
    kind: Literal["circle"] = "circle"
    radius: Positive = 1.0


@SHAPES.register
class BoxConfig(ShapeConfig):
    kind: Literal["box"] = "box"
    width: Count
    height: Count = 1

    @model_validator(mode="after")
    def _wide(self) -> "BoxConfig":
        if self.height > self.width:
            raise KeyedError("height", f"{self.height} is above the width {self.width}")
        return self


class PaintConfig(Kind):
    registry: ClassVar[Registry] = PAINTS
    kind: str


@PAINTS.register
class OilConfig(PaintConfig):
    kind: Literal["oil"] = "oil"
    hue: Literal["red", "green", "blue"] = "red"


AnyShape = Annotated[SerializeAsAny[ShapeConfig], BeforeValidator(SHAPES.parse)]
AnyPaint = Annotated[SerializeAsAny[PaintConfig], BeforeValidator(PAINTS.parse)]


class Layer(Config):
    shape: AnyShape
    paint: AnyPaint | None = None
    opacity: Share = 1.0


class Picture(Config):
    title: Annotated[str, Field(min_length=1)]
    layers: dict[str, Layer] = Field(default_factory=dict)
    background: Layer | None = None
    sizes: tuple[Count, ...] = ()
    margin: NotNegative = 0.0


def problems(content: dict) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Picture.model_validate(content)
    return describe_problems(caught.value, Picture, "p.yaml").splitlines()


def problem(content: dict) -> str:
    (found,) = problems({"title": "x", **content})
    return found


def test_kinds_are_found_by_name():
    assert list(SHAPES) == ["circle", "box"]
    assert "box" in SHAPES
    assert "sphere" not in SHAPES
    assert 3 not in SHAPES
    assert SHAPES["box"] is BoxConfig
    with pytest.raises(ValueError, match=r"no shape 'bax': did you mean 'box'\? There are: circle, box"):
        SHAPES["bax"]
    with pytest.raises(ValueError, match="there is no shape 'zzz'; There are: circle, box"):
        SHAPES["zzz"]


def test_a_section_is_of_its_kind():
    layer = Layer.model_validate({"shape": {"kind": "box", "width": 3}, "paint": {"kind": "oil"}})
    assert layer.shape == BoxConfig(width=3)
    assert layer.paint == OilConfig()
    assert Layer(shape=layer.shape).shape is layer.shape  # what is one already stays
    assert Layer.model_validate({"shape": {}}).shape == CircleConfig()  # the default kind
    again = Layer.model_validate(layer.model_dump())
    assert again == layer
    assert Layer.model_validate_json(layer.model_dump_json()) == layer
    assert layer.model_dump()["shape"] == {"kind": "box", "label": "", "width": 3, "height": 1}


def test_what_was_given_is_not_changed():
    content = {"label": "x"}
    SHAPES.parse(content)
    assert content == {"label": "x"}


def test_two_classes_of_one_name():
    registry: Registry = Registry("shape")

    @registry.register
    class Round(Kind):
        kind: Literal["round"] = "round"

    registry.register(Round)  # the same, imported again

    class Other(Kind):
        kind: Literal["round"] = "round"

    with pytest.raises(ValueError, match=r"there is a shape 'round' already: tests\.test_config\.Round"):
        registry.register(Other)
    assert registry["round"] is Round


def test_a_kind_needs_a_name():
    class Nameless(Kind):
        kind: str

    with pytest.raises(TypeError, match=r'Nameless needs a name: kind: Literal\["\.\.\."\] = "\.\.\."'):
        Registry("shape").register(Nameless)


def test_a_registry_without_kinds():
    with pytest.raises(ValueError, match="there is no cloud 'x'; There are: none"):
        Registry("cloud")["x"]


def test_unknown_and_missing_kinds():
    wrong = problem({"background": {"shape": {"kind": "circel"}}})
    assert wrong.startswith("p.yaml: background.shape.kind: there is no shape 'circel': ")
    assert wrong.endswith("did you mean 'circle'? There are: circle, box")
    for odd in (3, None, ["box"], {"a": 1}):
        given = {"background": {"shape": {}, "paint": {"kind": odd}}}
        expected = "required; there are: oil" if odd is None else f"there is no paint {odd!r}"
        assert problem(given).startswith(f"p.yaml: background.paint.kind: {expected}")
    missing = problem({"background": {"shape": {}, "paint": {}}})
    assert missing == "p.yaml: background.paint.kind: required; there are: oil"


def test_a_section_that_is_none():
    for odd in ("box", 3, [], None):
        assert problem({"background": {"shape": odd}}).startswith("p.yaml: background.shape: ")


def test_problems_are_named_with_their_dotted_key():
    found = problems(
        {
            "titel": "x",
            "margin": -1,
            "sizes": [1, 0, "two"],
            "layers": {
                "sky": {"shape": {"kind": "circle", "radius": 0}, "opacity": 2},
                "sea": {"shape": {"kind": "box", "wdth": 3}, "paint": {"kind": "oil", "hue": "gren"}},
                "sun": {"shape": {"kind": "box", "width": 1, "height": 2}},
            },
        }
    )
    assert sorted(found) == sorted(
        [
            "p.yaml: title: missing",
            "p.yaml: titel: unknown key; did you mean title?",
            "p.yaml: margin: input should be greater than or equal to 0, got -1",
            "p.yaml: sizes.1: input should be greater than or equal to 1, got 0",
            "p.yaml: sizes.2: input should be a valid integer, unable to parse string as an integer, "
            "got 'two'",
            "p.yaml: layers.sky.shape.radius: input should be greater than 0, got 0",
            "p.yaml: layers.sky.opacity: input should be less than or equal to 1, got 2",
            "p.yaml: layers.sea.shape.width: missing",
            "p.yaml: layers.sea.shape.wdth: unknown key; did you mean layers.sea.shape.width?",
            "p.yaml: layers.sea.paint.hue: expected 'red', 'green' or 'blue'; did you mean 'green'?, "
            "got 'gren'",
            "p.yaml: layers.sun.shape.height: 2 is above the width 1",
        ]
    )


def test_a_key_of_another_section_is_found_where_it_belongs():
    wrong = problem({"radius": 3})
    assert wrong == "p.yaml: radius: unknown key; did you mean layers.<name>.shape.radius?"
    wrong = problem({"background": {"shape": {"kind": "circle", "hue": "red"}}})
    assert wrong.endswith("background.shape.hue: unknown key; did you mean layers.<name>.paint.hue?")
    wrong = problem({"background": {"shape": {"kind": "circle", "wonderful": 1}}})
    assert wrong.endswith("unknown key; valid here: kind, label, radius")


def test_long_values_are_cut():
    wrong = problem({"sizes": "x" * 10_000})
    assert len(wrong) < 400
    assert wrong.endswith("...")


def test_infinite_values_are_refused():
    for value in (float("inf"), float("nan")):
        assert "margin" in problem({"margin": value})
        assert "radius" in problem({"background": {"shape": {"radius": value}}})


def test_sections_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        CircleConfig().radius = 3


def test_all_keys():
    inside = [
        "shape", "shape.kind", "shape.label", "shape.radius", "shape.kind", "shape.label", "shape.width",
        "shape.height", "paint", "paint.kind", "paint.hue", "opacity",
    ]  # fmt: skip
    assert list(all_keys(Picture)) == [
        "title",
        "layers",
        *(f"layers.<name>.{key}" for key in inside),
        "background",
        *(f"background.{key}" for key in inside),
        "sizes",
        "margin",
    ]


def test_the_models_of_a_type():
    assert inner_models(dict[str, Layer]) == [Layer]
    assert inner_models(Layer | None) == [Layer]
    assert inner_models(tuple[int, ...]) == []
    assert kinds_of(ShapeConfig) == [CircleConfig, BoxConfig]
    assert kinds_of(CircleConfig) == [CircleConfig]
    assert kinds_of(Layer) == [Layer]


def test_did_you_mean():
    assert did_you_mean("conformr", ["conformer", "emformer"]) == (
        ": did you mean 'conformer'? There are: conformer, emformer"
    )
    assert did_you_mean(None, []) == "; There are: none"


def test_errors_of_a_section_say_what_and_where():
    with pytest.raises(SectionError) as caught:
        SHAPES.parse({"kind": "box", "height": 0})
    assert caught.value.config is BoxConfig
    assert describe_problems(caught.value.error, BoxConfig, "--set").splitlines() == [
        "--set: width: missing",
        "--set: height: input should be greater than or equal to 1, got 0",
    ]
