"""Two runs by what they mean: their steps are replayed in float64, and values are matched by their truth. Names,
modules and order give words; they never decide."""
