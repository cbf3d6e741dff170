"""`troubleshooter`: tensorprobe's tools for a model that moves between frameworks, under TroubleShooter's name."""

from tensorprobe_compat.original import refuse_beside_original

refuse_beside_original(__name__)

import sys  # noqa: E402

from tensorprobe import migrator, save, save_grad, widget  # noqa: E402
from tensorprobe.migrator.attention import speak_as  # noqa: E402

speak_as("troubleshooter.log")

__all__ = ["migrator", "save", "save_grad", "widget"]

# `import troubleshooter.migrator` finds them as well.
sys.modules[f"{__name__}.migrator"] = migrator
sys.modules[f"{__name__}.widget"] = widget
