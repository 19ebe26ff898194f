"""`settings.json`: what the server changed since the device was created. Written by the server only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from slo_ctl.errors import UserError
from slo_ctl.whole_file import read_regular

if TYPE_CHECKING:
    from pathlib import Path

FILE = "settings.json"


class NamespaceSettings(BaseModel):
    """Of one namespace; None: as it was created."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size_bytes: int | None = None
    weight: float | None = None
    limit_iops: float | None = None
    limit_bytes_s: float | None = None
    ops_blocks: int | None = None


class Settings(BaseModel):
    """Of one device."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = 1
    namespaces: dict[str, NamespaceSettings] = {}

    def of(self, namespace: str) -> NamespaceSettings:
        """Those of one namespace."""
        return self.namespaces.get(namespace, NamespaceSettings())


def read_settings(folder: Path) -> Settings:
    """The settings of the device in `folder`. Raises UserError when they are damaged."""
    path = folder / FILE
    try:
        return Settings.model_validate_json(read_regular(path))
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "move it away, or run as its owner") from None
    except ValidationError as error:
        raise UserError(
            f"{path}: {error.errors()[0]['msg']}",
            "remove the file to go back to what the device was created with",
        ) from None
