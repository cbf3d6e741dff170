"""Small tools around saved files, with TroubleShooter's names."""

__all__: list[str] = []
