"""Small tools around saved files, with TroubleShooter's names."""

from tensorprobe.widget.convert import save_convert

__all__ = ["save_convert"]
