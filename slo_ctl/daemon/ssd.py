"""One emulated device that is served: samples of its VMs, decisions of its policy, and settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace

from slo_ctl.act.journal import Journal
from slo_ctl.act.ssd import ServedFtlActuator
from slo_ctl.base.clock import Clock
from slo_ctl.base.text import toml_key
from slo_ctl.config.settings import DaemonConfig
from slo_ctl.daemon.device import (
    ActivityTracker,
    DeviceView,
    MeasuredCapacity,
    MoveSpeed,
    estimated_iops,
    total_iops,
)
from slo_ctl.daemon.occupants import Occupant
from slo_ctl.daemon.ssd_policy import PolicyInForce
from slo_ctl.decide.device_waf import ftl_waf
from slo_ctl.decide.entitlement import BUSY_FROM, claim_of, entitle
from slo_ctl.decide.policies import policy_entry, without_lever
from slo_ctl.decide.profile_fit import Analysis
from slo_ctl.decide.scheduler import (
    FAIR_SCHEDULER,
    choose_tenant_scheduler,
    needs_of,
    tenant_setting,
    why_not_kept,
)
from slo_ctl.decide.scheduler_parameters import Choice
from slo_ctl.decide.verdict import Delivered
from slo_ctl.drives.control import Connect
from slo_ctl.drives.places import RunPlaces
from slo_ctl.drives.record import DeviceRecord, SsdRecord
from slo_ctl.model.decision import Decision
from slo_ctl.model.host import Stream, Tenant
from slo_ctl.model.sample import DeviceSample, DeviceWaf, ShareBy, TimingModel, VmSample
from slo_ctl.model.setting import Knob, Lever, Setting
from slo_ctl.model.status import MoveStatus
from slo_ctl.observe.block import merge_windows
from slo_ctl.observe.ssd import ServedDevice

_Settings = dict[tuple[Lever, str], Setting]
"""By lever and namespace."""
_MOVED_AFTER_S = 30.0
"""Time after which a VM that uses other namespaces instead has left; a client may reconnect before."""


class EmulatedDevice:
    """`observe` samples and decides; `settings` and `move` then return and start what was decided."""

    kind = "emulated"

    def __init__(
        self,
        record: DeviceRecord,
        run: RunPlaces,
        journal: Journal,
        policy: str,
        config: DaemonConfig,
        *,
        capacity_bytes: int | None,
        clock: Clock,
        connect: Connect,
    ) -> None:
        """`journal`: shows whether OPS of the device was moved before. `capacity_bytes`: for namespaces, if
        some of it may be unallocated.
        """
        self.name = record.name
        self.record = record
        self.actuator = ServedFtlActuator(record.name, run.control, journal, clock=clock, connect=connect)
        self.configured_scheduler = "keep"
        """`keep`, `auto`, or the name of a scheduler between namespaces."""
        self.profile: Analysis | None = None
        """Profile of a namespace, if there is a valid one."""
        self.occupants: dict[str, Occupant] = {}
        """By namespace."""
        self._seen_at_s: dict[str, float] = {}
        """By namespace: when its occupant used it, or might have come back."""
        self._explained_at_s: dict[str, float] = {}
        """Last time that each namespace had a known VM, or no requests in the window."""
        self.sample: DeviceSample | None = None
        """Sample of the last epoch; None: the server did not answer."""
        self.decision = Decision()
        self.refusals: list[str] = []
        """Commands that the device refused in the last epoch."""
        self.capacity = MeasuredCapacity()
        self._move_speed = MoveSpeed()
        self._served = ServedDevice(
            run.control,
            record,
            window_s=config.window_s,
            capacity_bytes=capacity_bytes,
            clock=clock.monotonic_s,
            connect=connect,
        )
        self._window_s = config.window_s
        self._policy = self._policy_named(policy)
        self._policy.keeps_split = any(
            knob.lever is Lever.FTL_OPS and knob.place.startswith(f"{self.name}/")
            for knob in journal.originals()
        )
        self._cancels_moves = False
        """Whether to cancel pending moves, because another policy decided them."""
        self._settings: _Settings = {}
        """Of namespaces, as of the last epoch."""
        self._activity = ActivityTracker(config.window_s)
        self._now_s = 0.0
        self.share_by = config.share_by if isinstance(record, SsdRecord) else ShareBy.DEVICE_TIME
        """Unit of shares; of a disk, which has no flash pages, what its fair queue divides."""
        self._move_budget = config.move_budget

    def close(self) -> None:
        self._served.close()
        self.actuator.close()

    @property
    def policy(self) -> str:
        return self._policy.name

    @property
    def backend(self) -> str:
        """Kind of the device and isolation between its VMs, for the status."""
        if self.record.kind != "ssd":
            return "emulated disk" if self.record.kind == "disk" else "emulated RAID-0"
        isolation = "isolated" if self.record.isolated else "shared"
        return f"emulated SSD, {isolation} OPS"

    @property
    def windows(self) -> dict[str, VmSample]:
        return self._served.windows

    @property
    def timed(self) -> bool:
        """Whether requests take modelled time; otherwise limits and weights have no effect."""
        return self.sample is not None and self.sample.timing.model is not TimingModel.NONE

    def wants_more(self, key: str) -> bool:
        """Whether the stream wanted more than it got in the status window: requests waited for the device.

        With exact proportions, requests that a limit throttles count as well.
        """
        window = self.windows.get(key)
        if window is None or not window.requests or not self.timed:
            return False
        if policy_entry(self.policy).exact:
            return window.backlog_share >= BUSY_FROM
        return window.queued_share >= BUSY_FROM

    def keep_split(self) -> None:
        """Make the policy begin with the split of OPS in force."""
        self._policy.keeps_split = True

    def set_policy(self, policy: str) -> None:
        """Use a policy; a new one begins with the split in force unless it has a fixed split of its own."""
        new_policy = self._policy_named(policy)
        if new_policy.name != self._policy.name:
            self._policy = new_policy
            self._cancels_moves = True
            self._activity.set_change("the policy changed", self._now_s)

    def remaining(self, streams: Iterable[Stream], now_s: float) -> dict[str, Occupant]:
        """The occupants without those that have used other namespaces instead for `_MOVED_AFTER_S`.

        A VM that uses none, or whose device was not served, may come back.
        """
        used = {(stream.vm, stream.tenant) for stream in streams if stream.tenant is not None}
        present = {vm for vm, _ in used}
        self._seen_at_s = {name: at_s for name, at_s in self._seen_at_s.items() if name in self.occupants}
        for namespace, occupant in self.occupants.items():
            is_here = (occupant.vm, Tenant(self.name, namespace)) in used
            if is_here or occupant.vm not in present or self.sample is None:
                self._seen_at_s[namespace] = now_s
        return {
            namespace: occupant
            for namespace, occupant in self.occupants.items()
            if now_s - self._seen_at_s.get(namespace, now_s) < _MOVED_AFTER_S
        }

    def observe(self, occupants: Mapping[str, Occupant], now_s: float) -> None:
        """Sample the device, and decide. Raises ObserveGone if the server does not answer.

        `occupants`: by namespace; `now_s`: monotonic time.
        """
        self.occupants, self._now_s = dict(occupants), now_s
        used = {key for key, window in self.windows.items() if window.iops}
        idle = [ns.name for ns in self.record.namespace if f"{self.name}/{ns.name}" not in used]
        self._explained_at_s |= dict.fromkeys([*occupants, *idle], now_s)
        self.sample, self.decision, self.refusals = None, Decision(), []
        sample = self._served.sample({name: occupant.key for name, occupant in occupants.items()})
        self.actuator.use_statistics(self._served.statistics)
        slos = {occupant.key: occupant.slo for occupant in occupants.values()}
        self.sample = self._mark_active(sample.with_slos(slos), now_s)
        if all(vm.window_s <= 0 for vm in self.sample.vms):
            return  # This is the first sample of the server.
        self._measure_capacity(self.sample)
        self.decision = self._policy.decide(self.sample)
        moves = self._served.moves
        if moves is not None:
            going = bool(self.decision.plans) and not self.decision.pause
            self._move_speed.add(now_s, moves["moved_blocks"], going=going)

    def _policy_named(self, name: str) -> PolicyInForce:
        # Without isolated OPS there is nothing to move.
        name = name if self.record.isolated else "shared"
        return PolicyInForce(name, keeps_split=not policy_entry(name).splits_at_start)

    def _mark_active(self, sample: DeviceSample, now_s: float) -> DeviceSample:
        """The sample with VMs active that had requests in the status window."""
        idle_after_s = self._window_s * (self._served.time_scale or 1.0)
        return self._activity.mark(replace(sample, share_by=self.share_by), now_s, idle_after_s)

    def _measure_capacity(self, sample: DeviceSample) -> None:
        if self._served.window_length_s < self._window_s:
            return
        total = total_iops(self.windows.values()) or 0.0
        active = [vm.vm for vm in sample.vms if vm.active]
        self.capacity.add(total, has_demand=any(self.wants_more(key) for key in active))

    def settings(self) -> list[Setting]:
        """Scheduler, and weights and IOPS limits of namespaces with VMs; `decide.levers` limits bandwidth."""
        if self.sample is None or not self.timed:
            return []
        last, self._settings = self._settings, {}
        for namespace, occupant in self.occupants.items():
            if self._served.scheduler == FAIR_SCHEDULER:
                weight = self._policy.weight(occupant, self.sample)
                self._add_setting(last, Lever.FTL_WEIGHT, namespace, occupant.vm, weight)
            remark = self.decision.remarks.get(occupant.key, "throttled to its share")
            limit = self._policy.limit(occupant, self.sample, remark)
            self._add_setting(last, Lever.FTL_LIMIT, namespace, occupant.vm, limit)
        return [*self._scheduler_setting(), *self._settings.values()]

    def _add_setting(
        self, last: _Settings, lever: Lever, namespace: str, vm: str, wanted: tuple[float | None, str]
    ) -> None:
        """Add the setting of a namespace: the same object as in `last` if equal, as the keeper expects."""
        setting = last.get((lever, namespace))
        if setting is None or (setting.value, setting.reason, setting.vm) != (*wanted, vm):
            name = "weight" if lever is Lever.FTL_WEIGHT else "total_iops"
            knob = setting.knob if setting else Knob(lever, str(Tenant(self.name, namespace)), name)
            setting = Setting(knob, wanted[0], vm, wanted[1])
        self._settings[lever, namespace] = setting

    def _scheduler_setting(self) -> tuple[Setting, ...]:
        """The scheduler between namespaces, unless the configuration says keep."""
        if self.configured_scheduler == "keep":
            return ()
        if self.configured_scheduler != "auto":
            configured = Choice("scheduler", self.configured_scheduler, "configured")
            return (tenant_setting(self.name, configured),)
        needs = needs_of(occupant.slo for occupant in self.occupants.values())
        choice = choose_tenant_scheduler(
            needs,
            len(self.record.namespace),
            rotates=self.record.kind != "ssd",
            analysis=self.profile,
        )
        return (tenant_setting(self.name, choice),)

    def move(self) -> None:
        """Start the decided moves of OPS, within the budget."""
        moves = self._served.moves
        if moves is not None and moves["budget"] != self._move_budget:
            self.actuator.set_move_budget(self._move_budget)
        if self._cancels_moves and moves is not None:
            if moves["pending"]:
                self.actuator.cancel_moves()
            self._cancels_moves = False
        if self.decision.moves and self.sample is not None:
            names = {f"{self.name}/{ns.name}": ns.name for ns in self.record.namespace}
            names |= {occupant.key: namespace for namespace, occupant in self.occupants.items()}
            self.refusals = self.actuator.apply(self.decision, names)

    def view(self, reasons: tuple[str, ...]) -> DeviceView:
        by_vm: dict[str, list[Occupant]] = defaultdict(list)
        for occupant in self.occupants.values():
            by_vm[occupant.vm].append(occupant)
        shares, iops = self._entitlements()
        share_of = self._share_of_total()
        slos = [occupant.slo for occupant in self.occupants.values()]
        weights = {slo.weight for slo in slos}
        moves = self._served.moves
        return DeviceView(
            name=self.name,
            kind="emulated",
            backend=self.backend,
            policy=self.policy,
            window_s=self._window_s,
            iops=total_iops(self.windows.values()),
            capacity_iops=self.capacity.iops,
            estimated_iops=self._estimated_iops(),
            sum_min_iops=sum(slo.min_iops or 0.0 for slo in slos),
            reasons=reasons,
            waf=self._waf(),
            share_by=self.share_by if self.timed else "",
            move_budget=moves["budget"] if moves else None,
            moves=self.moves,
            time_scale=self._served.time_scale or 1.0,
            moved_s=moves["done_ns"] / 1e9 if moves else None,
            moved_blocks=moves["moved_blocks"] if moves else None,
            vms={
                vm: self._delivered(occupants, shares, iops, share_of, weights)
                for vm, occupants in by_vm.items()
            },
        )

    def _estimated_iops(self) -> float | None:
        """Estimated capacity; None if requests take no modelled time."""
        if self.sample is None or not self.timed or not isinstance(self.record, SsdRecord):
            return None
        drive, totals = self.record.drive, self._served.totals
        estimated = estimated_iops(
            self.sample.timing,
            drive.dies,
            drive.channels,
            reads=sum(reading.host_page_reads for reading in totals),
            writes=sum(reading.host_page_writes for reading in totals),
            gc_writes=sum(reading.gc_page_writes for reading in totals),
        )
        # The WAF so far may be higher than the present one.
        return max(estimated, total_iops(self.windows.values()) or 0.0)

    def unknown_clients(self) -> list[str]:
        """A sentence for each namespace with requests in a window in which it had no known VM."""
        # Twice the window, because readings are not taken at the same time as the inventory.
        start_s = self._now_s - 2.0 * self._served.window_length_s
        names = {
            f"{self.name}/{ns.name}": ns.name
            for ns in self.record.namespace
            if self._explained_at_s.get(ns.name, self._now_s) < start_s
        }
        return [
            f"{key} is used by no known VM: add [vm.{toml_key(names[key])}] with "
            f'namespaces = ["{key}"] to slo-ctl.toml'
            for key, window in sorted(self.windows.items())
            if key in names and window.iops
        ]

    @property
    def moves(self) -> tuple[MoveStatus, ...]:
        """Pending moves of OPS, with their progress."""
        plans, speed = self.decision.plans, self._move_speed.blocks_s
        waiting, left_s = self.decision.pause, None
        if speed:
            left_s = sum(plan.blocks for plan in plans) / speed
        elif speed is not None:
            waiting = (
                waiting or f"none in {self._move_speed.measured_s:.0f} s, as VMs would be delayed too long"
            )
        return tuple(
            MoveStatus(
                source=plan.source or "",
                target=plan.target or "",
                blocks_left=plan.blocks,
                share_done=plan.share_done,
                # Plans of a device without modelled latency count pages.
                cost_s=plan.cost_s if self.timed else None,
                saving_s=plan.saving_s if self.timed else None,
                left_s=None if waiting else left_s,
                waiting=waiting,
            )
            for plan in plans
        )

    def _waf(self) -> DeviceWaf | None:
        """WAF of all streams together in the status window."""
        if not self.windows or not isinstance(self.record, SsdRecord):
            return None
        windows = self.windows.values()
        return ftl_waf(
            sum(window.host_page_writes for window in windows),
            sum(window.gc_page_writes for window in windows),
            self.record.drive.page_bytes,
            max(window.window_s for window in windows),
        )

    def _delivered(
        self,
        occupants: list[Occupant],
        shares: Mapping[str, float],
        entitled_iops: Mapping[str, float],
        share_of: Callable[[VmSample], float | None],
        weights: Set[float],
    ) -> Delivered:
        """Work delivered to the VM of `occupants`.

        `shares` and `entitled_iops`: entitlements by stream. `share_of`: see `_share_of_total`. `weights`: of
        all VMs.
        """
        keys = [occupant.key for occupant in occupants]
        timed, entitled = self.timed, [key for key in keys if key in shares]
        windows = [self.windows[key] for key in keys if key in self.windows]
        window = merge_windows(windows) if windows else VmSample(occupants[0].vm, 0.0)
        wants_more = timed and any(self.wants_more(key) for key in keys)
        remarks = [self.decision.remarks[key] for key in keys if key in self.decision.remarks]
        lacking = [without_lever(self.policy, occupant.slo) for occupant in occupants if timed]
        remarks += [remark for remark in dict.fromkeys(lacking) if remark]
        return Delivered(
            window,
            asked=bool(window.iops) or wants_more,
            disks=tuple(occupant.disk for occupant in occupants if occupant.disk),
            wants_more=wants_more,
            busy=timed and any(each.requests and each.backlog_share >= BUSY_FROM for each in windows),
            share=share_of(window),
            unit=self.share_by if timed else "IOPS",
            target_share=sum(shares[key] for key in entitled) if entitled else None,
            target_iops=sum(entitled_iops[key] for key in entitled) if entitled else None,
            no_mechanism=self._no_mechanism(occupants, weights),
            remark="; ".join(remarks),
            settling=self._activity.recent_change(self._now_s),
        )

    def _share_of_total(self) -> Callable[[VmSample], float | None]:
        """A function that returns the share of a window in the work of all VMs, or in their IOPS."""
        amount = sum(window.amount(self.share_by) for window in self.windows.values())
        if self.timed and amount:
            return lambda window: window.amount(self.share_by) / amount
        iops = total_iops(self.windows.values())
        return lambda window: window.iops / iops if window.iops is not None and iops else None

    def _no_mechanism(self, occupants: list[Occupant], weights: Set[float]) -> str:
        if self.sample is None:
            return ""
        own, ops = [occupant.slo for occupant in occupants], self.record.isolated
        return why_not_kept(self.name, self._served.scheduler, own, weights, timed=self.timed, ops=ops)

    def _entitlements(self) -> tuple[dict[str, float], dict[str, float]]:
        """Entitlement of each active stream in the status window, as a share of the work and in IOPS.

        Empty if nothing divides the device.
        """
        if self.sample is None or not self.timed:
            return {}, {}
        if not isinstance(self.record, SsdRecord) and self._served.scheduler != FAIR_SCHEDULER:
            return {}, {}  # A disk that serves requests as they come owes no VM a share.
        claims, per_request = [], {}
        for occupant in self.occupants.values():
            window = self.windows.get(occupant.key)
            if window is None or not window.window_s or not window.requests:
                continue
            amount = window.amount(self.share_by)
            per_request[occupant.key] = amount / window.requests or 1.0
            claims.append(
                claim_of(
                    occupant.key,
                    occupant.slo,
                    amount / window.window_s,
                    per_request[occupant.key],
                    wants_more=self.wants_more(occupant.key),
                )
            )
        entitlements = entitle(claims)
        iops = {key: rate / per_request[key] for key, rate in entitlements.rates.items()}
        return entitlements.shares, iops
