"""The cgroup tree that accounts block I/O: which version the host has, and the groups in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from slo_ctl.errors import UserError
from slo_ctl.observe.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Found = TypeVar("Found")

DEFAULT_ROOT = Path("/sys/fs/cgroup")
MAX_DEPTH = 16
MAX_GROUPS = 100_000
"""A walk ends here; hosts have some thousands."""


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """A mounted hierarchy: v2, or the blkio one of v1."""

    version: int
    root: Path
    io: bool = True
    """The hierarchy has the controller of block I/O; v2 without it only says which VMs there are."""

    def folder(self, cgroup: str) -> Path:
        """Where a cgroup, named as in /proc/PID/cgroup, is in the file system."""
        return self.root / cgroup.lstrip("/")


def find_tree(root: Path = DEFAULT_ROOT) -> CgroupTree | None:
    """The hierarchy with block I/O at `root`; v2 first. None when there is none of any kind.

    `root` is the mount of v2, the mount of blkio, or the folder that v1 hierarchies are mounted in, which on
    hybrid hosts also has a v2 without io.
    """
    v2 = [tree for place in (root, root / "unified") if (tree := _v2(place))]
    v1 = [CgroupTree(1, place) for place in (root / "blkio", root) if _is_blkio(place)]
    found = [*(tree for tree in v2 if tree.io), *v1, *v2]
    return found[0] if found else None


def require_tree(root: Path) -> CgroupTree:
    """The hierarchy at a root that the user named. Raises UserError when there is none."""
    tree = find_tree(root)
    if tree is None:
        raise UserError(
            f"--cgroup-root {root}: there is no cgroup tree",
            "name the mount of cgroup v2 or of v1's blkio; `mount -t cgroup,cgroup2` lists them",
        )
    return tree


def _v2(place: Path) -> CgroupTree | None:
    try:
        file = read_bounded(place / "cgroup.controllers")
    except OSError:
        # What cannot be read is no tree that could be used.
        return None
    return None if file is None else CgroupTree(2, place, "io" in file.text.split())


def _is_blkio(place: Path) -> bool:
    return any(
        (place / f"blkio.{name}").is_file() for name in ("throttle.io_service_bytes", "reset_stats", "weight")
    )


def find_groups(
    tree: CgroupTree, wanted: Callable[[str], Found | None], note: Callable[[str], None]
) -> Iterator[tuple[str, Found]]:
    """Every group that `wanted` knows by its folder's name, as its cgroup and what `wanted` made of the name.

    Nothing inside a wanted group is looked at. `note` takes one sentence for what could not be read.
    """
    for cgroup, _, found in walk_groups(tree, wanted, note):
        yield cgroup, found


def walk_groups(
    tree: CgroupTree, wanted: Callable[[str], Found | None], note: Callable[[str], None]
) -> Iterator[tuple[str, int, Found]]:
    """As `find_groups`, with the inode of the folder: another one is another group of the same name."""
    root = str(tree.root)
    waiting: list[tuple[str, int]] = [("", 0)]
    seen = 0
    while waiting:
        parent, depth = waiting.pop()
        for name, inode, inner in _children(root + parent, note):
            seen += 1
            if seen > MAX_GROUPS:
                note(f"more than {MAX_GROUPS:,} cgroups: the others were not looked at")
                return
            cgroup = f"{parent}/{name}"
            found = wanted(name)
            if found is not None:
                yield cgroup, inode, found
            elif inner and depth + 1 < MAX_DEPTH:
                waiting.append((cgroup, depth + 1))


def _children(folder: str, note: Callable[[str], None]) -> list[tuple[str, int, bool]]:
    """Name, inode, and whether it may have groups inside, of each group in a folder."""
    try:
        with os.scandir(folder) as entries:
            # A folder has a link for itself, one from its parent and one from each folder in it. File systems
            # that do not count like that say 1.
            return sorted(
                (entry.name, entry.inode(), entry.stat(follow_symlinks=False).st_nlink != 2)
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        note(f"{folder}: {error.strerror}; VMs below it are not seen")
        return []


def named_group(tree: CgroupTree, path: str) -> str:
    """The cgroup that the user named, by its folder or as in /proc/PID/cgroup. Raises UserError."""
    option = f"--cgroup {path}"
    hint = f"name a group below {tree.root}, as in /proc/PID/cgroup"
    if "\0" in path:
        raise UserError(f"{option}: a NUL cannot be in a path", hint)
    root = tree.root.resolve()
    by_folder = Path(path).is_relative_to(tree.root)
    folder = (Path(path) if by_folder else tree.folder(path)).resolve()
    if not folder.is_relative_to(root):
        raise UserError(f"{option} is outside of the cgroup tree", hint)
    if folder == root:
        raise UserError(f"{option} is the root, which holds the whole host", hint)
    if not folder.is_dir():
        raise UserError(f"{option}: there is no such cgroup", hint)
    return f"/{folder.relative_to(root)}"
