"""The user's YAML that adds APIs to what is recorded, or removes some.

    functional: [conv1d, conv2d]      exactly these of the category
    tensor: {remove: [__getitem__]}   the defaults of the category, without these
    torch: {add: [size]}              the defaults of the category, and these

A category that the file leaves out keeps its defaults. pyyaml is imported only when such a file is read:
training images need not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorprobe.config.plain_yaml import describe_mistake, plain_loader
from tensorprobe.config.setting import show_value
from tensorprobe.config.suggestion import suggest
from tensorprobe.config.text_file import read_text
from tensorprobe.errors import ConfigError

PREFIX_OF_CATEGORY = {
    "functional": "Functional",
    "tensor": "Tensor",
    "torch": "Torch",
    "distributed": "Distributed",
    "npu": "NPU",
    "torch_npu": "NPU",
    "jit": "Jit",
    "ops": "Ops",
    "aten": "Ops",
    "autograd": "Autograd",
    "mint": "Mint",
    "mint_functional": "MintFunctional",
    "primitive": "Primitive",
}


@dataclass(frozen=True)
class CategoryRule:
    """What a file says of one category."""

    only: frozenset[str] | None = None
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()

    def decide(self, name: str, default: bool) -> bool:
        """Is this API recorded, if by default it would (or would not) be?"""
        if self.only is not None:
            return name in self.only
        return name not in self.removed and (default or name in self.added)


@dataclass(frozen=True)
class ApiList:
    """The rules by the prefix of the records they are about; none changes nothing."""

    rules: Mapping[str, CategoryRule] = field(default_factory=dict)

    def decide(self, category_prefix: str, name: str, default: bool) -> bool:
        """Is the API `name` of `Functional`, `Tensor`, … recorded?"""
        rule = self.rules.get(category_prefix)
        return default if rule is None else rule.decide(name, default)

    def has_name(self, category_prefix: str, name: str) -> bool:
        """Does the file say something of this name?"""
        rule = self.rules.get(category_prefix)
        return rule is not None and name in (rule.only or frozenset()) | rule.added | rule.removed


def load_api_list(path: Path) -> ApiList:
    """Read and check the file that the key `api_yaml` names."""
    document = _read_yaml(path)
    if not isinstance(document, dict) or not document:
        raise ConfigError(
            f"{path} {_describe(document)}; write a category and its names, like functional: [conv1d, conv2d]"
        )
    rules: dict[str, CategoryRule] = {}
    for category, names in document.items():
        prefix = _prefix_of(category, path)
        if prefix in rules:
            raise ConfigError(f'{path} has the category "{category}" under two names; join them under one')
        rules[prefix] = _read_rule(category, names, path)
    return ApiList(rules)


def _prefix_of(category: object, path: Path) -> str:
    if isinstance(category, str) and category in PREFIX_OF_CATEGORY:
        return PREFIX_OF_CATEGORY[category]
    advice = suggest(category, PREFIX_OF_CATEGORY)
    separator = f"; {advice}" if advice else "."
    accepted = ", ".join(PREFIX_OF_CATEGORY)
    raise ConfigError(f'unknown category "{category}" in {path}{separator} Accepted categories: {accepted}')


def _read_rule(category: str, names: object, path: Path) -> CategoryRule:
    if isinstance(names, list):
        return CategoryRule(only=_read_names(names, category, path))
    if not isinstance(names, dict) or not names:
        advice = "write a list of names, or add: and remove: with a list each"
        raise ConfigError(f'category "{category}" {_describe(names)} (in {path}); {advice}')
    _check_verbs(category, names, path)
    added = _read_names(names.get("add", []), f"{category}.add", path)
    removed = _read_names(names.get("remove", []), f"{category}.remove", path)
    for name in sorted(added & removed):
        raise ConfigError(f'category "{category}" both adds and removes "{name}" (in {path}); keep one of them')
    return CategoryRule(added=added, removed=removed)


def _check_verbs(category: str, names: dict[Any, object], path: Path) -> None:
    for verb in names:
        if verb not in ("add", "remove"):
            advice = suggest(verb, ("add", "remove"))
            separator = f"; {advice}" if advice else "."
            place = f'category "{category}" of {path}'
            raise ConfigError(f'unknown key "{verb}" in {place}{separator} Accepted keys: add, remove')


def _read_names(names: object, key: str, path: Path) -> frozenset[str]:
    if not isinstance(names, list):
        raise ConfigError(f'"{key}" {_describe(names)} (in {path}); write a list of names, like [conv1d, conv2d]')
    for name in names:
        if not isinstance(name, str) or not name.strip():
            advice = "write one in quotes, like 'conv1d'"
            raise ConfigError(f'{show_value(name)} is not the name of an API (in {path}, key "{key}"); {advice}')
    return frozenset(names)


def _describe(value: object) -> str:
    return "is empty" if value is None or value == {} else f"holds {show_value(value)}"


def _read_yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise ConfigError(f"{path} is YAML, and pyyaml is not installed; run: pip install pyyaml") from None
    text = read_text(str(path))
    try:
        _refuse_duplicates(yaml.compose(text, Loader=plain_loader()), path)
        return yaml.load(text, plain_loader())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {describe_mistake(error)}; correct it there") from None


def _refuse_duplicates(document: Any, path: Path) -> None:
    # pyyaml keeps the last of two equal keys and drops the first without a word.
    for mapping in (document, *(value for _, value in _pairs(document))):
        seen: set[str] = set()
        for key, _ in _pairs(mapping):
            if str(key.value) in seen:
                place = f"line {key.start_mark.line + 1}"
                raise ConfigError(f'{path} has the key "{key.value}" twice ({place}); join the two')
            seen.add(str(key.value))


def _pairs(node: Any) -> list[tuple[Any, Any]]:
    is_mapping = type(node).__name__ == "MappingNode"
    return list(node.value) if is_mapping else []
