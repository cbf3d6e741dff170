"""The keys of msprobe 1.0 to 26.2.0 without a counterpart here: a file that has them loads, with a warning."""

from __future__ import annotations

_OTHER_SECTIONS = (
    "acc_check",
    "diff_check",
    "exception_dump",
    "free_benchmark",
    "grad_probe",
    "load",
    "nan_check",
    "overflow_check",
    "run_ut",
)

_ONLINE = ("host", "is_online", "nfs_path", "online_run_ut", "online_run_ut_recompute", "port", "rank_list", "tls_path")

_FUZZ = (
    "fuzz_device",
    "fuzz_level",
    "fuzz_stage",
    "handler_type",
    "if_preheat",
    "max_sample",
    "pert_mode",
    "preheat_step",
)

MSPROBE_COMMON_KEYS = frozenset(
    (
        *_OTHER_SECTIONS,
        *_ONLINE,
        "acl_config",
        "custom_op_namespaces",
        "dump_enable",
        "dump_mode",
        "enable_dataloader",
        "is_deterministic",
        "precision",
        "risk_level",
        "seed",
        "stack_level",
    )
)

MSPROBE_SECTION_KEYS = frozenset(
    (
        *_ONLINE,
        *_FUZZ,
        "backward_input",
        "bench_path",
        "black_list",
        "bounds",
        "check_mode",
        "device",
        "device_stat_precision_mode",
        "diff_nums",
        "error_data_path",
        "file_format",
        "grad_level",
        "is_regex_valid",
        "mode",
        "overflow_nums",
        "param_list",
        "precision",
        "request_id",
        "slice",
        "stat_cal_mode",
        "white_list",
    )
)
