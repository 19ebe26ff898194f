"""Block traces: formats, synthesis, remapping, merging; everything comes in numpy batches.

`traces.reader.open_trace` reads a file, `traces.synth.workload` makes requests up, `traces.remap` and
`traces.timewarp` change them, `traces.merge.merge_in_time` puts several VMs' requests in order, and
`traces.summary.summarise` says what is in them.
"""

from traces.batch import Batch, Op
from traces.errors import TraceError
from traces.reader import TraceReader, open_trace

__all__ = ["Batch", "Op", "TraceError", "TraceReader", "open_trace"]
