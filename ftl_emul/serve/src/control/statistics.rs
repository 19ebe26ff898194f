//! What the control socket tells.

use ftl_core::{Drive, Op};
use serde_json::{Value, json};

use crate::error::ServeError;
use crate::namespace::Namespace;
use crate::server::Server;
use crate::settings::Settings;

const PERCENTILES: [(&str, f64); 3] = [("p50", 50.0), ("p99", 99.0), ("p999", 99.9)];

/// What is served, and by which program.
pub fn hello(server: &Server) -> Value {
    let names: Vec<&str> = server.namespaces.iter().map(|n| n.name.as_str()).collect();
    json!({
        "program": "slo-ctl",
        "program_version": env!("CARGO_PKG_VERSION"),
        "device": server.config.name,
        "emulated": true,
        "latency": if server.time_scale.is_some() { "real" } else { "none" },
        "time_scale": server.time_scale,
        "placement": server.origin.to_string(),
        "aged": server.aged(),
        "namespaces": names,
    })
}

/// Counters and space of every namespace.
pub fn statistics(server: &Server) -> Result<Value, ServeError> {
    // Before the drive: those who change settings take the two in this order.
    let (settings, aged) = (server.settings().clone(), server.aged());
    let mut told = server.flash.with(|drive| {
        let namespaces: Result<Vec<Value>, ServeError> =
            server.namespaces.iter().map(|namespace| of_namespace(server, &settings, drive, namespace)).collect();
        let geometry = drive.geometry();
        Ok::<_, ServeError>(json!({
            "device": server.config.name,
            "emulated": true,
            "latency": if server.time_scale.is_some() { "real" } else { "none" },
            "time_scale": server.time_scale,
            "punctuality": server.flash.timed().map(|timed| {
                let now = timed.punctuality();
                json!({
                    "lead_ns": now.lead_ns,
                    "round_trip_ns": now.round_trip_ns,
                    "waited": now.waited,
                    "late_ns": now.late_ns,
                })
            }),
            "aged": aged,
            "scheduler": settings.scheduler.as_ref().unwrap_or(&server.config.mapping.scheduler),
            "now_ns": server.time_scale.map(|_| drive.now_ns()),
            "page_bytes": geometry.page_bytes,
            "pages_per_block": geometry.pages_per_block,
            "blocks": geometry.blocks(),
            "spare_blocks": drive.spare_blocks(),
            "namespaces": namespaces?,
        }))
    })??;
    // Not while the drive is held, as this takes a while where there are many namespaces.
    let throttled = server.throttled();
    for (number, namespace) in server.namespaces.iter().enumerate() {
        told["namespaces"][number]["recent"] =
            server.history.of(number, &namespace.latencies, throttled.get(number).copied());
    }
    Ok(told)
}

fn of_namespace(
    server: &Server,
    settings: &Settings,
    drive: &Drive,
    namespace: &Namespace,
) -> Result<Value, ServeError> {
    let (flash, space) = (drive.counters(namespace.tenant)?, drive.space(namespace.tenant)?);
    let (kept, ailment) = (settings.of(&namespace.name), namespace.backing.ailment());
    let given = server.config.namespaces.iter().find(|n| n.name == namespace.name);
    let answered = |op| json!({"requests": namespace.answered.requests(op), "bytes": namespace.answered.bytes(op)});
    let mut told = json!({
        "name": namespace.name,
        "size_bytes": namespace.size_bytes(),
        "healthy": ailment.is_none(),
        "reason": ailment.map(|ailment| ailment.to_string()),
        "weight": kept.weight.or(given.map(|g| g.weight)),
        "limit_iops": kept.limit_iops,
        "limit_bytes_s": kept.limit_bytes_s,
        "answered": {
            "reads": answered(Op::Read),
            "writes": answered(Op::Write),
            "trims": answered(Op::Trim),
            "zeroes": answered(Op::WriteZeroes),
            "flushes": answered(Op::Flush),
        },
        "flash": {
            "host_page_writes": flash.host_page_writes,
            "host_page_reads": flash.host_page_reads,
            "unmapped_page_reads": flash.unmapped_page_reads,
            "rmw_page_reads": flash.rmw_page_reads,
            "trimmed_pages": flash.trimmed_pages,
            "gc_page_writes": flash.gc_page_writes,
            "reclaim_page_writes": flash.reclaim_page_writes,
            "victims": flash.victims,
            "victim_valid_pages": flash.victim_valid_pages,
            "erases": flash.erases,
            "moved_pages_of": flash.moved_pages_of,
        },
        "space": {
            "logical_pages": space.logical_pages,
            "mapped_pages": space.mapped_pages,
            "logical_blocks": space.logical_blocks,
            "ops_blocks": space.ops_blocks,
            "min_ops_blocks": space.min_ops_blocks,
            "free_blocks": space.free_blocks,
            "pending_out_blocks": space.pending_out_blocks,
            "isolated": space.placement == ftl_core::Placement::Isolated,
        },
    });
    if let Some(queue) = server.flash.queue_counters(drive, namespace.tenant) {
        let latency = drive.latency(namespace.tenant)?;
        let percentiles = |histogram: &ftl_core::engine::Histogram| {
            let mut values = json!({"count": histogram.len(), "mean": histogram.mean() / 1e3});
            for (name, percentile) in PERCENTILES {
                values[name] = json!(histogram.value_at_percentile(percentile) as f64 / 1e3);
            }
            values
        };
        told["queue"] = json!({
            "completed": {
                "reads": queue.completed[Op::Read as usize],
                "writes": queue.completed[Op::Write as usize],
                "trims": queue.completed[Op::Trim as usize],
                "zeroes": queue.completed[Op::WriteZeroes as usize],
                "flushes": queue.completed[Op::Flush as usize],
            },
            "outstanding": drive.outstanding(namespace.tenant)?,
            "read_bytes": queue.read_bytes,
            "write_bytes": queue.write_bytes,
            "device_ns": queue.device_ns,
            "gc_ns": queue.gc_ns,
            "throttled_ns": queue.throttled_ns,
            "latency_ns": queue.latency_ns,
            "backlog_ns": queue.backlog_ns,
            "latency_us": {"read": percentiles(latency.reads()), "write": percentiles(latency.writes())},
        });
    }
    Ok(told)
}
