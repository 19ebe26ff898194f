"""One emulated SSD that is served: what its VMs do, what its policy decides, and what that wants done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from slo_ctl.act.journal import Journal
from slo_ctl.act.ssd import ServedFtlActuator
from slo_ctl.base.clock import SYSTEM_CLOCK, Clock
from slo_ctl.daemon.activity import Activity, Capacity, estimated_iops
from slo_ctl.daemon.device_view import DeviceView, total_iops
from slo_ctl.daemon.occupants import Occupant
from slo_ctl.decide.device_waf import ftl_waf
from slo_ctl.decide.entitlement import BUSY_FROM, claim_of, entitle
from slo_ctl.decide.policies import (
    DEFAULT_POLICY,
    POLICIES,
    STRICT_POLICY,
    Policy,
    make_policy,
    most_moves_of,
    without_lever,
)
from slo_ctl.decide.profile_fit import Analysis
from slo_ctl.decide.scheduler import (
    FAIR_SCHEDULER,
    Choice,
    choose_tenant_scheduler,
    needs_of,
    tenant_setting,
    why_not_kept,
)
from slo_ctl.decide.verdict import Delivered
from slo_ctl.drives.control import Connect, ControlClient
from slo_ctl.drives.places import RunPlaces
from slo_ctl.drives.record import DeviceRecord, SsdRecord
from slo_ctl.model import (
    Decision,
    DeviceSample,
    DeviceWaf,
    Knob,
    Lever,
    MoveStatus,
    Setting,
    ShareBy,
    Slo,
    StreamWindow,
    Tenant,
    TimingModel,
)
from slo_ctl.observe.block import joined
from slo_ctl.observe.ssd import ServedDevice

DEFAULT_MOVE_BUDGET = 0.1
"""Share of the time of each die, unless configured."""


@dataclass(slots=True)
class _InForce:
    """Values set by the policy so far, by stream."""

    state: Any
    limits_iops: dict[str, float | None]
    """Tighter than the SLO's maximum."""
    scheduler_weights: dict[str, float]


class EmulatedDevice:
    """Observes and decides in `observe`; `settings` and `move` are for acting upon it afterwards."""

    kind = "emulated"

    def __init__(
        self,
        record: DeviceRecord,
        run: RunPlaces,
        journal: Journal,
        policy: str,
        window_s: float,
        share_by: ShareBy = ShareBy.PAGES,
        *,
        clock: Clock = SYSTEM_CLOCK,
        connect: Connect = ControlClient,
    ) -> None:
        """`window_s` is the status window; `journal` knows whether the device has been taken over before."""
        self.name = record.name
        self.record = record
        self.actuator = ServedFtlActuator(record.name, run.control, journal, clock=clock, connect=connect)
        self.configured_scheduler = "keep"
        """`keep`, `auto`, or the name of the tenant scheduler that it is to have."""
        self.profile: Analysis | None = None
        """Of a namespace of it, where there is a valid one."""
        self.occupants: dict[str, Occupant] = {}
        self._explained_at_s: dict[str, float] = {}
        """When each namespace had a VM, or no requests in a window, last."""
        self.sample: DeviceSample | None = None
        self.decision = Decision()
        self.refusals: list[str] = []
        """Commands that the device refused in the last epoch."""
        self.capacity = Capacity()
        self._served = ServedDevice(
            record.name, run.control, record, window_s=window_s, clock=clock.monotonic_s, connect=connect
        )
        self._journal = journal
        self._window_s = window_s
        self._policy: Policy[Any] = self._make_policy(policy)
        self._in_force: _InForce | None = None
        self._taking_over = any(
            knob.lever is Lever.FTL_OPS and knob.place.startswith(f"{self.name}/")
            for knob in journal.originals()
        )
        self._cancels_moves = False
        """Moves under way are those of another policy."""
        self._activity = Activity(window_s, window_s)
        self._now_s = 0.0
        self.share_by = share_by
        """The unit of shares."""
        self.move_budget = DEFAULT_MOVE_BUDGET

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
        """Isolation between VMs there."""
        if self.record.kind != "ssd":
            return "emulated disk" if self.record.kind == "disk" else "emulated RAID-0"
        how = "isolated" if self.record.isolated else "shared"
        return f"emulated SSD, {how} OPS"

    @property
    def windows(self) -> dict[str, StreamWindow]:
        """Activity of each stream over the status window."""
        return self._served.windows

    @property
    def timed(self) -> bool:
        """Whether requests take the modelled time; otherwise nothing can be slowed or preferred."""
        return self.sample is not None and self.sample.timing.model is not TimingModel.NONE

    def wants_more(self, key: str) -> bool:
        """Whether the stream would have taken more than it got over the status window.

        Where shares are exact, a stream with requests outstanding all the time counts, too.
        """
        window = self.windows.get(key)
        if window is None:
            return False
        if self._policy.name == STRICT_POLICY:
            return window.backlog_share >= BUSY_FROM
        return window.queued_share >= BUSY_FROM

    def take_over(self) -> None:
        """Begin with the split in force, instead of the policy's own."""
        self._taking_over = True

    def choose(self, policy: str) -> None:
        """Use another policy from now on, taking over what is in force until its own split is reached."""
        made = self._make_policy(policy)
        if made.name != self._policy.name:
            self._policy, self._in_force = made, None
            self._taking_over = not POLICIES[made.name].splits_at_start
            self._cancels_moves = True
            self._activity.changed("the policy changed", self._now_s)

    def observe(self, occupants: Mapping[str, Occupant], now_s: float) -> None:
        """Observe, and decide what should change. Raises ObserveGone when the server does not answer.

        `occupants` are by namespace; `now_s` is monotonic time.
        """
        self.occupants, self._now_s = dict(occupants), now_s
        used = {key for key, window in self.windows.items() if window.iops}
        idle = [each.name for each in self.record.namespace if f"{self.name}/{each.name}" not in used]
        self._explained_at_s |= dict.fromkeys([*occupants, *idle], now_s)
        self.sample, self.decision, self.refusals = None, Decision(), []
        measured = self._served.sample({name: occupant.key for name, occupant in occupants.items()})
        self.actuator.use_statistics(self._served.statistics)
        slos = {occupant.key: occupant.slo for occupant in occupants.values()}
        self.sample = self._mark_active(measured.with_slos(slos), now_s)
        if all(vm.window_s <= 0 for vm in self.sample.vms):
            return  # the first look at this server: nothing has been measured
        self._measure_capacity(self.sample)
        self.decision = self._decide(self.sample)

    def _make_policy(self, policy: str) -> Policy[Any]:
        # Without isolated OPS nothing can move between VMs.
        return make_policy(policy if self.record.isolated else "shared")

    def _mark_active(self, sample: DeviceSample, now_s: float) -> DeviceSample:
        """A VM becomes active at once, but idle only after a whole window without requests."""
        self._activity.idle_after_s = self._window_s * (self._served.time_scale or 1.0)
        budget = most_moves_of(self._policy.name, sample)
        sample = replace(sample, max_move_blocks=budget, share_by=self.share_by)
        return self._activity.mark(sample, now_s)

    def _measure_capacity(self, sample: DeviceSample) -> None:
        if self._served.covered_s < self._window_s:
            return
        total = total_iops(self.windows.values()) or 0.0
        active = [vm.vm for vm in sample.vms if vm.active]
        self.capacity.add(total, asked_for_more=any(self.wants_more(key) for key in active))

    def _decide(self, sample: DeviceSample) -> Decision:
        known = self._in_force
        try:
            if known is not None:
                known.state, decision = self._policy.step(known.state, sample)
            elif self._taking_over or self._policy.name == DEFAULT_POLICY:
                # A device in use keeps its split until a move pays.
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
        for namespace, occupant in self.occupants.items():
            place = str(Tenant(self.name, namespace))
            if self._served.scheduler == FAIR_SCHEDULER:
                weight, why = self._weight(occupant)
                settings.append(Setting(Knob(Lever.FTL_WEIGHT, place, "weight"), weight, occupant.vm, why))
            limit, why = self._limit(occupant)
            settings.append(Setting(Knob(Lever.FTL_LIMIT, place, "total_iops"), limit, occupant.vm, why))
        return settings

    def _scheduler_setting(self) -> tuple[Setting, ...]:
        """How it divides itself among its namespaces, where that is for us to choose."""
        if self.configured_scheduler == "keep":
            return ()
        if self.configured_scheduler != "auto":
            given = Choice("scheduler", self.configured_scheduler, "configured")
            return (tenant_setting(self.name, given),)
        needs = needs_of(occupant.slo for occupant in self.occupants.values())
        choice = choose_tenant_scheduler(
            needs,
            len(self.record.namespace),
            rotates=self.record.kind != "ssd",
            analysis=self.profile,
        )
        return (tenant_setting(self.name, choice),)

    def _weight(self, occupant: Occupant) -> tuple[float, str]:
        """Of device time: the SLO's, unless the policy has one that gives the same share of IOPS."""
        if self._in_force is None and self._taking_over and self.sample is not None:
            in_force = {v.vm: v.scheduler_weight for v in self.sample.vms}
            return in_force.get(occupant.key, occupant.slo.weight), "as it was"
        decided = self._in_force.scheduler_weights.get(occupant.key) if self._in_force else None
        if decided is not None:
            return decided, f"device time for its weight, by {self._policy.name}"
        return occupant.slo.weight, "its weight"

    def _limit(self, occupant: Occupant) -> tuple[float | None, str]:
        if self._in_force is not None:
            paced = self._in_force.limits_iops.get(occupant.key)
        else:
            paced = _tighter_than_maximum(self.sample).get(occupant.key) if self._taking_over else None
        most = occupant.slo.max_iops
        if paced is not None and (most is None or paced < most):
            return paced, self.decision.remarks.get(occupant.key, "throttled to its share")
        return most, "its maximum"

    def move(self) -> None:
        """Have the OPS moved that was decided, within the budget."""
        moves = self._served.moves
        if moves is not None and moves["budget"] != self.move_budget:
            self.actuator.set_move_budget(self.move_budget)
        if self._cancels_moves and moves is not None:
            if moves["pending"]:
                self.actuator.cancel_moves()
            self._cancels_moves = False
        if self.decision.moves and self.sample is not None:
            names = {f"{self.name}/{each.name}": each.name for each in self.record.namespace}
            names |= {occupant.key: namespace for namespace, occupant in self.occupants.items()}
            self.refusals = self.actuator.apply(self.decision, names)

    def view(self, reasons: tuple[str, ...]) -> DeviceView:
        """View for the status."""
        by_vm: dict[str, list[Occupant]] = defaultdict(list)
        for occupant in self.occupants.values():
            by_vm[occupant.vm].append(occupant)
        due = self._entitled()
        amount = sum(window.amount(self.share_by) for window in self.windows.values())
        slos = [occupant.slo for occupant in self.occupants.values()]
        return DeviceView(
            name=self.name,
            kind="emulated",
            backend=self.backend,
            policy=self.policy,
            window_s=self._window_s,
            iops=total_iops(self.windows.values()),
            capacity_iops=self.capacity.iops,
            estimated_iops=self._estimated_iops(),
            sum_min_iops=sum(occupant.slo.min_iops or 0.0 for occupant in self.occupants.values()),
            reasons=reasons,
            waf=self._waf(),
            share_by=self.share_by if self.timed else "",
            move_budget=self._served.moves["budget"] if self._served.moves else None,
            moves=self._moves(),
            time_scale=self._served.time_scale or 1.0,
            moved_s=self._served.moves["done_ns"] / 1e9 if self._served.moves else None,
            moved_blocks=self._served.moves.get("moved_blocks") if self._served.moves else None,
            vms={vm: self._delivered(occupants, *due, amount, slos) for vm, occupants in by_vm.items()},
        )

    def _estimated_iops(self) -> float | None:
        """Its maximum; None where requests take no modelled time."""
        if self.sample is None or not self.timed or not isinstance(self.record, SsdRecord):
            return None
        drive, counted = self.record.drive, self._served.counted
        estimated = estimated_iops(
            self.sample.timing,
            drive.dies,
            drive.channels,
            reads=sum(each.host_page_reads for each in counted),
            writes=sum(each.host_page_writes for each in counted),
            gc_writes=sum(each.gc_page_writes for each in counted),
        )
        # GC so far may have been worse than it is now.
        return max(estimated, total_iops(self.windows.values()) or 0.0)

    def without_vm(self) -> list[str]:
        """One sentence for each namespace with requests in a window in which no VM of it was known."""
        began_s = self._now_s - 2.0 * self._served.covered_s  # readings come a little before and after
        free = [
            each.name
            for each in self.record.namespace
            if self._explained_at_s.get(each.name, self._now_s) < began_s
        ]
        names = {f"{self.name}/{name}": name for name in free}
        return [
            f'{key} is used by no known VM: add [vm.{names[key]}] with namespaces = ["{key}"] to slo-ctl.toml'
            for key, window in sorted(self.windows.items())
            if key in names and window.iops
        ]

    def moving(self) -> list[str]:
        """One sentence for each move of OPS under way."""
        return [str(move) for move in self._moves()]

    def _moves(self) -> tuple[MoveStatus, ...]:
        """Moves of OPS under way, with what is left of them."""
        moves = self._served.moves
        dies = self.record.drive.dies if isinstance(self.record, SsdRecord) else 0
        speed = (moves["budget"] if moves else 0.0) * dies
        return tuple(
            MoveStatus(
                source=plan.source or "",
                target=plan.target or "",
                blocks_left=plan.blocks,
                share_done=plan.share_done,
                cost_s=plan.cost_s,
                saving_s=plan.saving_s,
                left_s=plan.cost_s / speed if speed else None,
            )
            for plan in self.decision.plans
        )

    def _waf(self) -> DeviceWaf | None:
        """WAF of all streams together, over the status window."""
        known = [each for each in self.windows.values() if each.host_page_writes is not None]
        if not known or not isinstance(self.record, SsdRecord):
            return None
        return ftl_waf(
            sum(each.host_page_writes or 0 for each in known),
            sum(each.gc_page_writes or 0 for each in known),
            self.record.drive.page_bytes,
            max(each.window_s for each in known),
        )

    def _delivered(
        self,
        occupants: list[Occupant],
        due_share: Mapping[str, float],
        due_iops: Mapping[str, float],
        total: float,
        slos: list[Slo],
    ) -> Delivered:
        """`total` is what all VMs got, `slos` are those of all."""
        keys = [occupant.key for occupant in occupants]
        due = [key for key in keys if key in due_share]
        windows = [self.windows[key] for key in keys if key in self.windows]
        window = joined(windows) if windows else StreamWindow(occupants[0].vm, 0.0)
        wants_more = self.timed and any(self.wants_more(key) for key in keys)
        if self.timed and total:
            share: float | None = window.amount(self.share_by) / total
        else:
            iops = total_iops(self.windows.values())
            share = window.iops / iops if window.iops is not None and iops else None
        remarks = [self.decision.remarks[key] for key in keys if key in self.decision.remarks]
        levers = [without_lever(self.policy, occupant.slo) for occupant in occupants if self.timed]
        remarks += [each for each in dict.fromkeys(levers) if each]
        return Delivered(
            window,
            asked=bool(window.iops) or wants_more,
            disks=tuple(occupant.disk for occupant in occupants if occupant.disk),
            wants_more=wants_more,
            busy=self.timed and bool(windows) and window.backlog_share >= BUSY_FROM,
            share=share,
            unit=self.share_by if self.timed else "IOPS",
            target_share=sum(due_share[key] for key in due) if due else None,
            target_iops=sum(due_iops[key] for key in due) if due else None,
            no_mechanism=self._no_mechanism(occupants, slos),
            remark="; ".join(remarks),
            settling=self._activity.settling(self._now_s),
        )

    def _no_mechanism(self, occupants: list[Occupant], everybody: list[Slo]) -> str:
        if self.sample is None:
            return ""
        own, ops = [occupant.slo for occupant in occupants], self.record.isolated
        return why_not_kept(self.name, self._served.scheduler, own, everybody, timed=self.timed, ops=ops)

    def _entitled(self) -> tuple[dict[str, float], dict[str, float]]:
        """Every active stream's entitlement to what was delivered over the status window: share and IOPS."""
        if self.sample is None or not self.timed:
            return {}, {}
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
        answer = entitle(claims)
        return answer.shares, {key: rate / per_request[key] for key, rate in answer.rates.items()}


def _tighter_than_maximum(sample: DeviceSample | None) -> dict[str, float | None]:
    return {
        v.vm: v.limit_iops
        for v in (sample.vms if sample else ())
        if v.limit_iops is not None and (v.slo.max_iops is None or v.limit_iops < v.slo.max_iops)
    }
