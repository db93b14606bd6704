"""What every recipe section is made of."""

import re
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """A section of a recipe: typed, unchangeable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RecipeLoader(yaml.SafeLoader):
    """YAML as one expects it: 3e-4 is a number, and a key that is written twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(None, None, f"line {line}: {key} is written twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


RecipeLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
