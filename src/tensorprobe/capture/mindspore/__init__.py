"""The only code that imports MindSpore."""
