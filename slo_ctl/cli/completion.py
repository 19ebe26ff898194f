"""`slo-ctl completion SHELL`: the script, and the words that the shell asks it for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slo_ctl.drives.places import places

if TYPE_CHECKING:
    from slo_ctl.drives.store import DeviceStore

TIMEOUT_S = 0.5
"""Longest wait for the daemon after Tab is pressed."""


def complete_vm(ctx: typer.Context, incomplete: str) -> list[str]:
    """VMs of the daemon's status, or else of libvirt."""
    root = _root(ctx)
    vms = _read_names(lambda: _from_daemon(root, "vms", "vm"))
    return _matching(vms or _read_names(_from_libvirt), incomplete)


def complete_device(ctx: typer.Context, incomplete: str) -> list[str]:
    """Emulated devices, and the devices the daemon manages."""
    root = _root(ctx)
    stored = _read_names(lambda: _devices(root).names())
    return _matching({*stored, *_read_names(lambda: _from_daemon(root, "devices", "name"))}, incomplete)


def complete_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Namespaces of emulated devices, as DEVICE/NAMESPACE."""
    root = _root(ctx)
    return _matching(namespaces(root), incomplete)


def complete_device_or_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Devices and namespaces."""
    return complete_device(ctx, incomplete) + complete_namespace(ctx, incomplete)


def complete_device_or_disk(ctx: typer.Context, incomplete: str) -> list[str]:
    """Devices, and block devices of this host."""
    disks = (path.name for path in Path("/sys/block").glob("*"))
    return complete_device(ctx, incomplete) + _matching(disks, incomplete)


SLO_FIELDS = ("weight", "min", "max", "max_bandwidth", "p99", "class", "group")
"""Keys of `vm set` as operators type them."""


def complete_vm_or_slo_field(ctx: typer.Context, incomplete: str) -> list[str]:
    """VMs, and fields of an SLO as `KEY=`; of a list, the last. Names after `class=` and `group=`."""
    before, equals, name = incomplete.rpartition("=")
    key = before.rpartition(",")[2]
    if equals and key in ("class", "group"):
        root = _root(ctx)
        configured = _matching(_read_names(lambda: _configured(root)[key]), name)
        return [f"{before}={each}" for each in configured]
    return complete_vm(ctx, incomplete) + _last_of_list([f"{key}=" for key in SLO_FIELDS], incomplete)


def complete_vm_or_slo_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """VMs, and fields of an SLO; of a list, the last."""
    return complete_vm(ctx, incomplete) + _last_of_list(SLO_FIELDS, incomplete)


def complete_device_property(incomplete: str) -> list[str]:
    """Keys of `device create` as `KEY=`, and values of those that have a few; of a list, the last."""
    from slo_ctl.drives.build import MAPPING_NAMES, VICTIM_NAMES

    values = {
        "preset": complete_preset(""),
        "mapping": MAPPING_NAMES,
        "victim": VICTIM_NAMES,
        "placement": ("isolated", "shared"),
        "scheduler": ("wfq", "fifo", "rr"),
        "class": ("disk", "raid0"),
        "precondition": ("yes", "no"),
    }
    return _pairs(values, ("name", "size", "op", "channels", "dies", "page", "block"), incomplete)


def complete_preset(incomplete: str) -> list[str]:
    """Presets of emulated SSDs and hard disks."""
    from slo_ctl.drives.plan import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def complete_workload(incomplete: str) -> list[str]:
    """Keys of a VM of `replay` as `KEY=`, and workloads; of a list, the last."""
    from slo_ctl.replay.scenario_build import workload_names

    values = {"workload": workload_names(), "mode": ("closed", "open")}
    return _pairs(values, ("name", "trace", "weight", "min", "max", "size", "format"), incomplete)


def _pairs(values: Mapping[str, Iterable[str]], others: Iterable[str], incomplete: str) -> list[str]:
    """Completions of the last `key=value` of a list; `others` are keys without a list of values."""
    before, equals, value = incomplete.rpartition("=")
    key = before.rpartition(",")[2]
    if equals and "," not in value:
        return [f"{before}={each}" for each in values.get(key, ()) if each.startswith(value)]
    return _last_of_list([f"{key}=" for key in (*others, *values)], incomplete)


def complete_latency(incomplete: str) -> list[str]:
    """Values of `device serve --latency`."""
    return [word for word in ("real", "none") if word.startswith(incomplete)]


def complete_policy(incomplete: str) -> list[str]:
    """OPS policies; of a list, the last."""
    from slo_ctl.decide.policies import POLICIES

    return _last_of_list(POLICIES, incomplete)


def complete_verdict(incomplete: str) -> list[str]:
    """Verdicts; of a list, the last."""
    from slo_ctl.model.status import Verdict

    return _last_of_list([verdict.value for verdict in Verdict], incomplete)


def complete_interval(incomplete: str) -> list[str]:
    """Common values of `status --watch`."""
    return [seconds for seconds in ("1", "2", "5", "10", "60") if seconds.startswith(incomplete)]


def _last_of_list(words: Iterable[str], incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in words if word.startswith(last)]


def _read_names(read: Callable[[], Iterable[str]]) -> list[str]:
    """Names, or none on any error: a message would become part of the command line."""
    try:
        return list(read())
    except Exception:
        return []


_SPECIAL = frozenset("\"'`$\\&;|<>()[]{}*?!#~^")
"""Characters that have a meaning for a shell: bash inserts a reply without quoting it."""


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    """Names with this prefix, without those that would break a command line or a terminal."""
    return sorted(
        {
            name
            for name in names
            if name.startswith(incomplete)
            and name.isprintable()
            and not name.startswith("-")
            and not any(character.isspace() or character in _SPECIAL for character in name)
        }
    )


def _root(ctx: typer.Context) -> Path | None:
    root = ctx.params.get("root")
    # Debian 13's typer (0.15) leaves it a string here.
    return Path(root) if root else None


def _from_daemon(root: Path | None, key: str, field: str) -> list[str]:
    from slo_ctl.cli.api_access import client

    return [str(each[field]) for each in client(root, TIMEOUT_S).get("/v1/status")[key]]


def _from_libvirt() -> list[str]:
    from slo_ctl.host.libvirt import connect

    with connect() as libvirt:
        return [domain.vm.name for domain in libvirt.domains(lambda _: None)]


def _configured(root: Path | None) -> dict[str, list[str]]:
    """Names of classes and groups."""
    from slo_ctl.config.load import load
    from slo_ctl.daemon.files import DaemonPlaces

    config = load(DaemonPlaces.in_use(root).config)
    return {"class": list(config.classes), "group": list(config.groups)}


def _devices(root: Path | None) -> DeviceStore:
    from slo_ctl.drives.store import DeviceStore

    return DeviceStore(places(root))


def namespaces(root: Path | None) -> list[str]:
    """Namespaces of emulated devices, as DEVICE/NAMESPACE, without those of devices that cannot be read."""

    def read(device: str) -> list[str]:
        return [f"{device}/{each.name}" for each in _devices(root).load(device).namespace]

    devices = _read_names(lambda: _devices(root).names())
    return [each for device in devices for each in _read_names(partial(read, device))]


# typer has the protocol, and the script of fish. Two functions of `typer.completion`, which it does not
# document, are used here and nowhere else; a test checks that both exist.

_VARIABLE = "_SLO_CTL_COMPLETE"
"""Environment variable that the script sets; its value names the shell."""
PROGRAM = "slo-ctl"


_BASH = r"""
_slo_ctl_completion() {
    # bash splits words at the characters of COMP_WORDBREAKS, such as KEY=VALUE: join those without space
    # between them.
    local words=() word space prefix rest=$COMP_LINE i reply
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]-}
        space=${rest%%[![:space:]]*}
        rest=${rest#"$space"}
        rest=${rest#"$word"}
        if ((i > 0)) && [[ -z $space ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
    done
    word=${words[-1]}
    # Replies replace only the last word of bash, or follow it if it is nothing but such characters.
    prefix=${COMP_WORDS[COMP_CWORD]-}
    [[ $prefix == *[^=:]* ]] || prefix=
    prefix=${words[-1]%"$prefix"}
    COMPREPLY=()
    while IFS= read -r reply; do
        [[ -n $reply ]] || continue
        [[ $reply == *= ]] && compopt -o nospace 2>/dev/null
        COMPREPLY+=("${reply#"$prefix"}")
    done < <(COMP_WORDS=$(printf '%s\n' "${words[@]}") COMP_CWORD=$((${#words[@]} - 1)) \
        _SLO_CTL_COMPLETE=complete_bash "$1")
}
complete -o default -F _slo_ctl_completion slo-ctl
"""


# typer's script uses _arguments, which puts a space after every word. When zsh loads a function from a file,
# it runs the file as the function's body, which then has to complete.
_ZSH = r"""
#compdef slo-ctl

_slo_ctl_completion() {
    local reply word
    local -a open closed
    reply=$(_TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _SLO_CTL_COMPLETE=complete_zsh \
        "${words[1]}" 2>/dev/null)
    if [[ $reply != *'="'* ]]; then
        eval $reply
        return
    fi
    # A value follows KEY= without a space.
    while IFS= read -r word; do
        [[ -n $word ]] || continue
        if [[ $word == *= ]]; then open+=("$word"); else closed+=("$word"); fi
    done < <(COMP_WORDS=$(printf '%s\n' "${words[1,$CURRENT]}") COMP_CWORD=$((CURRENT - 1)) \
        _SLO_CTL_COMPLETE=complete_bash "${words[1]}" 2>/dev/null)
    compadd -S '' -- $open
    compadd -- $closed
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _slo_ctl_completion "$@"
else
    compdef _slo_ctl_completion slo-ctl
fi
"""


class Shell(StrEnum):
    """Supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def command(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell.")]) -> None:
    """Print a completion script for commands, options, and the names of VMs and devices.

    Examples:
    slo-ctl completion bash > /etc/bash_completion.d/slo-ctl
    slo-ctl completion zsh > /usr/local/share/zsh/site-functions/_slo-ctl
    slo-ctl completion fish > ~/.config/fish/completions/slo-ctl.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    if shell in (Shell.BASH, Shell.ZSH):
        sys.stdout.write((_BASH if shell is Shell.BASH else _ZSH).lstrip())
        return
    script = get_completion_script(prog_name=PROGRAM, complete_var=_VARIABLE, shell=shell.value)
    sys.stdout.write(script.strip() + "\n")


def answer(app: typer.Typer) -> None:
    """Print the completions of the words in the environment, and exit."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
    app(args=[], prog_name=PROGRAM, complete_var=_VARIABLE)
