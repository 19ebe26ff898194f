"""Block traces: formats, synthesis, remapping, merging; all requests are numpy batches.

`traces.reader.open_trace` reads a file, `traces.synth.workload` generates requests, `traces.remap` and
`traces.timewarp` change them, `traces.merge.merge_in_time` merges several VMs' requests, and
`traces.summary.summarise` computes statistics.
"""

from traces.batch import Batch, Op
from traces.errors import TraceError
from traces.reader import TraceReader, open_trace

__all__ = ["Batch", "Op", "TraceError", "TraceReader", "open_trace"]
