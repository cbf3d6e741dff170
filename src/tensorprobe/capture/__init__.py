"""The engine: sessions, selection, records. Knows no framework; `capture/torch` is the only code that imports torch."""
