"""The template as data, for every test that reads a number or a shape off it."""

from pathlib import Path
from typing import Any

import yaml

type Json = dict[str, Any]


class _CloudFormationLoader(yaml.SafeLoader):
    """YAML with the short forms of CloudFormation: `!Ref X` reads as `{"Ref": "X"}`."""


def _intrinsic(loader: _CloudFormationLoader, name: str, node: yaml.Node) -> Json:
    key = name if name in {"Ref", "Condition"} else f"Fn::{name}"
    match node:
        case yaml.ScalarNode():
            value = loader.construct_scalar(node)
            return {key: value.split(".", 1) if name == "GetAtt" else value}
        case yaml.SequenceNode():
            return {key: loader.construct_sequence(node, deep=True)}
        case yaml.MappingNode():
            return {key: loader.construct_mapping(node, deep=True)}
        case _:
            raise TypeError(node)


_CloudFormationLoader.add_multi_constructor("!", _intrinsic)

ROOT = Path(__file__).parents[1]
TEMPLATE: Json = _CloudFormationLoader((ROOT / "template.yaml").read_text()).get_single_data()
RESOURCES: Json = TEMPLATE["Resources"]
