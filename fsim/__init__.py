"""Simulated file systems: where an allocator places blocks, and what that costs on a log-block FTL.

C. Hyun et al., "A Performance Model and File System Space Allocation Scheme for SSDs".

Allocators (`allocators`) share one map of free space (`space`); a file system (`file_system`) with its
metadata (`layout`) turns the transactions of Postmark (`workloads`) into requests, and `experiment` plays
them on an emulated drive (`drives`).
"""
