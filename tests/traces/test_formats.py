"""Every format: hand-computed requests and pages from native lines."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from trace_samples import blktrace_event as event
from trace_samples import blktrace_event_v8 as event_v8
from trace_samples import vscsi_v1, vscsi_v2

from traces import Batch, Op, TraceReader, open_trace
from traces.errors import TraceError
from traces.formats.registry import FORMATS

R, W, T, F = Op.READ, Op.WRITE, Op.TRIM, Op.FLUSH


def read(path: Path, **options: object) -> tuple[Batch, TraceReader]:
    reader = open_trace(path, **options)  # type: ignore[arg-type]
    return Batch.concat(list(reader)), reader


def rows(batch: Batch, reader: TraceReader) -> list[tuple[int, int, int, int, str]]:
    return [
        (int(t), int(o), int(a), int(n), reader.volumes[v])
        for t, o, a, n, v in zip(
            batch.time_ns, batch.op, batch.offset_bytes, batch.length_bytes, batch.volume, strict=True
        )
    ]


TEXT = {
    "spc": (
        "0,303567,3584,w,0.000000\n1,55590,3072,R,0.026214,extra,7\n0,8,1,r,1",
        [(0, W, 303567 * 512, 3584, "0"), (26_214_000, R, 55590 * 512, 3072, "1"), (10**9, R, 4096, 1, "0")],
        # 303567 * 512 = 155426304 = 37945 * 4096 + 3584: 3584 bytes from there end in page 37946.
        [(37945, 2), (6948, 2), (1, 1)],
    ),
    "msr": (
        "128166385295514663,hm,0,Write,9056014336,2048,2833\n128166385295514878,hm,1,Read,11855351808,512,2617\n",
        [(0, W, 9056014336, 2048, "hm.0"), (21500, R, 11855351808, 512, "hm.1")],
        [(2210941, 1), (2894373, 1)],
    ),
    "msr-cut": (
        "0.000 0 200626176 4096 0\n223.412 0 3159347200 36864 1\n",
        [(0, W, 200626176, 4096, "0"), (223_412_000, R, 3159347200, 36864, "0")],
        # 200626176 = 48981 * 4096 + 0.
        [(48981, 1), (771325, 9)],
    ),
    "etw": (
        (
            "BeginHeader\n"
            "   DiskRead,  TimeStamp, Process Name ( PID), Irp, ByteOffset, IOSize, Time, DiskNum, FileName\n"
            "  DiskWrite,  TimeStamp, Process Name ( PID), Irp, ByteOffset, IOSize, Time, DiskNum, FileName\n"
            "  DiskFlush,  TimeStamp, Process Name ( PID)\n"
            "EndHeader\n"
            '   DiskRead,     723291, p0 (11008),  0xfff, 0x4e5ec22e00, 0x00002000, 4388, 4, "Disk6"\n'
            "  DiskFlush,     723292, p0 (11008)\n"
            '  DiskWrite,    2664955, "p,1" ( 980), 0xfff, 0x6c80556e00, 0x00010000, 183, 3, "a,b\\c"\n'
        ),
        [(0, R, 0x4E5EC22E00, 0x2000, "4"), (1_941_664_000, W, 0x6C80556E00, 0x10000, "3")],
        [(0x4E5EC22, 3), (0x6C80556, 17)],
    ),
    "alibaba": (
        "0,R,126703661056,4096,1577808000000046\n7,W,19496058880,77824,1577808000000426\n",
        [(0, R, 126703661056, 4096, "0"), (380_000, W, 19496058880, 77824, "7")],
        [(30933511, 1), (4759780, 19)],
    ),
    "tencent": (
        "1538323199,105352008,584,1,1576\n1538323199,8,8,0,9\n1538323201,7,2,0,9\n",
        [
            (0, W, 105352008 * 512, 584 * 512, "1576"),
            (500_000_000, R, 4096, 4096, "9"),
            (2_000_000_000, R, 3584, 1024, "9"),
        ],
        [(13169001, 73), (1, 1), (0, 2)],
    ),
    "systor17": (
        (
            "Timestamp,Response,IOType,LUN,Offset,Size\n"
            "1456095145.133076000,0.000806000,R,0,899056122368,131072\n"
            "1456095145.133077001,,,0,5,\n"
            "1456095145.133077001,0.1,W,2,512,8192\n"
        ),
        [(0, R, 899056122368, 131072, "0"), (1001, W, 512, 8192, "2")],
        [(219496123, 33), (0, 3)],
    ),
    "fiu": (
        "0 4892 syslogd 904265560 8 W 6 0 md5\n5 1 kjournald 904265561 16 R 6 1 md5\n",
        [(0, W, 904265560 * 512, 4096, "6:0"), (5, R, 904265561 * 512, 8192, "6:1")],
        [(113033195, 1), (113033195, 3)],
    ),
    "disksim": (
        "5265.313 0 6357144 8 0\n5265.703 1 7 2 1\n5266.0 1 8 8 A\n",
        [(0, W, 6357144 * 512, 4096, "0"), (390_000, R, 3584, 1024, "1"), (687_000, W, 4096, 4096, "1")],
        [(794643, 1), (0, 2), (1, 1)],
    ),
    "ssdsim": (
        "0 0 280605840 2 1\n97900000 0 7 128 0\n",
        [(0, R, 280605840 * 512, 1024, "0"), (97_900_000, W, 3584, 65536, "0")],
        [(35075730, 1), (0, 17)],
    ),
    "blkparse": (
        (
            "259,2    0        1     0.000000000  4020  Q   R 282624 + 8 [java]\n"
            "259,2    0        2     0.000001581  4020  G   R 282624 + 8 [java]\n"
            "259,2    0        3     0.000003650  4020  U   N [java] 1\n"
            "259,2    0        4     0.000003858  4020  D  RS 282624 + 8 [java]\n"
            "259,2    0        5     0.000013858  4020  Q  DS 16 + 8 [java]\n"
            "259,2    0        6     0.000013859  4020  Q FWS [java]\n"
            "259,2    0        7     0.000013860  4020  Q  FN [java]\n"
            "259,2    0        8     0.000013861  4020  Q FWSM 7 + 2 [java]\n"
            "259,2    0        9     0.000013862  4020  Q   R 36 (12 01 00 00 24 00) [java]\n"
            "CPU0 (259,2):\n Reads Queued:           3,       12KiB\n"
        ),
        [
            (0, R, 282624 * 512, 4096, "259,2"),
            (13_858, T, 8192, 4096, "259,2"),
            (13_859, F, 0, 0, "259,2"),
            (13_860, F, 0, 0, "259,2"),
            (13_861, W, 3584, 1024, "259,2"),
        ],
        [(35328, 1), (2, 1), (0, 0), (0, 0), (0, 2)],
    ),
    # Output of QEMU 7.2 for commands of its monitor such as `qemu-io d "write 4096 8192"`.
    "qemu": (
        (
            "15072@1795419136.363648:blk_co_pwritev blk 0x56339a7b3460 bs 0x56339a7b37b0 "
            "offset 4096 bytes 8192 flags 0x0\n"
            "15072@1795419136.376605:blk_co_preadv blk 0x56339a7b3460 bs 0x56339a7b37b0 "
            "offset 0 bytes 512 flags 0x0\n"
            "15072@1795419136.386675:blk_co_pwritev blk 0x56339a7c0960 bs 0x56339a7c3420 "
            "offset 65536 bytes 4096 flags 0x0\n"
        ),
        [
            (0, W, 4096, 8192, "0x56339a7b3460"),
            (12_957_000, R, 0, 512, "0x56339a7b3460"),
            (23_027_000, W, 65536, 4096, "0x56339a7c0960"),
        ],
        [(1, 2), (0, 1), (16, 1)],
    ),
    "iolog": (
        (
            "fio version 3 iolog\n2 nvme0 add\n872 nvme0 open\n878 nvme0 write 0 16384\n"
            "888 nvme0 trim 4096 1\n"
            "890 nvme0 sync\n891 nvme0 read 4095 2\n892 nvme0 syncfs 0 0\n10001677 nvme0 close\n"
        ),
        [
            (0, W, 0, 16384, "nvme0"),
            (10_000, T, 4096, 1, "nvme0"),
            (12_000, F, 0, 0, "nvme0"),
            (13_000, R, 4095, 2, "nvme0"),
            (14_000, F, 0, 0, "nvme0"),
        ],
        [(0, 4), (1, 1), (0, 0), (0, 2), (0, 0)],
    ),
    "hfplayer": (
        (
            "#DUMP_OFFSET.I,ELAPSED_USECS.D,CMD.S,LUN_SSID.I,LBA.I,NBLKS.I\n"
            "1,81442951.096,WR_IN,3,2254431928,8\n2,81442952.5,RD_IN,3,7,2\n3,81442953.0,TUR_IN,3,0,0\n"
        ),
        [(0, W, 2254431928 * 512, 4096, "3"), (1404, R, 3584, 1024, "3")],
        [(281803991, 1), (0, 2)],
    ),
    "slo-ctl": (
        (
            "#slo-ctl-trace 1\ntime_ns,op,offset_bytes,length_bytes,volume\n"
            "5,write,4095,2,a\n4,write-zeroes,0,4096,b\n6,flush,0,0,a\n7,trim,4096,8192,a\n8,read,1,4096,a\n"
        ),
        [
            (0, W, 4095, 2, "a"),
            (-1, Op.WRITE_ZEROES, 0, 4096, "b"),
            (1, F, 0, 0, "a"),
            (2, T, 4096, 8192, "a"),
            (3, R, 1, 4096, "a"),
        ],
        [(0, 2), (0, 1), (0, 0), (1, 2), (0, 2)],
    ),
}


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("dress", ["plain", "bom-crlf", "no-newline", "blank-lines"])
def test_each_text_format_is_parsed(name: str, dress: str, trace_file: Callable[..., Path]) -> None:
    text, expected, pages = TEXT[name]
    if dress == "bom-crlf":
        text = "\ufeff" + text.replace("\n", "\r\n")
    elif dress == "no-newline":
        text = text.rstrip("\n")
    elif dress == "blank-lines" and name not in ("blkparse", "etw", "hfplayer"):
        text = text.rstrip("\n") + "\n\n   \n"
    path = trace_file(text)
    batch, reader = read(path)
    assert reader.format == name
    assert rows(batch, reader) == expected
    first, count = batch.page_span()
    assert list(zip(first.tolist(), count.tolist(), strict=True)) == pages
    assert reader.records == len(expected)


def test_skipped_records_are_counted(trace_file: Callable[..., Path]) -> None:
    counted = {}
    for name in ("systor17", "etw", "blkparse", "hfplayer", "iolog"):
        _, reader = read(trace_file(TEXT[name][0]))
        counted[name] = dict(reader.skipped)
        assert reader.bad_records == 0
    assert counted["systor17"] == {"blank IOType": 1}
    assert counted["etw"] == {"row other than DiskRead and DiskWrite": 1}
    assert counted["blkparse"] == {"event other than Q": 5, "packet command": 1}
    assert counted["hfplayer"] == {"command other than read or write": 1}
    assert counted["iolog"] == {"file add, open or close": 3}


def test_blkparse_without_queued_events_uses_issued_or_completed(
    trace_file: Callable[..., Path],
) -> None:
    issued = b"8,0 1 1 0.5 9 D W 8 + 8 [fio]\n8,0 1 2 0.6 9 C W 8 + 8 [0]\n8,0 1 3 0.7 9 D R 16 + 8 [fio]\n"
    batch, reader = read(trace_file(issued))
    assert [row[1:4] for row in rows(batch, reader)] == [(W, 4096, 4096), (R, 8192, 4096)]
    assert reader.skipped == {"event other than D": 1}
    assert reader.notes == ["no Q events; D (issued) was taken for a request"]
    completed = b"8,0 1 2 0.6 9 C W 8 + 8 [0]\n"
    batch, reader = read(trace_file(completed))
    assert [row[1:4] for row in rows(batch, reader)] == [(W, 4096, 4096)]
    with pytest.raises(TraceError, match="1 x event other than Q"):
        read(trace_file(completed), action="Q")


def test_blkparse_uses_one_action_only(trace_file: Callable[..., Path]) -> None:
    batch, reader = read(trace_file(TEXT["blkparse"][0]), action="D")
    assert rows(batch, reader) == [(0, R, 282624 * 512, 4096, "259,2")]


def test_iolog_version_2_adds_up_waits(trace_file: Callable[..., Path]) -> None:
    path = trace_file(
        "fio version 2 iolog\nsda add\nsda open\nsda read 0 4096\nsda wait 150\nsda write 4096 512\n"
        "sda wait 50\nsda datasync\nsda close\n"
    )
    batch, reader = read(path)
    assert rows(batch, reader) == [
        (0, R, 0, 4096, "sda"),
        (150_000, W, 4096, 512, "sda"),
        (200_000, F, 0, 0, "sda"),
    ]


def test_etw_reads_columns_from_the_header(trace_file: Callable[..., Path]) -> None:
    path = trace_file(
        "BeginHeader\nDiskRead, DiskNum, IOSize, ByteOffset, TimeStamp\n"
        "DiskWrite, DiskNum, IOSize, ByteOffset, TimeStamp\nEndHeader\nDiskWrite, 2, 0x200, 0x1000, 7\n"
    )
    batch, reader = read(path)
    assert rows(batch, reader) == [(0, W, 4096, 512, "2")]


def test_etw_survives_an_unbalanced_quote(trace_file: Callable[..., Path]) -> None:
    header = "BeginHeader\nDiskRead, TimeStamp, Name, ByteOffset, IOSize, DiskNum\nEndHeader\n"
    body = 'DiskRead, 1, p, 0x1000, 0x200, 0, "open\nDiskRead, 2, p, 0x2000, 0x200, 0\n'
    batch, _ = read(trace_file(header + body))
    assert batch.offset_bytes.tolist() == [0x1000, 0x2000]


@pytest.mark.parametrize("pack", [vscsi_v1, vscsi_v2])
def test_vscsi_records_are_parsed(pack: Callable[..., bytes], trace_file: Callable[..., Path]) -> None:
    path = trace_file(
        pack(
            (512, 0x2A, 42932745, 1000),
            (1024, 0x88, 7, 1001),
            (4096, 0x12, 0, 1002),
            (0, 0x35, 0, 1003),
            (8, 0xA8, 8, 1004),
        )
    )
    batch, reader = read(path)
    assert reader.format == "vscsi"
    assert rows(batch, reader) == [
        (0, W, 42932745 * 512, 512, "0"),
        (1000, R, 3584, 1024, "0"),
        (3000, F, 0, 0, "0"),
        (4000, R, 4096, 8, "0"),
    ]
    assert reader.skipped == {"SCSI command other than read, write or flush": 1}


QUEUE, ISSUE, NOTIFY = 1 | 1 << 20, 7 | 1 << 22, 1 << 26
READ_BIT, WRITE_BIT, FLUSH_BIT, DISCARD_BIT = 1 << 16, 1 << 17, 1 << 18, 1 << 29


@pytest.mark.parametrize("event", [event, event_v8])
@pytest.mark.parametrize("order", "<>")
def test_blktrace_records_are_parsed(
    order: str, event: Callable[..., bytes], trace_file: Callable[..., Path]
) -> None:
    path = trace_file(
        event(90, 0, 0, NOTIFY, order, b"java\0\0\0\0")
        + event(100, 282624, 4096, QUEUE | READ_BIT, order)
        + event(101, 282624, 4096, ISSUE | READ_BIT, order)
        + event(105, 7, 1024, QUEUE | WRITE_BIT, order, b"\1" * 11)
        + event(106, 8, 4096, QUEUE | WRITE_BIT | DISCARD_BIT, order)
        + event(107, 0, 0, QUEUE | WRITE_BIT | FLUSH_BIT, order)
        + event(108, 16, 512, QUEUE | WRITE_BIT | FLUSH_BIT, order)
    )
    batch, reader = read(path)
    assert reader.format == "blktrace"
    assert rows(batch, reader) == [
        (0, R, 282624 * 512, 4096, "8:16"),
        (5, W, 3584, 1024, "8:16"),
        (6, T, 4096, 4096, "8:16"),
        (7, F, 0, 0, "8:16"),
        (8, W, 8192, 512, "8:16"),
    ]
    assert reader.skipped == {"notify event": 1, "event other than Q": 1}
    issued, _ = read(path, action="D")
    assert len(issued) == 1


def test_blktrace_events_of_cgroups_are_requests_and_packet_commands_are_not(
    trace_file: Callable[..., Path],
) -> None:
    cgroup, packet = 1 << 8, 1 << 25
    path = trace_file(
        event(100, 8, 4096, QUEUE | READ_BIT | cgroup, payload=b"\1" * 8)
        + event(101, 8, 4096, ISSUE | READ_BIT | cgroup, payload=b"\1" * 8)
        + event(102, 0, 512, ISSUE | READ_BIT | packet, payload=b"\2" * 16)
    )
    queued, reader = read(path)
    assert rows(queued, reader) == [(0, R, 4096, 4096, "8:16")]
    issued, reader = read(path, action="D")
    assert rows(issued, reader) == [(0, R, 4096, 4096, "8:16")]
    assert reader.skipped == {"event other than D": 1, "packet command": 1}


def test_blktrace_commands_to_zones_are_no_requests(trace_file: Callable[..., Path]) -> None:
    append, reset, close = 1 << 32, 1 << 33, 1 << 37
    path = trace_file(
        event_v8(100, 8, 4096, QUEUE | WRITE_BIT | append)
        + event_v8(101, 8, 0, QUEUE | WRITE_BIT | reset)
        + event_v8(102, 8, 0, QUEUE | WRITE_BIT | close)
    )
    batch, reader = read(path)
    assert rows(batch, reader) == [(0, W, 4096, 4096, "8:16")]
    assert reader.skipped == {"management of a zone": 2}


def test_blktrace_merges_the_files_of_all_cpus(tmp_path: Path) -> None:
    times = {0: [100, 300, 300, 500], 1: [50, 300, 400], 2: []}
    for cpu, stamps in times.items():
        data = b"".join(event(t, 8 * (cpu + 1), 4096, QUEUE | WRITE_BIT, cpu=cpu) for t in stamps)
        (tmp_path / f"sda.blktrace.{cpu}").write_bytes(data)
    batch, reader = read(tmp_path / "sda")
    assert batch.time_ns.tolist() == [0, 50, 250, 250, 250, 350, 450]
    assert batch.offset_bytes.tolist() == [8192, 4096, 4096, 4096, 8192, 8192, 4096]
    assert len(reader.paths) == 3
    alone, reader = read(tmp_path / "sda.blktrace.1")
    assert len(alone) == 3
    assert reader.notes == ["2 files of other CPUs lie beside this one; name sda to read all"]


def test_btrecord_records_are_parsed(trace_file: Callable[..., Path]) -> None:
    packet = struct.Struct("<QQII")
    path = trace_file(
        struct.pack("<4Q", 1 << 16, 0, 2, 3)
        + struct.pack("<2Q", 2, 1000)
        + packet.pack(8178892672, 4096, 1, 0)
        + packet.pack(7, 1024, 0, 0)
        + struct.pack("<2Q", 1, 18416864)
        + packet.pack(8, 1, 0, 0)
    )
    batch, reader = read(path)
    assert reader.format == "btrecord"
    assert rows(batch, reader) == [
        (0, R, 8178892672 * 512, 4096, "0"),
        (0, W, 3584, 1024, "0"),
        (18415864, W, 4096, 1, "0"),
    ]
    assert not reader.notes


def test_every_format_is_tested_here() -> None:
    assert set(FORMATS) == set(TEXT) | {"vscsi", "blktrace", "btrecord"}


def test_tencent_spreads_a_second_whatever_the_batches(trace_file: Callable[..., Path]) -> None:
    text = "".join(f"{100 + k // 7},{k},8,1,0\n" for k in range(7 * 20_000))
    times = np.concatenate([b.time_ns for b in open_trace(trace_file(text), batch_records=1000)])
    seconds, place = np.divmod(np.arange(len(times)), 7)
    assert (times == seconds * 10**9 + place * 10**9 // 7).all()


def test_tencent_holds_a_bounded_part_of_a_second() -> None:
    from traces.formats.tencent import spread_within_seconds

    def batch(seconds: list[int]) -> Batch:
        n = len(seconds)
        ones = np.ones(n, np.uint64)
        return Batch(np.array(seconds) * 10**9, np.ones(n, np.uint8), ones, ones, np.zeros(n, np.int32))

    spread = spread_within_seconds([batch([0] * 4), batch([0] * 4), batch([0, 0, 1, 1])], max_held=6)
    times = np.concatenate([b.time_ns for b in spread]).tolist()
    assert times == [k * 125_000_000 for k in range(8)] + [999_999_999] * 2 + [10**9, 1_500_000_000]


@pytest.mark.parametrize(
    ("line", "fields", "name"),
    [
        ("0,8,4096,r,0.5", 5, "spc"),
        ("128166372003061629,hm,1,Read,383496192,32768,413", 7, "msr"),
        ("100 1 proc 8 8 R 8 1 0123", 9, "fiu"),
    ],
)
def test_fields_beyond_those_of_the_format_are_noted_once(
    line: str, fields: int, name: str, tmp_path: Path
) -> None:
    separator, trace = "," if "," in line else " ", tmp_path / "t"
    trace.write_text(f"{line}\n{line}{separator}\n")
    reader = open_trace(trace)
    assert len(Batch.concat(list(reader))) == 2
    assert (reader.format, list(reader.notes)) == (name, [])
    trace.write_text(f"{line}{separator}cache hit\n" * 3)
    reader = open_trace(trace, name)
    assert len(Batch.concat(list(reader))) == 3
    found = fields + (1 if separator == "," else 2)
    (note,) = reader.notes
    assert note.startswith(f"line 1 has {found} fields: those from the {fields + 1}th on mean nothing ")
    assert f"in the format {name} " in note
