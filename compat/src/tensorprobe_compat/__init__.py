"""The import names `msprobe` and `troubleshooter`, which belong to other packages, for tensorprobe."""
