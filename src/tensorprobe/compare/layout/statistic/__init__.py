"""Two layouts of which only statistics were recorded: what those of parts say of the whole."""
