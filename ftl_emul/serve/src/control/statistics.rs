//! The statistics of the control socket.

use std::sync::Arc;

use ftl_core::engine::{Histogram, QueueCounters};
use ftl_core::{Drive, Op, TenantId};
use serde_json::{Value, json};

use crate::config::Medium;
use crate::error::ServeError;
use crate::histogram::BOUNDS_US;
use crate::namespace::Namespace;
use crate::server::Server;
use crate::settings::Settings;

const PERCENTILES: [(&str, f64); 3] = [("p50", 50.0), ("p99", 99.0), ("p999", 99.9)];

/// The served device, and the version of the server.
pub fn hello(server: &Server) -> Value {
    let namespaces = server.namespaces();
    let names: Vec<&str> = namespaces.iter().map(|n| n.name.as_str()).collect();
    json!({
        "program": "slo-ctl",
        "program_version": env!("CARGO_PKG_VERSION"),
        "device": server.config.name,
        "emulated": true,
        "latency": if server.time_scale.is_some() { "real" } else { "none" },
        "time_scale": server.time_scale,
        "kind": kind(server),
        "placement": server.origin.as_ref().map(ToString::to_string),
        "preconditioned": server.preconditioned(),
        "namespaces": names,
        "nvme_tcp": server.nvme_tcp.get(),
    })
}

/// Counters and space of every namespace; `brief`: only those that the controller reads in every epoch.
pub fn statistics(server: &Server, brief: bool) -> Result<Value, ServeError> {
    let ((settings, namespaces), parts) = match server.config.medium {
        Medium::Flash(_) => server.model.with(|drive| {
            // With the drive locked, so that each of these namespaces still has its tenant.
            let (settings, namespaces) = server.present();
            let parts = flash_parts(server, &namespaces, &settings, drive, brief)?;
            Ok::<_, ServeError>(((settings, namespaces), parts))
        })??,
        Medium::Disks(..) => {
            let (settings, namespaces) = server.present();
            let parts = disk_parts(server, &namespaces, &settings, brief)?;
            ((settings, namespaces), parts)
        }
    };
    let mut fields = common(server, &settings);
    extend(&mut fields, parts);
    fields["latency_bounds_us"] = json!(BOUNDS_US);
    // Not while the drive is locked, as this takes time with many namespaces.
    let throttled = server.throttled(&namespaces);
    for (number, namespace) in namespaces.iter().enumerate() {
        fields["namespaces"][number]["recent"] = server.history.of(namespace, throttled.get(number).copied());
        fields["namespaces"][number]["latency_histogram"] = namespace.histograms.to_json();
    }
    Ok(fields)
}

/// Values set by commands: the parts of `statistics` with the same names.
pub fn settings_in_force(server: &Server) -> Value {
    let (settings, namespaces) = server.present();
    let of = |namespace: &Arc<Namespace>| {
        let mut fields = json!({"name": namespace.name});
        extend(&mut fields, set_of_namespace(&settings, namespace));
        fields
    };
    let set: Vec<Value> = namespaces.iter().map(of).collect();
    json!({"scheduler": scheduler(server, &settings), "namespaces": set})
}

fn scheduler<'a>(server: &'a Server, settings: &'a Settings) -> &'a str {
    settings.scheduler.as_deref().unwrap_or(server.config.scheduler())
}

fn set_of_namespace(settings: &Settings, namespace: &Namespace) -> Value {
    let kept = settings.of(&namespace.name);
    json!({
        "weight": kept.weight.unwrap_or(namespace.origin.config.weight),
        "limit_iops": kept.limit_iops,
        "limit_bytes_s": kept.limit_bytes_s,
    })
}

fn kind(server: &Server) -> &'static str {
    match &server.config.medium {
        Medium::Flash(_) => "ssd",
        Medium::Disks(array, _) if array.disks == 1 => "disk",
        Medium::Disks(..) => "raid0",
    }
}

/// The statistics of any device.
fn common(server: &Server, settings: &Settings) -> Value {
    json!({
        "device": server.config.name,
        "kind": kind(server),
        "emulated": true,
        "latency": if server.time_scale.is_some() { "real" } else { "none" },
        "time_scale": server.time_scale,
        "nvme_tcp": server.nvme_tcp.get(),
        "punctuality": server.model.timed().map(|timed| {
            let now = timed.punctuality();
            json!({
                "lead_ns": now.lead_ns,
                "round_trip_ns": now.round_trip_ns,
                "waited": now.waited,
                "late_ns": now.late_ns,
            })
        }),
        "scheduler": scheduler(server, settings),
    })
}

fn flash_parts(
    server: &Server,
    namespaces: &[Arc<Namespace>],
    settings: &Settings,
    drive: &Drive,
    brief: bool,
) -> Result<Value, ServeError> {
    let of = |namespace: &Arc<Namespace>| -> Result<Value, ServeError> {
        let mut fields = of_namespace(server, settings, namespace, brief);
        fields["flash"] = of_flash(drive, namespace, brief)?;
        fields["space"] = of_space(drive, namespace)?;
        if let Some(queue) = server.model.queue_counters(drive, namespace.tenant) {
            fields["queue"] = of_queue(&queue);
            fields["queue"]["outstanding"] = json!(drive.outstanding(namespace.tenant)?);
            if !brief {
                fields["queue"]["latency_us"] = of_latencies(drive, namespace)?;
            }
        }
        Ok(fields)
    };
    let described: Result<Vec<Value>, ServeError> = namespaces.iter().map(of).collect();
    let (geometry, flash) = (drive.geometry(), server.config.flash()?);
    Ok(json!({
        "preconditioned": server.preconditioned(),
        "now_ns": server.time_scale.map(|_| drive.now_ns()),
        "page_bytes": geometry.page_bytes,
        "mapping": flash.mapping.kind,
        // As namespaces own them: clustered blocks count as one.
        "pages_per_block": drive.block_pages(),
        "blocks": geometry.pages() / u64::from(drive.block_pages()),
        "spare_blocks": drive.spare_blocks(),
        "moves": of_moves(namespaces, drive),
        "namespaces": described?,
    }))
}

fn disk_parts(
    server: &Server,
    namespaces: &[Arc<Namespace>],
    settings: &Settings,
    brief: bool,
) -> Result<Value, ServeError> {
    let mut described: Vec<Value> =
        namespaces.iter().map(|namespace| of_namespace(server, settings, namespace, brief)).collect();
    let clocked = server.model.with_disks(|disks| {
        for (fields, namespace) in described.iter_mut().zip(namespaces) {
            if let Ok(queue) = disks.queue_counters(namespace.tenant) {
                fields["queue"] = of_queue(queue);
                fields["queue"]["outstanding"] = json!(disks.outstanding(namespace.tenant).unwrap_or(0));
            }
        }
        let busy_ns: Vec<u64> = disks.busy_ns().collect();
        (disks.now_ns(), disks.queue_depth(), busy_ns)
    })?;
    let (now_ns, queue_depth, busy_ns) =
        clocked.map_or((None, None, None), |(now_ns, depth, busy_ns)| (Some(now_ns), Some(depth), Some(busy_ns)));
    Ok(json!({"now_ns": now_ns, "queue_depth": queue_depth, "busy_ns": busy_ns, "namespaces": described}))
}

fn of_namespace(server: &Server, settings: &Settings, namespace: &Namespace, brief: bool) -> Value {
    let mut fields = json!({"name": namespace.name, "size_bytes": namespace.size_bytes()});
    extend(&mut fields, set_of_namespace(settings, namespace));
    if !brief {
        let ailment = namespace.backing.ailment();
        extend(
            &mut fields,
            json!({
                "nsid": namespace.nsid(),
                "healthy": ailment.is_none(),
                "reason": ailment.map(|ailment| ailment.to_string()),
                "recorded": namespace.is_recorded(),
            }),
        );
    }
    // With a clock, requests are counted by the queue.
    if !brief || server.time_scale.is_none() {
        fields["answered"] = of_answered(namespace);
    }
    fields
}

fn of_answered(namespace: &Namespace) -> Value {
    let answered = |op| json!({"requests": namespace.answered.requests(op), "bytes": namespace.answered.bytes(op)});
    json!({
        "reads": answered(Op::Read),
        "writes": answered(Op::Write),
        "trims": answered(Op::Trim),
        "zeroes": answered(Op::WriteZeroes),
        "flushes": answered(Op::Flush),
    })
}

fn extend(fields: &mut Value, parts: Value) {
    if let (Some(fields), Value::Object(parts)) = (fields.as_object_mut(), parts) {
        fields.extend(parts);
    }
}

fn of_flash(drive: &Drive, namespace: &Namespace, brief: bool) -> Result<Value, ServeError> {
    let flash = drive.counters(namespace.tenant)?;
    let mut fields = json!({
        "host_page_writes": flash.host_page_writes,
        "host_page_reads": flash.host_page_reads,
        "unmapped_page_reads": flash.unmapped_page_reads,
        "gc_page_writes": flash.gc_page_writes,
        "victims": flash.victims,
        "victim_valid_pages": flash.victim_valid_pages,
    });
    if brief {
        return Ok(fields);
    }
    let merges = drive.mapping_counters(namespace.tenant)?;
    extend(
        &mut fields,
        json!({
            "rmw_page_reads": flash.rmw_page_reads,
            "trimmed_pages": flash.trimmed_pages,
            "reclaim_page_writes": flash.reclaim_page_writes,
            "erases": flash.erases,
            "switch_merges": merges.switch_merges,
            "partial_merges": merges.partial_merges,
            "full_merges": merges.full_merges,
            "merged_blocks": merges.merged_blocks,
            "switch_merge_ns": merges.switch_merge_ns,
            "partial_merge_ns": merges.partial_merge_ns,
            "full_merge_ns": merges.full_merge_ns,
            "map_reads": merges.map_reads,
            "map_writes": merges.map_writes,
            "map_ns": merges.map_ns,
        }),
    );
    Ok(fields)
}

fn of_space(drive: &Drive, namespace: &Namespace) -> Result<Value, ServeError> {
    let space = drive.space(namespace.tenant)?;
    Ok(json!({
        "logical_pages": space.logical_pages,
        "mapped_pages": space.mapped_pages,
        "logical_blocks": space.logical_blocks,
        "ops_blocks": space.ops_blocks,
        "min_ops_blocks": space.min_ops_blocks,
        "free_blocks": space.free_blocks,
        "pending_out_blocks": space.pending_out_blocks,
        "isolated": space.placement == ftl_core::Placement::Isolated,
    }))
}

fn of_moves(namespaces: &[Arc<Namespace>], drive: &Drive) -> Value {
    let name = |end: Option<TenantId>| {
        end.and_then(|tenant| namespaces.iter().find(|n| n.tenant == tenant)).map(|n| n.name.as_str())
    };
    let status = drive.move_status();
    let pending: Vec<Value> = drive
        .pending_moves()
        .into_iter()
        .map(|(from, to, blocks)| json!({"from": name(from), "to": name(to), "blocks": blocks}))
        .collect();
    json!({
        "budget": status.budget,
        "done_ns": status.done_ns,
        "owed_ns": status.owed_ns,
        "moved_blocks": status.moved_blocks,
        "pending": pending,
    })
}

fn of_queue(queue: &QueueCounters) -> Value {
    json!({
        "completed": {
            "reads": queue.completed[Op::Read as usize],
            "writes": queue.completed[Op::Write as usize],
            "trims": queue.completed[Op::Trim as usize],
            "zeroes": queue.completed[Op::WriteZeroes as usize],
            "flushes": queue.completed[Op::Flush as usize],
        },
        "read_bytes": queue.read_bytes,
        "write_bytes": queue.write_bytes,
        "device_ns": queue.device_ns,
        "gc_ns": queue.gc_ns,
        "throttled_ns": queue.throttled_ns,
        "latency_ns": queue.latency_ns,
        "backlog_ns": queue.backlog_ns,
        "queued_ns": queue.queued_ns,
    })
}

fn of_latencies(drive: &Drive, namespace: &Namespace) -> Result<Value, ServeError> {
    let latency = drive.latency(namespace.tenant)?;
    let percentiles = |histogram: &Histogram| {
        let mut values = json!({"count": histogram.len(), "mean": histogram.mean() / 1e3});
        for (name, percentile) in PERCENTILES {
            values[name] = json!(histogram.value_at_percentile(percentile) as f64 / 1e3);
        }
        values
    };
    Ok(json!({"read": percentiles(latency.reads()), "write": percentiles(latency.writes())}))
}
