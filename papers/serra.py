"""Zanon Boito, Kassick, Navaux, Denneulin: Towards fast profiling of storage devices regarding access
sequentiality (SAC '15)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from statistics import fmean, median

from papers.figure import Figure, Judged, Panel, Results, Rule, Shape, Trial
from papers.serra_devices import (
    BARRACUDA_XT,
    CHEETAH_15K7,
    ArrayParameters,
    Buffer,
    Complete,
    DiskArray,
    EmulatedSsd,
    SataParameters,
    SataSsd,
    measure_as_the_paper,
    measure_completely,
)
from slo_ctl.decide.profile_fit import Analysis, Fit, analyse
from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, all_sizes, draw_points
from slo_ctl.model.measurement import ACCESSES, Access, Benchmark, Direction, Order

QUARTER_FULL = "preset=tlc,size=8GiB,op=300%,block=1536KiB"
"""A quarter of the drive holds data and the rest is trimmed, as on the paper's nodes (1.2 of 64 to 500
GB)."""
SMALL_SSD = "preset=tlc,size=1GiB,op=300%,block=1536KiB"
"""The same, for quick runs and small files."""
CLASSES = ("HDD", "RAID-0", "SSD")
BUFFERED = "SSD with a buffer"
ALL_CLASSES = (*CLASSES, BUFFERED, "SATA SSD")
"""And the emulated SSD behind a buffer that takes writes and reads ahead; a SATA SSD by its data sheet."""
MODELLED = ("HDD", "RAID-0", "SATA SSD")
FILE_MB = (40, 200, 400, 800, 1200)
LABELS = ("modelled disks", "emulated SSD", "virtual time")
_MB = 1_000_000


def make_device(name: str, file_mb: int, spec: str = QUARTER_FULL) -> Callable[[int, bool], Benchmark]:
    """A device of one of ALL_CLASSES; called with a seed, and whether all tests share one file."""
    if name == "SSD":
        return lambda seed, one: EmulatedSsd(spec, file_mb * _MB, seed, one)
    if name == BUFFERED:
        return lambda seed, one: EmulatedSsd(spec, file_mb * _MB, seed, one, Buffer())
    if name == "SATA SSD":
        return lambda _seed, _one: SataSsd(SataParameters(file_mb * _MB))
    if name == "HDD":
        disk = ArrayParameters(BARRACUDA_XT, file_bytes=file_mb * _MB)
    else:
        disk = ArrayParameters(CHEETAH_15K7, disks=2, file_bytes=file_mb * _MB)
    return lambda seed, one: DiskArray(disk, seed, one)


def _device(name: str, file_mb: int, seed: int) -> Benchmark:
    """Each test on a file of its own, as IOzone does."""
    return make_device(name, file_mb, SMALL_SSD)(seed, False)


def file_mb(trial: Trial, name: str) -> int:
    """The paper's 1200 MB; less where every page of an SSD is simulated, and in quick runs."""
    if name in ("SSD", BUFFERED):
        return 20 if trial.quick else 40
    return 200 if trial.quick else 1200


def _file_sizes(trial: Trial) -> tuple[int, ...]:
    """The paper's five; two of them in quick runs."""
    return FILE_MB[:2] if trial.quick else FILE_MB


@lru_cache(maxsize=64)
def complete(name: str, megabytes: int, seed: int) -> Complete:
    """The complete profile: every size, until each mean is known."""
    return measure_completely(
        _device(name, megabytes, 1000 + seed), all_sizes(DEFAULT_INTERVALS), tuple(Direction)
    )


@lru_cache(maxsize=512)
def serra(name: str, megabytes: int, seed: int, points: int, repetitions: int) -> tuple[Analysis, float]:
    """The tool's profile as published, and the virtual seconds that it took."""
    device = _device(name, megabytes, seed)
    sizes = draw_points(DEFAULT_INTERVALS, points, seed)
    found = measure_as_the_paper(device, sizes, repetitions)
    return analyse(DEFAULT_INTERVALS, found, Fit.LEAST_SQUARES), device.now_s()


def _name_of(access: Access) -> str:
    return f"{'random ' if access.order is Order.RANDOM else ''}{access.direction.value}"


# Figure 1.


def access_times(trial: Trial) -> list[Panel]:
    """Access time by request size on the SSD."""
    found = complete("SSD", file_mb(trial, "SSD"), trial.seed)
    cells = {
        (_name_of(access), str(size >> 10)): 1e3 * time_s for (access, size), time_s in found.times_s.items()
    }
    return [Panel("Access time, SSD", "ms", cells, Shape.LINES, 3, "request, KiB")]


def _linear(results: Results) -> Judged:
    table = results.tables["Access time, SSD"]
    x = [float(column) for column in table.columns]
    worst = 1.0
    for row in table.rows:
        y = [table.cells[row, column].mean for column in table.columns]
        mean_x, mean_y = fmean(x), fmean(y)
        cross = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
        square = sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y)
        worst = min(worst, cross**2 / square)
    return Judged(f"r^2 at least {worst:.3f}", worst >= 0.95)


FIGURE_1 = Figure(
    "serra:1",
    "Access time per request by request size, SSD",
    "The curves of the four tests look linear.",
    "Complete profile of an emulated SSD, a quarter full, 40 MB file (quick: 20).",
    LABELS[1:],
    access_times,
    (Rule("linear appearance", "r^2 of a line through each curve at least 0.95", _linear),),
    seeds=3,
    quick_seeds=1,
)


# Tables 1 and 5: time.


def times(trial: Trial) -> list[Panel]:
    """Virtual time of the complete profile and of the tool."""
    profile, ratios = {}, {}
    for name in CLASSES:
        whole = complete(name, file_mb(trial, name), trial.seed)
        _, one_s = serra(name, file_mb(trial, name), trial.seed, 2, 1)
        _, four_s = serra(name, file_mb(trial, name), trial.seed, 2, 4)
        execution_s = whole.spent_s / whole.repetitions
        profile[name, "complete profile, h"] = whole.spent_s / 3600
        profile[name, "one execution, h"] = execution_s / 3600
        profile[name, "executions"] = whole.repetitions
        profile[name, "SeRRa, 1 repetition, min"] = one_s / 60
        profile[name, "SeRRa, 4 repetitions, min"] = four_s / 60
        ratios[name, "complete / SeRRa"] = whole.spent_s / one_s
        ratios[name, "one execution / SeRRa"] = execution_s / one_s
        per_byte = {
            size: sum(whole.times_s[access, size] for access in ACCESSES) / size
            for size in all_sizes(DEFAULT_INTERVALS)
        }
        ratios[name, "8 KB / mean size"] = per_byte[8 << 10] / fmean(per_byte.values())
    return [Panel("Time", "virtual", profile, Shape.TABLE), Panel("Times as fast", "", ratios)]


def _slower_the_more_it_rotates(results: Results) -> Judged:
    hours = [results.mean("Time", name, "complete profile, h") for name in CLASSES[:2]]
    return Judged(", ".join(f"{value:.2f} h" for value in hours), hours[0] > hours[1])


def _small_requests_cost(results: Results) -> Judged:
    mean = results.mean("Times as fast", "SSD", "8 KB / mean size")
    return Judged(f"{mean:.1f} times", mean >= 3)


def _execution_ratio(name: str, low: float, high: float, differs: str = "") -> Rule:
    def judge(results: Results) -> Judged:
        mean = results.mean("Times as fast", name, "one execution / SeRRa")
        return Judged(f"{mean:.1f}", 0.5 * low <= mean <= 2 * high)

    return Rule(
        f"one execution of all tests takes {low:g} to {high:g} times as long as SeRRa with 1 repetition",
        f"{name}: within a factor of 2 of that range",
        judge,
        differs,
    )


def _complete_ratio(name: str, low: float, high: float) -> Rule:
    def judge(results: Results) -> Judged:
        mean = results.mean("Times as fast", name, "complete / SeRRa")
        return Judged(f"1/{mean:.0f}", low <= mean <= high)

    return Rule(
        f"SeRRa with 1 repetition takes 1/{low:g} to 1/{high:g} of the complete profile's time",
        f"{name}: in that range",
        judge,
        "The complete profile repeats each test until its mean is known to 10 %: 13 to 62 times on the "
        "paper's devices, six times, the least, on modelled ones that vary less. For one execution (next "
        "rule) the saving is the paper's.",
    )


TABLE_1 = Figure(
    "serra:table1",
    "Time of the complete profile",
    "One execution of all tests takes 10.4 to 15.2 h on disks, 2.3 to 4.2 h on RAID-0, 2.7 to 3.5 h on "
    "SSDs; the complete profile 40 to 329 h.",
    "Modelled 7200/min disk, RAID-0 of two 15000/min disks, emulated SSD; one file size in place of five: "
    "1200 MB on disks (quick: 200), 40 MB on the SSD (quick: 20).",
    LABELS,
    times,
    (Rule("disks take longest", "complete profile: HDD longer than RAID-0", _slower_the_more_it_rotates),),
    seeds=3,
    quick_seeds=1,
)

TABLE_2 = Figure(
    "serra:table2",
    "Configuration of the devices",
    "Three disks, three RAID-0 arrays of two SAS disks and three SSDs, on nodes of Grid'5000.",
    "One model of each class: a 7200/min disk, RAID-0 of two Cheetah 15K.7 (the disks of Chimint and "
    "Taurus), and an emulated TLC SSD. Their parameters and sources: `slo-ctl device create --help`, "
    "docs/device.md.",
    LABELS,
    None,
)

TABLE_5 = Figure(
    "serra:table5",
    "Time that SeRRa takes",
    "With 2 points and 1 repetition 1/84 to 1/216 of the complete profile's time on disks and arrays, "
    "1/409 to 1/855 on SSDs; four times as long with 4 repetitions.",
    TABLE_1.ours,
    LABELS,
    times,
    (
        _complete_ratio("HDD", 84, 212),
        _complete_ratio("RAID-0", 130, 216),
        _execution_ratio("HDD", 8.4, 9.8),
        _execution_ratio("RAID-0", 6.1, 9.1),
        _execution_ratio(
            "SSD",
            27.7,
            32,
            "With one outstanding request of 8 KB one or two dies of the emulated SSD work, with large "
            "ones all of them, so the sizes that SeRRa measures take longer than the mean of all sizes "
            "(next rule). The paper's SSDs have a write buffer and read ahead.",
        ),
        Rule(
            "(demonstrates the reason)",
            "SSD: a file takes at least three times as long with 8 KB requests as in the mean over sizes",
            _small_requests_cost,
        ),
    ),
    seeds=3,
    quick_seeds=1,
)


# Table 3 and figure 2: errors of the access times; table 4 and figure 3: errors of the ratios.

_POINTS = (2, 4, 8)


def access_time_errors(trial: Trial) -> list[Panel]:
    """Median relative error of the estimated access times over all sizes, by test and number of points."""
    panels = []
    for name in (*CLASSES, BUFFERED):
        whole = complete(name, file_mb(trial, name), 1)
        cells = {}
        for points in _POINTS:
            analysis, _ = serra(name, file_mb(trial, name), trial.seed, points, 1)
            for access in ACCESSES:
                cells[_name_of(access), f"{points} points"] = 100 * median(_errors(analysis, whole, access))
        panels.append(Panel(f"Median error, {name}", "%", cells))
    by_size = {}
    for megabytes in _file_sizes(trial):
        for name in MODELLED:
            whole = complete(name, megabytes, 1)
            for points in _POINTS:
                analysis, _ = serra(name, megabytes, trial.seed, points, 1)
                errors = [error for access in ACCESSES for error in _errors(analysis, whole, access)]
                by_size[f"{name}, {points} points", f"{megabytes} MB"] = 100 * median(errors)
    return [*panels, Panel(_BY_FILE_SIZE, "%", by_size, Shape.TABLE, 2)]


_BY_FILE_SIZE = "Median error over the four tests, by file size"


def _errors(analysis: Analysis, whole: Complete, access: Access) -> list[float]:
    """Relative, of every size."""
    return [
        abs((analysis.time_s(access, size) or 0.0) / whole.times_s[access, size] - 1)
        for size in all_sizes(DEFAULT_INTERVALS)
    ]


def _errors_below(name: str, limit: float) -> Rule:
    def judge(results: Results) -> Judged:
        table = results.tables[f"Median error, {name}"]
        worst = max(cell.mean for cell in table.cells.values())
        return Judged(f"at most {worst:.1f} %", worst <= limit)

    return Rule(
        "medians of 2 to 19 %", f"{name}: each median error at most {limit:g} %, whatever the points", judge
    )


def _errors_below_at_every_size(limit: float) -> Rule:
    def judge(results: Results) -> Judged:
        worst = max(cell.mean for cell in results.tables[_BY_FILE_SIZE].cells.values())
        return Judged(f"at most {worst:.1f} %", worst <= limit)

    return Rule(
        "medians of 2 to 19 %",
        f"each device and file size: median error at most {limit:g} %, whatever the points",
        judge,
    )


TABLE_3 = Figure(
    "serra:table3",
    "Errors of the estimated access times, by number of points (table 3 and figure 2)",
    "Medians over sizes, files and points: 2 to 10 % on disks, 7 to 16 % on RAID-0, 2 to 19 % on SSDs; no "
    "better with more points.",
    "Modelled 7200/min disk, RAID-0 of two 15000/min disks, emulated SSD, and the same behind a buffer that "
    "reads ahead: 1200 MB on disks (quick: 200), 40 MB on SSDs (quick: 20). By file size: the paper's five "
    "(quick: two), on the disks and on a SATA SSD by its data sheet.",
    LABELS,
    access_time_errors,
    (*(_errors_below(name, 20) for name in (*CLASSES, BUFFERED)), _errors_below_at_every_size(20)),
    seeds=5,
    quick_seeds=2,
)


RATIOS_OURS = (
    f"{TABLE_1.ours} Also the emulated SSD behind a buffer of 256 KiB that takes writes and reads ahead: 4 "
    "KiB in sequence take 6 us, as Memblaze measured on a PBlaze7 7940, and access times are not linear in "
    "the size. And a SATA SSD by the data sheet of a Samsung 850 EVO: 540 and 520 MB/s; at queue depth 1, 4 "
    "KiB, a random read in 100 us and a write in 25 us. Its times are linear: SeRRa is exact."
)
SIZES_OURS = f"{RATIOS_OURS} Errors by file size: the paper's five (quick: two), without the emulated SSDs."


def ratio_errors(trial: Trial) -> list[Panel]:
    """Median relative error of the ratios over all sizes, by repetitions."""
    panels = []
    for direction in (Direction.WRITE, Direction.READ):
        cells = {}
        for name in ALL_CLASSES:
            whole = complete(name, file_mb(trial, name), 1)
            for repetitions in (1, 2, 4):
                analysis, _ = serra(name, file_mb(trial, name), trial.seed, 2, repetitions)
                summary = analysis.summary(direction)
                if summary is None:
                    raise ValueError(f"no {direction} ratios of {name}")
                cells[name, f"{repetitions} repetition{'s' if repetitions > 1 else ''}"] = (
                    100 * whole.median_error(summary)
                )
        panels.append(Panel(f"Median error of the {direction.value} ratio", "%", cells))
        panels.append(
            Panel(f"The same of the {direction.value} ratio by file size", "%", _by_size(trial, direction))
        )
    return panels


def _by_size(trial: Trial, direction: Direction) -> dict[tuple[str, str], float]:
    """The paper's five file sizes, where no page of an SSD is simulated; two of them in quick runs."""
    cells = {}
    for megabytes in _file_sizes(trial):
        for name in MODELLED:
            whole = complete(name, megabytes, 1)
            for repetitions in (1, 2, 4):
                summary = serra(name, megabytes, trial.seed, 2, repetitions)[0].summary(direction)
                error = 1.0 if summary is None else whole.median_error(summary)
                cells[f"{name}, {repetitions} x", f"{megabytes} MB"] = 100 * error
    return cells


def _mostly_below(direction: str, share: float) -> Rule:
    def judge(results: Results) -> Judged:
        cells = results.tables[f"The same of the {direction} ratio by file size"].cells.values()
        low = sum(cell.mean <= 20 for cell in cells) / len(cells)
        return Judged(f"{low:.0%}", low >= share)

    return Rule(
        f"{share:.0%} of the tests have errors of up to about 20 %",
        f"{direction}: at least so many of devices, file sizes and repetitions at most 20 %",
        judge,
    )


def _ratio_errors_below(direction: str) -> Rule:
    def judge(results: Results) -> Judged:
        table = results.tables[f"Median error of the {direction} ratio"]
        worst = max(cell.mean for cell in table.cells.values())
        return Judged(f"at most {worst:.1f} %", worst <= 10.3)

    return Rule("medians of 1.4 to 10.3 %", f"{direction}: each median at most 10.3 %", judge)


TABLE_4 = Figure(
    "serra:table4",
    "Errors of the ratios with SeRRa, by repetitions (table 4 and figure 3)",
    "Medians with 1, 2 and 4 repetitions: disks 3.3 to 5.8 %, RAID-0 6.7 to 10.3 %, SSDs 1.4 to 5.2 %; "
    "repetitions hardly help.",
    SIZES_OURS,
    LABELS,
    ratio_errors,
    (
        *(_ratio_errors_below(direction) for direction in ("write", "read")),
        _mostly_below("write", 0.91),
        _mostly_below("read", 0.88),
    ),
    seeds=5,
    quick_seeds=2,
)


# Table 6: the ratios themselves.


def average_ratios(trial: Trial) -> list[Panel]:
    """Sequential over random throughput, averaged over all sizes."""
    panels = []
    for direction in (Direction.WRITE, Direction.READ):
        cells = {}
        for name in ALL_CLASSES:
            whole = complete(name, file_mb(trial, name), 1)
            summary = serra(name, file_mb(trial, name), trial.seed, 2, 4)[0].summary(direction)
            cells[name, "measured"] = whole.average_ratio(direction)
            cells[name, "SeRRa"] = (summary.average if summary else None) or 0.0
        panels.append(Panel(f"Average {direction.value} ratio", "", cells))
    return panels


def _ratio_in(name: str, direction: str, low: float, high: float) -> Rule:
    def judge(results: Results) -> Judged:
        mean = results.mean(f"Average {direction} ratio", name, "measured")
        return Judged(f"{mean:.2f}", low / 1.25 <= mean <= high * 1.25)

    return Rule(
        f"{direction} ratio {low:g} to {high:g}",
        f"{name}: within 25 % of that range, as the device is another of its class",
        judge,
    )


def _serra_close(results: Results) -> Judged:
    worst = 0.0
    for direction in ("write", "read"):
        for name in ALL_CLASSES:
            cell = results.paired(f"Average {direction} ratio", name, "SeRRa", "measured")
            worst = max(worst, abs(cell.mean - 1))
    return Judged(f"at most {worst:.1%}", worst <= 0.19)


def _reads_gain(name: str) -> Callable[[Results], Judged]:
    def judge(results: Results) -> Judged:
        mean = results.mean("Average read ratio", name, "measured")
        return Judged(f"{mean:.2f}", mean >= 1.04)

    return judge


def _not_exact(results: Results) -> Judged:
    off = abs(results.paired("Average read ratio", BUFFERED, "SeRRa", "measured").mean - 1)
    return Judged(f"{off:.1%}", off >= 0.01)


TABLE_6 = Figure(
    "serra:table6",
    "Average ratio, measured and by SeRRa",
    "1200 MB files. Write: disks 1.74 to 2.02, RAID-0 1.62 to 1.95, SSDs 0.99 to 1.38; read: 2.24 to 2.67, "
    "2.76 to 3.48, 1.04 to 1.10. SeRRa is off by at most 19 %.",
    RATIOS_OURS,
    LABELS,
    average_ratios,
    (
        _ratio_in("HDD", "write", 1.74, 2.02),
        _ratio_in("HDD", "read", 2.24, 2.67),
        _ratio_in("RAID-0", "write", 1.62, 1.95),
        _ratio_in("RAID-0", "read", 2.76, 3.48),
        _ratio_in("SSD", "write", 0.99, 1.38),
        _ratio_in("SSD", "read", 1.04, 1.10),
        _ratio_in(BUFFERED, "write", 0.99, 1.38),
        _ratio_in(BUFFERED, "read", 1.04, 1.10),
        _ratio_in("SATA SSD", "write", 0.99, 1.38),
        _ratio_in("SATA SSD", "read", 1.04, 1.10),
        *(
            Rule("reads gain from order on every SSD", f"{name}: read ratio 1.04 or more", _reads_gain(name))
            for name in (BUFFERED, "SATA SSD")
        ),
        Rule(
            "measured and estimated ratios differ",
            f"{BUFFERED}, read: SeRRa's average 1 % off or more, so that the bar is not met by itself",
            _not_exact,
        ),
        Rule("SeRRa is at most 19 % off", "each average within 19 % of the measured one", _serra_close),
    ),
    seeds=3,
    quick_seeds=1,
)

FIGURES = (FIGURE_1, TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6)
