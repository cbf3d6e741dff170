"""What api_dump asks of the engine that nothing else does: its names, its selection, its files."""
