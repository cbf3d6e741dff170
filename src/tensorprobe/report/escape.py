"""Names come from a dump, and a dump may come from anyone: what is printed or written of them does nothing."""

from tensorprobe.foreign_text import clean, shorten

__all__ = ["clean", "shorten"]
