"""The tools for a model that moves from one framework to another, with TroubleShooter's names.

Each imports what it needs when it is called: a program that is only recorded does not pay for them.
"""

__all__: list[str] = []
