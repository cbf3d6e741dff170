ts.migrator.compare_npy_dir('ms_ts_save', 'torch_ts_save', rtol=1e-3, atol=1e-3, equal_nan=True, compare_shape=True, output_file='./compare.csv')
