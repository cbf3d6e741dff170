"""The command line: one small file a command. A command parses, calls the library, prints, and nothing else."""
