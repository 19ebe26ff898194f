"""Store a profile of a real block device without measuring it: access time is linear in request size."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from slo_ctl.decide.request_sizes import DEFAULT_INTERVALS, draw_points
from slo_ctl.drives.places import Places
from slo_ctl.model.host import DeviceNumber
from slo_ctl.model.measurement import RAND_READ, RAND_WRITE, SEQ_READ, SEQ_WRITE, Access
from slo_ctl.profile.identity import BLOCK_DEVICE, IdentitySources, block_identity
from slo_ctl.profile.store import Profile, ProfileStore

Lines = dict[Access, tuple[float, float]]
"""us per KiB, and us."""

DISK: Lines = {SEQ_WRITE: (8, 60), RAND_WRITE: (8, 5000), SEQ_READ: (8, 60), RAND_READ: (8, 8000)}
FLASH: Lines = {SEQ_WRITE: (2, 60), RAND_WRITE: (2, 70), SEQ_READ: (2, 80), RAND_READ: (2, 85)}


def store_profile(
    places: Places,
    number: DeviceNumber,
    lines: Lines,
    *,
    kernel: str | None = None,
    serial: str | None = None,
    sys: Path | None = None,
    stopped: str = "",
) -> Path:
    """Path of the profile; `kernel` and `serial` are those of the device unless given."""
    around = IdentitySources(places) if sys is None else IdentitySources(places, sys)
    changes = {"kernel": kernel, "serial": serial}
    identity = block_identity(number, BLOCK_DEVICE, around).model_copy(
        update={name: value for name, value in changes.items() if value is not None}
    )
    now = datetime.now(UTC).isoformat()
    rows = [
        {
            "access": str(access),
            "size_bytes": size,
            "repetition": repetition,
            "access_time_s": (per_kib_us * size / 1024 + base_us) * 1e-6,
            "requests": 100,
            "elapsed_s": 1.0,
        }
        for access, (per_kib_us, base_us) in lines.items()
        for size in draw_points(DEFAULT_INTERVALS, 2, 0)
        for repetition in range(3)
    ]
    profile = Profile.model_validate(
        {
            "identity": identity.model_dump(),
            "target": "made up",
            "created": now,
            "updated": now,
            "span_bytes": 1 << 28,
            "queue_depth": 1,
            "intervals": [asdict(each) for each in DEFAULT_INTERVALS],
            "stopped": stopped,
            "measurement": rows,
        }
    )
    return ProfileStore(places.state / "profiles").save(profile)
