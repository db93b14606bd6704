"""YAML as recipes use it: 3e-4 is a number, `on` is a word, a key stands once, and small files stay small."""

import re
from pathlib import Path
from typing import Any

import yaml

MOST_LEVELS = 100
MOST_VALUES = 100_000  # of a file, with all its aliases written out


class RecipeLoader(yaml.SafeLoader):
    """SafeLoader that refuses repeated and unhashable keys, recursive aliases, alias bombs, and deep nesting,
    with which its scanner would take minutes."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        self._check_depth(self.flow_level)
        super().fetch_flow_collection_start(TokenClass)

    def add_indent(self, column: int) -> bool:
        self._check_depth(len(self.indents))
        return super().add_indent(column)

    def _check_depth(self, depth: int) -> None:
        if depth >= MOST_LEVELS:
            raise _refusal(f"line {self.line + 1}: it is nested too deeply")

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            shown = str(node.value)[:40]
            raise _refusal(f"line {node.start_mark.line + 1}: {shown!r} cannot be read: {error}") from None

    def get_single_data(self) -> Any:
        node = self.get_single_node()
        if node is None:
            return None
        _count_values(node, {}, set())
        return self.construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise _refusal(f"line {line}: a key must be a word or a number")
            merged = key_node.tag == "tag:yaml.org,2002:merge"
            key = key_node.value if merged else self.construct_object(key_node, deep=True)
            if key in seen:
                raise _refusal(f"line {line}: {key} is written twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


RecipeLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
RecipeLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false)$"), list("tf"))
RecipeLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_yaml(text: str) -> Any:
    """Plain data; a yaml.YAMLError says what is wrong. Values that an alias repeats are separate copies."""
    try:
        return copy_plain(yaml.load(text, Loader=RecipeLoader))
    except RecursionError:
        raise _refusal("it is nested too deeply") from None


def read_yaml(path: Path) -> Any:
    """Plain data from a file; one that is not YAML is refused by name."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from None


def _refusal(message: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, message)


def _count_values(node: yaml.Node, known: dict[int, int], open_nodes: set[int]) -> int:
    """How many values the document has when every alias is written out."""
    if id(node) in open_nodes:
        raise _refusal(f"line {node.start_mark.line + 1}: an alias that contains itself")
    if id(node) in known:
        return known[id(node)]
    open_nodes.add(id(node))
    total = 1
    if isinstance(node, yaml.MappingNode):
        inner = [part for pair in node.value for part in pair]
    else:
        inner = node.value if isinstance(node, yaml.SequenceNode) else []
    for part in inner:
        total += _count_values(part, known, open_nodes)
        if total > MOST_VALUES:
            raise _refusal(f"line {node.start_mark.line + 1}: more than {MOST_VALUES:,} values with aliases")
    open_nodes.discard(id(node))
    known[id(node)] = total
    return total


def copy_plain(value: Any) -> Any:
    """Plain data again. Unlike a deep copy, it parts what an alias has put into two places."""
    if isinstance(value, dict):
        return {key: copy_plain(inner) for key, inner in value.items()}
    return [copy_plain(inner) for inner in value] if isinstance(value, list) else value
