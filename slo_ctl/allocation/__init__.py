"""Where a file system puts its blocks, and what that costs on a drive that merges.

C. Hyun et al., "A Performance Model and File System Space Allocation Scheme for SSDs". Allocators
(`registry`) share one map of free space (`space`); a file system (`file_system`) with its metadata
(`layout`) turns the transactions of `postmark` into requests, and `experiment` plays them on an emulated
drive (`drives`).
"""
