from collections.abc import Callable
from typing import Any

def prepare(
    leaf_type: type,
    late_type: type,
    encode_other: Callable[[Any], str],
    encode_string: Callable[[str], str],
    encode_number: Callable[[Any], str],
    encode_sharding: Callable[[Any], str],
    /,
) -> None: ...
def encode_tree(tree: Any, /) -> str: ...
