"""stack.json and construct.json: what makes sense in them is read, and the rest is no error."""

from __future__ import annotations

import json
from pathlib import Path

from tensorprobe.store.side_file import read_noting, read_parents, read_stacks


def test_a_group_of_stacks_is_names_and_frames(tmp_path: Path) -> None:
    groups = {
        "0": [["Torch.add.0.forward", "Torch.add.1.forward"], ["File a.py, line 1", "File b.py, line 2"]],
        "1": [["Torch.mul.0.forward"]],
        "2": [["Torch.mul.1.forward"], ["File a.py"], []],
        "3": "Torch.mul.2.forward",
        "4": [["Torch.mul.3.forward"], "File a.py"],
        "5": [["Torch.mul.4.forward", 7], ["File c.py", None]],
    }
    (tmp_path / "stack.json").write_text(json.dumps(groups))
    frames = ("File a.py, line 1", "File b.py, line 2")
    assert read_stacks(tmp_path, tmp_path).content == {
        "Torch.add.0.forward": frames,
        "Torch.add.1.forward": frames,
        "Torch.mul.4.forward": ("File c.py",),
    }


def test_a_spoilt_stack_file_is_a_problem_unless_a_newer_journal_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"0": [["Torch.add')
    [problem] = read_noting(read_stacks, tmp_path, tmp_path).problems
    assert "stack.json is not whole" in problem
    (tmp_path / "stack.json.part").write_text('["stack", 0, ["File a.py"]]\n["call", 0, "Torch.add.0.forward"]\n')
    found = read_noting(read_stacks, tmp_path, tmp_path)
    assert (found.content, found.problems) == ({"Torch.add.0.forward": ("File a.py",)}, ())


def test_a_parent_is_a_name_or_none(tmp_path: Path) -> None:
    parents = {"Torch.add.0.forward": "Module.fc.Linear.forward.0", "Module.fc.Linear.forward.0": None, "x": 7, "y": []}
    (tmp_path / "construct.json").write_text(json.dumps(parents))
    assert read_parents(tmp_path, tmp_path).content == dict(list(parents.items())[:2])
