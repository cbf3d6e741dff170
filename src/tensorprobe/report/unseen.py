"""What to do about what capture could not see."""

from __future__ import annotations

COMPILED = "compiled region"
"""As capture calls it in the coverage of a step."""
LOOK_INSIDE = 'to see inside compiled regions, record with "compiled": "eager" in the configuration'
