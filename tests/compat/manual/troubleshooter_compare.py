import troubleshooter as ts

ts.migrator.compare_npy_dir('ms_ts_save', 'torch_ts_save')

