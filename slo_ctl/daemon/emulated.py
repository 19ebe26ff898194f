"""One emulated SSD that is being served: its sample, its policy, and what that wants done."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slo_ctl.act.served_ftl import ServedFtlActuator
from slo_ctl.act.tenant_scheduler import TenantSchedulerActuator
from slo_ctl.clock import SYSTEM_CLOCK
from slo_ctl.daemon.capacity import Capacity
from slo_ctl.daemon.demand import Demand
from slo_ctl.daemon.parts import DeviceView, VmView, total_iops
from slo_ctl.decide.device_settings import tenant_setting
from slo_ctl.decide.device_waf import ftl_waf
from slo_ctl.decide.policies import make_policy
from slo_ctl.decide.scheduler_choice import Choice, needs_of
from slo_ctl.decide.shares import due_shares
from slo_ctl.decide.tenant_choice import FAIR_SCHEDULER, choose_tenant_scheduler, why_not_kept
from slo_ctl.device.control import ControlClient
from slo_ctl.device.record import SsdRecord
from slo_ctl.model import Decision, Knob, Lever, Setting, Target, Tenant, TimingModel
from slo_ctl.observe.served_ftl import ServedDevice
from slo_ctl.observe.vm_reading import Standing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slo_ctl.act.journal import Journal
    from slo_ctl.clock import Clock
    from slo_ctl.daemon.seats import Seat
    from slo_ctl.decide.policies import Policy
    from slo_ctl.device.control import Connect
    from slo_ctl.device.places import RunPlaces
    from slo_ctl.device.record import DeviceRecord
    from slo_ctl.model import DeviceSample, DeviceWaf, VmSample
    from slo_ctl.observe.window import StreamWindow


@dataclass(slots=True)
class _InForce:
    """What the policy has decided so far, by stream."""

    state: Any
    limits_iops: dict[str, float | None]
    """Tighter than the SLO's maximum."""
    scheduler_weights: dict[str, float]


class EmulatedDevice:
    """Observes and decides in `look`; `settings` and `move` are for acting upon it afterwards."""

    kind = "emulated"

    def __init__(
        self,
        record: DeviceRecord,
        run: RunPlaces,
        journal: Journal,
        policy: str,
        window_s: float,
        *,
        clock: Clock = SYSTEM_CLOCK,
        connect: Connect = ControlClient,
    ) -> None:
        """`window_s` is the status window; `journal` tells whether the device has been taken over before."""
        self.name = record.name
        self.record = record
        self.actuator = ServedFtlActuator(record.name, run.control, journal, clock=clock, connect=connect)
        self.tenant_scheduler = TenantSchedulerActuator(record.name, self.actuator)
        self.scheduler_wish = "keep"
        """`keep`, `auto`, or the name of the tenant scheduler that it is to have."""
        self.seats: dict[str, Seat] = {}
        self.sample: DeviceSample | None = None
        self.decision = Decision()
        self.refusals: list[str] = []
        """What the device refused in the last epoch."""
        self.capacity = Capacity()
        self._served = ServedDevice(
            record.name, run.control, record, window_s=window_s, clock=clock.monotonic_s, connect=connect
        )
        self._journal = journal
        self._window_s = window_s
        self._policy: Policy[Any] = self._made(policy)
        self._in_force: _InForce | None = None
        self._taking_over = any(
            knob.lever is Lever.FTL_OPS and knob.place.startswith(f"{self.name}/")
            for knob in journal.originals()
        )
        self._demand: dict[str, Demand] = {}

    def close(self) -> None:
        """Hang up."""
        self._served.close()
        self.actuator.close()

    @property
    def policy(self) -> str:
        """The name of the policy in force."""
        return self._policy.name

    @property
    def backend(self) -> str:
        """What isolates VMs from each other there."""
        if self.record.kind != "ssd":
            return "emulated disk" if self.record.kind == "disk" else "emulated RAID-0"
        how = "isolated" if self.record.isolated else "shared"
        return f"emulated SSD, {how} OPS"

    @property
    def windows(self) -> dict[str, StreamWindow]:
        """What each stream did over the status window."""
        return self._served.windows

    @property
    def timed(self) -> bool:
        """Whether requests take the modelled time; otherwise nothing can be slowed or preferred."""
        return self.sample is not None and self.sample.timing.model is not TimingModel.NONE

    def wants_more(self, key: str) -> bool:
        """Whether the stream would have taken more than it got."""
        return key in self._demand and self._demand[key].wants_more

    def take_over(self) -> None:
        """Begin with what is in force, instead of with the policy's own split."""
        self._taking_over = True

    def choose(self, policy: str) -> None:
        """Use another policy from now on, taking over what is in force."""
        made = self._made(policy)
        if made.name != self._policy.name:
            self._policy, self._in_force, self._taking_over = made, None, True

    def look(self, seats: Mapping[str, Seat], now_s: float) -> None:
        """Observe, and decide what should change. Raises ObserveGone when the server does not answer.

        `seats` are by namespace; `now_s` is monotonic time.
        """
        self.seats = dict(seats)
        self.sample, self.decision, self.refusals = None, Decision(), []
        standings = {name: Standing(seat.slo, running=True) for name, seat in seats.items()}
        keys = {name: seat.key for name, seat in seats.items()}
        sample = self._served.sample(standings, keys)
        self.sample = self._kept_awake(sample, now_s)
        if all(vm.window_s <= 0 for vm in self.sample.vms):
            return  # the first look at this server: nothing has been measured
        self._measure_capacity(self.sample)
        self.decision = self._decide(self.sample)

    def _made(self, policy: str) -> Policy[Any]:
        # Without OPS of their own there is nothing to move between VMs.
        return make_policy(policy if self.record.isolated else "shared")

    def _kept_awake(self, sample: DeviceSample, now_s: float) -> DeviceSample:
        """A VM wakes at once, but sleeps only after a whole window: policies answer both by moving OPS."""
        keys = {vm.vm for vm in sample.vms}
        patience_s = self._window_s * (self._served.time_scale or 1.0)
        self._demand = {key: demand for key, demand in self._demand.items() if key in keys}
        vms: list[VmSample] = []
        for vm in sample.vms:
            demand = self._demand.setdefault(vm.vm, Demand(self._window_s))
            demand.add(vm, now_s)
            vms.append(replace(vm, active=demand.awake(now_s, patience_s)))
        budget = None
        if self._policy.name == "algorithm1":  # the paper adjusts before every GC, a block at a time
            budget = max(1, sum(vm.victim_pages for vm in vms) // sample.timing.pages_per_block)
        return replace(sample, vms=tuple(vms), max_move_blocks=budget)

    def _measure_capacity(self, sample: DeviceSample) -> None:
        total = sum(vm.iops for vm in sample.vms)
        active = [vm.vm for vm in sample.vms if vm.active]
        self.capacity.add(total, asked_for_more=any(self.wants_more(key) for key in active))

    def _decide(self, sample: DeviceSample) -> Decision:
        known = self._in_force
        try:
            if known is not None:
                known.state, decision = self._policy.step(known.state, sample)
            elif self._taking_over:
                state, decision = self._policy.resume(sample)
                known = _InForce(state, _tighter_than_maximum(sample), {})
            else:
                state, decision = self._policy.start(sample)
                known = _InForce(state, {}, {})
        except ValueError as error:
            return Decision(reasons=(f"{self._policy.name} cannot decide: {error}",))
        self._in_force = known
        keys = {vm.vm for vm in sample.vms}
        known.limits_iops = {k: v for k, v in (known.limits_iops | decision.limits_iops).items() if k in keys}
        weights = known.scheduler_weights | decision.scheduler_weights
        known.scheduler_weights = {k: v for k, v in weights.items() if k in keys}
        return decision

    def settings(self) -> list[Setting]:
        """Weights and limits that namespaces with VMs should have; nothing for the others.

        Bounds on bandwidth are no policy's affair: `decide.levers` has them.
        """
        if self.sample is None or not self.timed:
            return []
        settings = list(self._scheduler_setting())
        for namespace, seat in self.seats.items():
            place = str(Tenant(self.name, namespace))
            if self._served.scheduler == FAIR_SCHEDULER:
                weight, why = self._weight(seat)
                settings.append(Setting(Knob(Lever.FTL_WEIGHT, place, "weight"), weight, seat.vm, why))
            limit, why = self._limit(seat)
            settings.append(Setting(Knob(Lever.FTL_LIMIT, place, "total_iops"), limit, seat.vm, why))
        return settings

    def _scheduler_setting(self) -> tuple[Setting, ...]:
        """How it divides itself among its namespaces, where that is for us to choose."""
        if self.scheduler_wish == "keep":
            return ()
        if self.scheduler_wish != "auto":
            given = Choice("scheduler", self.scheduler_wish, "the configuration says so")
            return (tenant_setting(self.name, given),)
        needs = needs_of(seat.slo for seat in self.seats.values())
        tenants, rotates = len(self.record.namespace), self.record.kind != "ssd"
        return (tenant_setting(self.name, choose_tenant_scheduler(needs, tenants, rotates=rotates)),)

    def _weight(self, seat: Seat) -> tuple[float, str]:
        """Of device time: the SLO's, unless the policy has one that gives the same share of IOPS."""
        if self._in_force is None and self._taking_over and self.sample is not None:
            in_force = {v.vm: v.scheduler_weight for v in self.sample.vms}
            return in_force.get(seat.key, seat.slo.weight), "as it was"
        decided = self._in_force.scheduler_weights.get(seat.key) if self._in_force else None
        if decided is not None:
            return decided, f"device time for its weight, by {self._policy.name}"
        return seat.slo.weight, "its weight"

    def _limit(self, seat: Seat) -> tuple[float | None, str]:
        if self._in_force is not None:
            paced = self._in_force.limits_iops.get(seat.key)
        else:
            paced = _tighter_than_maximum(self.sample).get(seat.key) if self._taking_over else None
        most = seat.slo.max_iops
        if paced is not None and (most is None or paced < most):
            return paced, "held to its share"
        return most, "its maximum"

    def move(self) -> None:
        """Have the OPS moved that was decided."""
        if self.decision.moves and self.sample is not None:
            names = {f"{self.name}/{each.name}": each.name for each in self.record.namespace}
            names |= {seat.key: namespace for namespace, seat in self.seats.items()}
            self.refusals = self.actuator.apply(self.decision, names)

    def view(self, reasons: tuple[str, ...]) -> DeviceView:
        """For the status."""
        total = total_iops(list(self.windows.values()))
        by_vm: dict[str, list[Seat]] = defaultdict(list)
        for seat in self.seats.values():
            by_vm[seat.vm].append(seat)
        targets = self._targets(total)
        return DeviceView(
            name=self.name,
            kind="emulated",
            backend=self.backend,
            policy=self.policy,
            total_iops=total,
            capacity_iops=self.capacity.iops,
            sum_min_iops=sum(seat.slo.min_iops or 0.0 for seat in self.seats.values()),
            reasons=reasons,
            waf=self._waf(),
            vms={vm: self._vm_view(seats, targets, total) for vm, seats in by_vm.items()},
        )

    def _waf(self) -> DeviceWaf | None:
        """Of all streams together, over the status window."""
        known = [each for each in self.windows.values() if each.host_page_writes is not None]
        if not known or not isinstance(self.record, SsdRecord):
            return None
        return ftl_waf(
            sum(each.host_page_writes or 0 for each in known),
            sum(each.gc_page_writes or 0 for each in known),
            self.record.geometry.page_bytes,
            max(each.window_s for each in known),
        )

    def _vm_view(self, seats: list[Seat], targets: Mapping[str, Target], total: float | None) -> VmView:
        keys = [seat.key for seat in seats]
        due = [targets[key] for key in keys if key in targets]
        share = sum(target.share for target in due) if due else None
        iops = [target.iops for target in due if target.iops is not None]
        return VmView(
            windows=tuple(self.windows[key] for key in keys if key in self.windows),
            disks=tuple(seat.disk for seat in seats if seat.disk),
            wants_more=self.timed and any(self.wants_more(key) for key in keys),
            target_share=share,
            target_iops=sum(iops) if iops else share * total if share is not None and total else None,
            no_mechanism=self._no_mechanism(seats),
        )

    def _no_mechanism(self, seats: list[Seat]) -> str:
        if self.sample is None:
            return ""
        own, everybody = [seat.slo for seat in seats], [seat.slo for seat in self.seats.values()]
        ops = self.record.isolated
        return why_not_kept(self.name, self._served.scheduler, own, everybody, timed=self.timed, ops=ops)

    def _targets(self, total: float | None) -> Mapping[str, Target]:
        """What every awake stream is due: by the policy, or else by the weights alone."""
        if self.sample is None or not self.timed:
            return {}
        if self.decision.targets:
            return self.decision.targets
        awake = {vm.vm for vm in self.sample.vms if vm.active}
        slos = {seat.key: seat.slo for seat in self.seats.values() if seat.key in awake}
        return {key: Target(share) for key, share in due_shares(slos, total).items()}


def _tighter_than_maximum(sample: DeviceSample | None) -> dict[str, float | None]:
    return {
        v.vm: v.limit_iops
        for v in (sample.vms if sample else ())
        if v.limit_iops is not None and (v.slo.max_iops is None or v.limit_iops < v.slo.max_iops)
    }
