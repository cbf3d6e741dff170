from __future__ import annotations

from typing import Any

import pytest

from tensorprobe.config import load_config
from tensorprobe.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [(5000, 5000), ("5000", 5000), ("50GB", 50 * 10**9), ("1.5 TB", 15 * 10**11), ("2GiB", 2 * 2**30), ("0", 0)],
)
def test_a_size_is_a_number_of_bytes_or_a_text_with_a_unit(written: Any, size_bytes: int) -> None:
    assert load_config(max_disk=written).max_disk == size_bytes
    assert load_config(min_free=written).min_free == size_bytes


@pytest.mark.parametrize("written", ["much", -1, True, 1.5, "5 gb", "GB", "5GBs", ["5GB"]])
def test_what_is_no_size_is_refused_with_what_to_write(written: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(max_disk=written)
    assert str(caught.value) == (
        f'max_disk {written!r} is not a size (argument "max_disk"); '
        'write a number of bytes, or a text like "500MB", "50GB" or "2TB"'
    )
