"""The tools for a model that moves from one framework to another, with TroubleShooter's names.

Each imports what it needs when it is called: a program that is only recorded does not pay for them.
"""

from tensorprobe.migrator.api_dump import api_dump_compare, api_dump_init, api_dump_start, api_dump_stop
from tensorprobe.migrator.npy_dir import (
    compare_npy_dir,
    get_name_map_list_by_name,
    get_name_map_list_by_number,
    get_name_map_list_by_shape_edit_distance,
)
from tensorprobe.migrator.weight import convert_weight

__all__ = [
    "api_dump_compare",
    "api_dump_init",
    "api_dump_start",
    "api_dump_stop",
    "compare_npy_dir",
    "convert_weight",
    "get_name_map_list_by_name",
    "get_name_map_list_by_number",
    "get_name_map_list_by_shape_edit_distance",
]
