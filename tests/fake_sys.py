"""Block devices of a fake /sys."""

from __future__ import annotations

from pathlib import Path


def block_device(sys: Path, name: str, number: str, queues: int = 0, **files: str) -> Path:
    """The folder of a new block device, with files such as `queue__scheduler="[none]"` (`__` is a slash)."""
    node = sys / "devices" / name
    node.mkdir(parents=True)
    for queue in range(queues):
        (node / "mq" / str(queue)).mkdir(parents=True)
    for path, text in files.items():
        file = node / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    for link in (sys / "dev" / "block" / number, sys / "class" / "block" / name, sys / "block" / name):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(node)
    return node
