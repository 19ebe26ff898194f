"""Logical blocks ordered by their free space: a bucket for each count, and the fullest known at once.

The paper keeps a red-black tree with 36 B a logical block (section V, table I). Here buckets are doubly
linked lists in flat arrays and a bit for each bucket says whether anything is in it: taking out, putting in
and moving are O(1), finding the most free is O(buckets / word). Memory: free count, two links and the bucket
heads.
"""

from __future__ import annotations

from array import array

_NONE = -1


class BucketQueue:
    """Logical blocks 0 .. n-1, each with a free count of 0 .. capacity, and in the queue or not."""

    def __init__(self, free: list[int], capacity: int, empty: bool = False) -> None:
        """All of them in the queue, of equals the first first; or with `empty` none of them."""
        if any(not 0 <= count <= capacity for count in free):
            raise ValueError(f"free counts lie between 0 and {capacity}")
        self._free = array("i", free)
        self._next = array("i", [_NONE]) * len(free)
        self._previous = array("i", [_NONE]) * len(free)
        self._heads = array("i", [_NONE]) * (capacity + 1)
        self._in_queue = bytearray(len(free))
        self._filled = 0
        for block in () if empty else range(len(free) - 1, -1, -1):
            self.put(block)

    def __len__(self) -> int:
        return len(self._free)

    @property
    def memory_bytes(self) -> int:
        """Of counts, links, marks, heads and the bits of the buckets."""
        columns = (self._free, self._next, self._previous, self._heads)
        return sum(len(c) * c.itemsize for c in columns) + len(self._in_queue) + -(-len(self._heads) // 8)

    def free(self, block: int) -> int:
        """Free blocks of a logical block, in the queue or not."""
        return self._free[block]

    def holds(self, block: int) -> bool:
        """Whether it is in the queue."""
        return bool(self._in_queue[block])

    def most_free(self) -> int | None:
        """The logical block with the most free space; None where no logical block in the queue has any."""
        highest = self._filled.bit_length() - 1
        return self._heads[highest] if highest > 0 else None

    def put(self, block: int) -> None:
        """Into the queue, in front of its equals."""
        if self._in_queue[block]:
            raise ValueError(f"logical block {block} is in the queue")
        count = self._free[block]
        head = self._heads[count]
        self._next[block], self._previous[block] = head, _NONE
        if head == _NONE:
            self._filled |= 1 << count
        else:
            self._previous[head] = block
        self._heads[count] = block
        self._in_queue[block] = 1

    def take_out(self, block: int) -> None:
        """Out of the queue; its free count stays known."""
        if not self._in_queue[block]:
            raise ValueError(f"logical block {block} is not in the queue")
        count, after, before = self._free[block], self._next[block], self._previous[block]
        if after != _NONE:
            self._previous[after] = before
        if before != _NONE:
            self._next[before] = after
        else:
            self._heads[count] = after
            if after == _NONE:
                self._filled &= ~(1 << count)
        self._in_queue[block] = 0

    def clear(self) -> None:
        """Take all out that are in the queue, in a time that goes with how many they are."""
        while self._filled:
            block = self._heads[self._filled.bit_length() - 1]
            while block != _NONE:
                self._in_queue[block] = 0
                block = self._next[block]
            self._heads[self._filled.bit_length() - 1] = _NONE
            self._filled &= ~(1 << (self._filled.bit_length() - 1))

    def change(self, block: int, by: int) -> None:
        """Add to the free count."""
        queued = self._in_queue[block]
        if queued:
            self.take_out(block)
        self._free[block] += by
        if queued:
            self.put(block)
