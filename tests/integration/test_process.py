"""The user's process: its children, its disk, its folders and its logging."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tensorprobe.store.reader import open_dump
from tests.integration.script import PREAMBLE, messages, run_script

FORKED = (
    PREAMBLE
    + """
debugger = PrecisionDebugger(dump_path="dump", level="mix", task="tensor")
debugger.start(model)
model(x)
pid = os.fork()
if pid == 0:
    model(x)
    debugger.save(x, "in the child")
    assert type(model).__call__.__qualname__ == "Module._wrapped_call_impl", type(model).__call__
    assert torch._C._len_torch_function_stack() == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    try:
        debugger.start(model)
    except Exception as error:
        print(error)
    debugger.step()
    sys.exit(5)  # runs the exit handlers of the child
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
model(x).sum().backward()
debugger.stop()
debugger.step()
"""
)


def test_a_forked_child_writes_nothing_and_the_parents_dump_is_right(tmp_path: Path) -> None:
    ended = run_script(tmp_path, FORKED)
    assert "its process was forked from the one that made it: make another one here" in ended.stdout
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["step0"]
    (rank,) = open_dump(tmp_path / "dump").ranks()
    names = [record.name for record in rank.records()]
    assert rank.is_complete and not rank.problems and not list(rank.saved_values())
    assert [name for name in names if name.startswith("Module.Sequential.forward")] == [
        "Module.Sequential.forward.0",
        "Module.Sequential.forward.1",
    ]
    assert "Module.Sequential.backward.1" in names and len(messages(ended)) == 2


def test_a_forked_child_may_make_a_debugger_of_its_own(tmp_path: Path) -> None:
    script = """
debugger = PrecisionDebugger(dump_path="parent")
debugger.start(model)
if os.fork() == 0:
    own = PrecisionDebugger(dump_path="child")
    own.start(model)
    torch.ones(2)
    own.stop()
    own.step()
    os._exit(0)
os.wait()
debugger.stop()
"""
    run_script(tmp_path, PREAMBLE + script)
    (rank,) = open_dump(tmp_path / "child").ranks()
    assert [record.name for record in rank.records()] == ["Torch.ones.0.forward"]


# Records two steps, and waits for another process in the middle of the first.
TOGETHER = (
    PREAMBLE
    + """
import pathlib, time

def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)

mine, other = sys.argv[1:3]
os.chdir("..")
debugger = PrecisionDebugger(dump_path="dump", level="mix", task="tensor")
if mine == "second":
    wait_for("first")
for step in range(2):
    debugger.start(model)
    model(x * (2 if mine == "second" else 1))
    pathlib.Path(mine).touch()
    wait_for(other)
    torch.sin(x)
    debugger.stop()
    debugger.step()
pathlib.Path(mine + " is done").touch()
wait_for(other + " is done")
"""
)


def test_two_processes_on_one_path_keep_their_files_apart_and_the_second_says_where_they_are(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        running = []
        for mine, other in (("first", "second"), ("second", "first")):
            folder = tmp_path / f"folder of the {mine}"
            folder.mkdir()
            running.append(pool.submit(run_script, folder, TOGETHER, mine, other))
        first, second = (future.result() for future in running)
    assert len(messages(first)) == 3 and len(messages(second)) == 4
    ranks = {rank.name: rank for rank in open_dump(tmp_path / "dump").ranks()}
    own = f"proc{next(rank.run['pid'] for name, rank in ranks.items() if 'proc' in name)}"
    assert sorted(ranks) == [f"step0/{own}", "step0/rank", f"step1/{own}", "step1/rank"]
    assert f"the records of this process go to {own} beside it" in messages(second)[0]
    assert all("replaced" not in line for line in messages(first) + messages(second))
    for name, rank in ranks.items():
        names = [record.name for record in rank.records()]
        assert rank.is_complete and not rank.problems and names[-1] == "Torch.sin.0.forward"
        files = [slot.data_name for record in rank.records() for slot in record.slots() if hasattr(slot, "data_name")]
        assert files and all(rank.tensor_path(file).exists() for file in files)
        assert (rank.run["pid"] == int(own[4:])) == ("proc" in name)
    one, other = (next(ranks[f"step0/{name}"].record("Module.Sequential.forward.0").slots()) for name in ("rank", own))
    assert other.max == 2 * one.max
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["step0", "step1"]


def test_a_second_run_after_the_first_replaces_it(tmp_path: Path) -> None:
    script = """
debugger = PrecisionDebugger(dump_path="dump", level="L1")
debugger.start(model)
torch.sin(x)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
debugger.stop()
debugger.step()
"""
    run_script(tmp_path, PREAMBLE + script, "killed", code=-signal.SIGKILL)
    ended = run_script(tmp_path, PREAMBLE + script, "whole")
    assert messages(ended)[0].startswith(f"{tmp_path}/dump held an earlier run (step0/rank), which is now in ")
    (rank,) = open_dump(tmp_path / "dump").ranks()
    assert rank.name == "step0/rank" and rank.is_complete
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["step0"]


STEPS = """
debugger = PrecisionDebugger(dump_path="dump", level="L1", task="tensor")
for step in range(int(sys.argv[1])):
    debugger.start(model)
    torch.sin(x)
    if sys.argv[2] == "crash":
        raise ValueError("of the program")
    debugger.stop()
    debugger.step()
"""


def test_five_steps_and_then_two_into_one_folder_are_two_steps_of_one_run(tmp_path: Path) -> None:
    run_script(tmp_path, PREAMBLE + STEPS, "5", "whole")
    (old,) = {rank.run["run_id"] for rank in open_dump(tmp_path / "dump").ranks()}
    ended = run_script(tmp_path, PREAMBLE + STEPS, "2", "whole")
    ranks = list(open_dump(tmp_path / "dump").select().ranks())
    assert [rank.name for rank in ranks] == ["step0/rank", "step1/rank"]
    assert len({rank.run["run_id"] for rank in ranks}) == 1 and ranks[0].run["run_id"] != old
    replaced = f"{tmp_path}/dump/replaced_{old}"
    assert messages(ended)[:2] == [
        f"{tmp_path}/dump held an earlier run (step0/rank … step4/rank, 5 folders), which is now in {replaced}; it is "
        "removed when a step of this run is complete. To keep it, rename that folder",
        f"{replaced}, an earlier run, is removed: this run has replaced it",
    ]
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["step0", "step1"]


def test_a_crash_in_the_first_step_leaves_the_earlier_run_whole_beside_what_it_recorded(tmp_path: Path) -> None:
    run_script(tmp_path, PREAMBLE + STEPS, "3", "whole")
    run_script(tmp_path, PREAMBLE + STEPS, "3", "crash", code=1)
    (crashed,) = open_dump(tmp_path / "dump").select().ranks()
    assert crashed.record_count == 1 and "of the program" in crashed.run["ended"]
    (replaced,) = (tmp_path / "dump").glob("replaced_*")
    ranks = list(open_dump(replaced).select().ranks())
    assert len(ranks) == 3 and all(rank.is_complete for rank in ranks)
    assert all(rank.tensor_path("Torch.sin.0.forward.output.0.pt").exists() for rank in ranks)


# Trains twice from one seed, without capture and with it, and says whether the numbers are the same.
TWICE = (
    PREAMBLE
    + """
import copy, resource

def train(debugger):
    torch.manual_seed(1)
    net = copy.deepcopy(model)
    optimizer = torch.optim.Adam(net.parameters())
    losses = []
    for _ in range(3):
        if debugger:
            debugger.start(net)
        loss = nn.functional.dropout(net(torch.randn(64, 4))).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if debugger:
            debugger.stop()
            debugger.step()
    return [*losses, *net.state_dict().values(), torch.get_rng_state()]

plain = train(None)
prepare()
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix", task=sys.argv[2])
spoil = globals().get("spoil", lambda: None)
spoil()
captured = train(debugger)
assert all(torch.equal(one, other) for one, other in zip(plain, captured, strict=True))
print("identical")
"""
)

FULL_DISK = """
def prepare():
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
"""
READ_ONLY = """
def prepare():
    os.mkdir("locked", 0o555)
    if os.getuid() == 0:
        os.setuid(65534)  # to root every folder is open
"""


PLANT = """
def prepare():
    for place, target in {links}:
        os.makedirs(os.path.dirname("dump/" + place), exist_ok=True)
        os.symlink(os.path.abspath(target), "dump/" + place)
"""
IN_NOBODYS_WAY = [
    (".rank.lock", "mine.txt"),
    (".run.lock", "mine.txt"),
    ("step0/rank/dump_tensor_data", "outside"),
    ("step0/rank/dump.json.part", "mine.txt"),
    ("step0/rank/run.json", "mine.txt"),
    ("step0/rank/.run.json.tmp", "mine.txt"),
]


@pytest.mark.parametrize("links", [IN_NOBODYS_WAY, [("step0", "outside")], [("step0/rank", "outside")]])
def test_a_link_that_somebody_planted_is_not_followed_and_training_goes_on_bit_for_bit(
    links: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    (tmp_path / "outside").mkdir()
    for name in ("weights.pt", "data.npy", "dump.json", "run.json"):
        (tmp_path / "outside" / name).write_text("precious")
    ended = run_script(tmp_path, PLANT.format(links=links) + TWICE, "dump", "tensor")
    assert ended.stdout == "identical\n" and (tmp_path / "mine.txt").read_text() == "precious"
    left = {path.name: path.read_text() for path in (tmp_path / "outside").iterdir()}
    assert left == dict.fromkeys(("weights.pt", "data.npy", "dump.json", "run.json"), "precious")
    if links is IN_NOBODYS_WAY:  # or with what was moved aside: everything is recorded
        ranks = [rank.name for rank in open_dump(tmp_path / "dump").ranks()]
        assert ranks == ["step0/rank", "step1/rank", "step2/rank"]
    else:
        said = [line for line in messages(ended) if f"{links[0][0]} is a link, and no link inside a dump_path" in line]
        assert len(said) == 1 and said[0].endswith("training goes on, further failures of this kind are counted")


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_on_a_full_disk_one_message_says_so_and_training_goes_on_bit_for_bit(task: str, tmp_path: Path) -> None:
    ended = run_script(tmp_path, FULL_DISK + TWICE, "dump", task)
    said = [line for line in messages(ended) if "could not be written" in line]
    assert ended.stdout == "identical\n" and len(said) == 1
    assert "File too large" in said[0] and said[0].endswith(
        "training goes on, further failures of this kind are counted"
    )
    assert all("failures in" in line for line in messages(ended) if "records in" in line and " wrote " not in line)
    for rank in open_dump(tmp_path / "dump").ranks():
        assert not rank.problems
        assert len(list(rank.records())) == rank.run["coverage"]["recorded"] and rank.run["coverage"]["failed"] > 0


def test_a_folder_that_may_not_be_written_is_said_once_and_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    ended = run_script(tmp_path, READ_ONLY + TWICE, "locked/dump", "tensor")
    said = [line for line in messages(ended) if "could not be written" in line]
    assert ended.stdout == "identical\n" and len(said) == 1
    assert "PermissionError: [Errno 13] Permission denied" in said[0] and "locked" in said[0]
    assert not list((tmp_path / "locked").iterdir())


def test_a_file_in_the_place_of_a_folder_is_said_once_and_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    spoil = "prepare = lambda: None\nspoil = lambda: open('file', 'w').close()\n"
    ended = run_script(tmp_path, spoil + TWICE, "file/dump", "tensor")
    assert ended.stdout == "identical\n"
    assert len([line for line in messages(ended) if "could not be written" in line]) == 1


def test_a_path_below_a_file_is_refused_when_the_debugger_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = run_script(tmp_path, "prepare = lambda: None\n" + TWICE, "file/dump", "tensor", code=1)
    assert "dump_path 'file/dump' cannot be a folder" in ended.stderr


def test_a_path_may_hold_spaces_plus_signs_and_any_letters(tmp_path: Path) -> None:
    path = "my run + 数据 ü/лог"
    ended = run_script(tmp_path, "prepare = lambda: None\n" + TWICE, path, "tensor")
    ranks = list(open_dump(tmp_path / path).ranks())
    assert ended.stdout == "identical\n" and len(ranks) == 3 and all(rank.is_complete for rank in ranks)
    for rank in ranks:
        names = [slot.data_name for record in rank.records() for slot in record.slots() if hasattr(slot, "data_name")]
        assert names and all(rank.tensor_path(name).exists() for name in names)


STEP = """
def step():
    debugger = PrecisionDebugger(dump_path="dump", level="mix")
    debugger.start(model)
    model(x)
    debugger.stop()
    debugger.step()
"""


@pytest.mark.parametrize(
    ("program", "stdout", "is_on_stderr"),
    [
        ("step()", "", True),
        ("logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='mine %(name)s')\nstep()", "mine", False),
        ("logging.basicConfig(level=logging.WARNING, stream=sys.stdout)\nstep()", "", False),
        (
            "PrecisionDebugger(dump_path='dump', level='mix')\n"
            "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='mine %(name)s')\nstep()",
            "mine",
            False,
        ),
        ("logging.getLogger('tensorprobe').setLevel(logging.ERROR)\nstep()", "", False),
    ],
    ids=["nothing configured", "configured", "configured for warnings", "configured later", "silenced"],
)
def test_a_program_that_configures_logging_decides(
    program: str, stdout: str, is_on_stderr: bool, tmp_path: Path
) -> None:
    ended = run_script(tmp_path, f"import logging\n{PREAMBLE}{STEP}{program}\n")
    assert ended.stdout.split() == ([stdout, "tensorprobe"] if stdout else [])
    assert bool(messages(ended)) == is_on_stderr
    assert not is_on_stderr or messages(ended)[0].startswith("step 0: ")
