"""Messages for servers of other releases."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

from slo_ctl.drives.control import ControlClient

STATISTICS = {"scheduler": "wfq", "namespaces": [{"name": "a", "weight": 2.0, "flash": {}}]}


def answer_as_an_earlier_release(listening: socket.socket) -> None:
    client, _ = listening.accept()
    with client, client.makefile("rwb") as lines:
        for line in lines:
            known = json.loads(line) == {"v": 1, "op": "stats"}
            error = {"code": "malformed", "message": "unknown variant or field"}
            reply = {"ok": True, **STATISTICS} if known else {"ok": False, "error": error}
            lines.write(json.dumps({"v": 1, **reply}).encode() + b"\n")
            lines.flush()


def test_server_that_does_not_know_parts_of_the_statistics_returns_all(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        server = threading.Thread(target=answer_as_an_earlier_release, args=(listening,))
        server.start()
        with ControlClient(path) as client:
            assert STATISTICS.items() <= client.settings().items()
            assert STATISTICS.items() <= client.brief_statistics().items()
        server.join()
