"""Served drives with other mappings than by page: merges and map accesses are counted and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nbd_client import NbdClient
from serving import Server, make_device, require, run, served
from waiting import until

from slo_ctl.cli import app

PAGE = 4096
BLOCK_PAGES = 128
"""From the preset, for drives without clustered blocks."""


def flash(server: Server, namespace: int = 0) -> dict[str, Any]:
    with server.control() as control:
        output: dict[str, Any] = control.statistics()["namespaces"][namespace]["flash"]
        return output


def write(server: Server, pages: list[int]) -> None:
    with NbdClient(server.run.export("d"), "d") as client:
        for page in pages:
            client.write(page * PAGE, page.to_bytes(4) * (PAGE // 4))
        client.flush()


@pytest.mark.parametrize("latency", ["none", "real"])
def test_bast_merges_match_calculation_by_hand(root: Path, latency: str) -> None:
    """A log block that is written in order is switched, one in part is completed, one backwards is copied."""
    make_device(root, "name=d,size=32MiB,op=25%,mapping=bast")
    block = list(range(BLOCK_PAGES))
    scaled = ("--time-scale", "0.01") if latency == "real" else ()
    with served(root, "d", "--latency", latency, *scaled) as server:
        write(server, block)
        write(server, block)
        write(server, [0])  # The log block is full and in order.
        assert merges(server) == (1, 0, 0)
        write(server, [1, 2, *reversed(block)])  # a page that is out of order is not appended in order
        partial_and_full = merges(server)
        assert partial_and_full[0] == 1
        assert partial_and_full[2] >= 1
        output = flash(server)
        assert output["merged_blocks"] == output["full_merges"]
        assert (output["full_merge_ns"] > 0) == (latency == "real")
        assert output["map_reads"] == 0
        assert output["host_page_writes"] == 2 * BLOCK_PAGES + 3 + BLOCK_PAGES


def merges(server: Server) -> tuple[int, int, int]:
    output = flash(server)
    return output["switch_merges"], output["partial_merges"], output["full_merges"]


def test_small_dftl_cache_causes_map_accesses(root: Path) -> None:
    make_device(root, "name=d,size=32MiB,op=40%,mapping=dftl,cmt=16")
    with served(root, "d") as server:
        write(server, [page * 97 % 4096 for page in range(400)])
        output = flash(server)
        assert output["map_writes"] > 0
        assert (output["switch_merges"], output["full_merges"]) == (0, 0)


def test_fio_verifies_and_show_reports_merges(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("fio")
    spec = "name=d,size=64MiB,op=25%,dies=4,block=256KiB,cluster=4,mapping=fast,precondition=yes"
    assert app.run(["device", "create", spec, "--root", str(root)]) == 0
    with served(root, "d", "--latency", "real", "--time-scale", "0.05") as server:
        run(
            *("fio", "--name=v", "--ioengine=nbd", f"--uri={server.uri()}", "--rw=randwrite", "--bs=4k"),
            *("--size=16m", "--iodepth=8", "--minimal"),
            *("--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"),
            timeout_s=240,
        )
        capsys.readouterr()
        assert app.run(["device", "show", "d", "--root", str(root)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "blocks of 1 MiB, each over 4 dies" in shown
        assert "FULL MERGES" in shown
        assert app.run(["device", "show", "d", "--json", "--root", str(root)]) == 0
        output = json.loads(capsys.readouterr().out)["statistics"]
        assert (output["mapping"], output["pages_per_block"], output["blocks"]) == ("fast", 256, 64 + 16 + 1)
        assert output["namespaces"][0]["flash"]["full_merges"] > 0


def test_log_blocks_move_while_the_device_is_served(root: Path) -> None:
    """Log blocks of the giver are merged before they move to the taker."""
    spec = "name=d,size=32MiB,op=40%,dies=2,block=128KiB,mapping=fast,precondition=yes"
    assert (
        app.run(
            ["device", "create", spec, "--namespace", "name=a", "--namespace", "name=b", "--root", str(root)]
        )
        == 0
    )
    with (
        served(root, "d", "--latency", "real", "--time-scale", "0.05") as server,
        server.control() as control,
    ):

        def spaces() -> list[dict[str, Any]]:
            return [each["space"] for each in control.statistics()["namespaces"]]

        before = spaces()
        control.move_ops("a", "b", 20)
        until(lambda: not spaces()[0]["pending_out_blocks"], "a has given its blocks")
        after = spaces()
        assert [now["ops_blocks"] - was["ops_blocks"] for was, now in zip(before, after, strict=True)] == [
            -20,
            20,
        ]
        assert flash(server)["reclaim_page_writes"] > 0
