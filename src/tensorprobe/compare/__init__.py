"""Two runs, compared: align -> measure -> judge. Needs numpy only: a run from a cluster is compared on a laptop."""
