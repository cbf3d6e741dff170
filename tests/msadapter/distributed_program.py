"""A program for MSAdapter on two ranks. It is run by msrun, not imported."""

# isort: off
import msadapter  # noqa: F401
import torch
import torch.distributed as dist

from tensorprobe.mindspore import PrecisionDebugger
# isort: on

debugger = PrecisionDebugger(dump_path="./dump", level="L1", task="tensor")
dist.init_process_group(backend="mccl")
rank = dist.get_rank()
x, y, z = (torch.ones(3) * (rank + 1) for _ in range(3))
parts = [torch.zeros(3) for _ in range(2)]

debugger.start()
dist.all_reduce(x)
work = dist.all_reduce(tensor=y, async_op=True)
work.wait()
dist.broadcast(z, 0)
dist.all_gather(parts, x * (rank + 1))
dist.barrier()
debugger.stop()
debugger.step()
