//! Commands and replies of the control socket, version 1.

use ftl_core::engine::Limit;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::control::statistics;
use crate::error::{ServeError, refuse};
use crate::recording::Recorder;
use crate::server::{Server, Wanted};

/// The version of commands and replies.
pub const VERSION: u32 = 1;

/// Fields of every command.
#[derive(Deserialize)]
struct Envelope {
    v: u32,
    /// Echoed in the reply.
    #[serde(default)]
    id: Option<u64>,
    #[serde(flatten)]
    command: Value,
}

/// While the device is served only the owner of the server and root may do more than `hello`, `stats` and `settings`.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Command {
    /// The served device, and the version of the server.
    Hello {},
    /// Counters and space of every namespace; `brief`: only those that the controller reads in every epoch.
    Stats {
        #[serde(default)]
        brief: bool,
    },
    /// Weight and limits in force of every namespace, and the scheduler: the part of `stats` that commands set.
    Settings {},
    /// Move OPS blocks; an end that is absent or null is the spare of the device.
    Move {
        #[serde(default)]
        from: Option<String>,
        #[serde(default)]
        to: Option<String>,
        blocks: u64,
    },
    /// Cancel the blocks that were not moved yet.
    CancelMoves {},
    /// Share of the device's time that moves may take while requests are outstanding.
    SetMoveBudget { share: f64 },
    /// Share of the time of each die.
    SetWeight { namespace: String, weight: f64 },
    /// The tenant scheduler.
    SetScheduler { scheduler: String },
    /// Limits; absent or null: unlimited.
    SetLimit {
        namespace: String,
        #[serde(default)]
        iops: Option<f64>,
        #[serde(default)]
        bytes_s: Option<f64>,
    },
    /// Change the size of a namespace; with `keep_data`, refuse a size that would lose data.
    Resize {
        namespace: String,
        size_bytes: u64,
        #[serde(default)]
        keep_data: bool,
    },
    /// Create a namespace; its OPS are its part of the spare blocks, by size, where they are not given.
    CreateNamespace {
        name: String,
        size_bytes: u64,
        #[serde(default)]
        weight: Option<f64>,
        #[serde(default)]
        ops_blocks: Option<u64>,
    },
    /// Delete a namespace and its data.
    DeleteNamespace { namespace: String },
    /// Bring the placement to its steady state; not while the device is served.
    Precondition {},
    /// Write the placement to disk now.
    Checkpoint {},
    /// Record the requests of these namespaces, or of all, until `recording_stop` or the end of the connection.
    RecordingStart {
        #[serde(default)]
        namespaces: Option<Vec<String>>,
    },
    /// The recorded requests that were not fetched yet.
    RecordingFetch {},
    /// Record no further request.
    RecordingStop {},
}

#[derive(Serialize)]
struct Failure<'a> {
    v: u32,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    error: Reason<'a>,
}

#[derive(Serialize)]
struct Reason<'a> {
    code: &'a str,
    message: &'a str,
}

/// The reply for a refusal.
pub fn failure(id: Option<u64>, code: &str, message: &str) -> Vec<u8> {
    line(&Failure { v: VERSION, ok: false, id, error: Reason { code, message } })
}

fn line(reply: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(reply).unwrap_or_else(|_| b"{\"v\":1,\"ok\":false}".to_vec());
    bytes.push(b'\n');
    bytes
}

/// State of one connection, which ends with it.
#[derive(Debug)]
pub struct Session {
    /// The client is root or the owner of the server.
    is_owner: bool,
    recorder: Option<Recorder>,
}

/// The reply to one line.
pub fn answer(server: &Server, session: &mut Session, command: &[u8]) -> Vec<u8> {
    reply_to(command, |command| match command {
        Command::Hello {} | Command::Stats { .. } | Command::Settings {} => carry_out(server, command),
        _ if !session.is_owner => {
            refuse("only root and the owner of the server may change the device or record its requests")
        }
        Command::RecordingStart { namespaces } => {
            if session.recorder.is_some() {
                return refuse("this connection is already recording");
            }
            Ok(session.recorder.insert(server.record(namespaces.as_deref())?).describe())
        }
        Command::RecordingFetch {} => Ok(session.recording()?.fetch()),
        Command::RecordingStop {} => {
            session.recording()?.stop();
            Ok(json!({}))
        }
        command => carry_out(server, command),
    })
}

impl Session {
    /// Whether the client is root or the owner of the server.
    #[must_use]
    pub fn new(is_owner: bool) -> Self {
        Self { is_owner, recorder: None }
    }

    fn recording(&self) -> Result<&Recorder, ServeError> {
        match &self.recorder {
            Some(recorder) => Ok(recorder),
            None => refuse("this connection is not recording; send recording_start first"),
        }
    }
}

/// The reply to one line for a device that is not served; `progress` is given the capacities written by preconditioning.
pub fn answer_offline(server: &Server, command: &[u8], progress: impl FnMut(f64) -> bool) -> Vec<u8> {
    reply_to(command, |command| match command {
        Command::Precondition {} => {
            let preconditioned = server.precondition(progress)?;
            server.stop()?;
            Ok(json!({ "preconditioned": preconditioned }))
        }
        command => {
            let reply = carry_out(server, command)?;
            server.stop()?;
            Ok(reply)
        }
    })
}

fn reply_to(line_given: &[u8], carry_out: impl FnOnce(Command) -> Result<Value, ServeError>) -> Vec<u8> {
    match parse(line_given) {
        Err((id, code, message)) => failure(id, code, &message),
        Ok((id, command)) => match carry_out(command) {
            Ok(mut reply) => {
                reply["v"] = json!(VERSION);
                reply["ok"] = json!(true);
                if let Some(id) = id {
                    reply["id"] = json!(id);
                }
                line(&reply)
            }
            Err(e) => failure(id, code_of(&e), &e.to_string()),
        },
    }
}

fn code_of(error: &ServeError) -> &'static str {
    match error {
        ServeError::Refused(_) | ServeError::Drive(_) => "refused",
        ServeError::File(_) => "system",
    }
}

type Misread = (Option<u64>, &'static str, String);

fn parse(line: &[u8]) -> Result<(Option<u64>, Command), Misread> {
    let envelope: Envelope = serde_json::from_slice(line)
        .map_err(|e| (None, "malformed", format!("not a command such as {{\"v\":1,\"op\":\"stats\"}}: {e}")))?;
    let Envelope { v, id, command } = envelope;
    if v != VERSION {
        return Err((id, "version", format!("version {v} is not supported; use version {VERSION}")));
    }
    let command = serde_json::from_value(command).map_err(|e| (id, "malformed", e.to_string()))?;
    Ok((id, command))
}

fn carry_out(server: &Server, command: Command) -> Result<Value, ServeError> {
    match command {
        Command::Hello {} => return Ok(statistics::hello(server)),
        Command::Stats { brief } => return statistics::statistics(server, brief),
        Command::Settings {} => return Ok(statistics::settings_in_force(server)),
        Command::Move { from, to, blocks } => {
            let end = |name: Option<&String>| name.map(|name| server.require(name)).transpose();
            server.move_ops(end(from.as_ref())?.as_deref(), end(to.as_ref())?.as_deref(), blocks)?;
        }
        Command::CancelMoves {} => server.cancel_moves()?,
        Command::SetMoveBudget { share } => server.set_move_budget(share)?,
        Command::SetWeight { namespace, weight } => server.set_weight(&*server.require(&namespace)?, weight)?,
        Command::SetScheduler { scheduler } => server.set_scheduler(&scheduler)?,
        Command::SetLimit { namespace, iops, bytes_s } => {
            server.set_limit(&*server.require(&namespace)?, Limit { iops, bytes_s })?;
        }
        Command::Resize { namespace, size_bytes, keep_data } => {
            server.resize(&*server.require(&namespace)?, size_bytes, keep_data)?;
        }
        Command::CreateNamespace { name, size_bytes, weight, ops_blocks } => {
            let wanted = Wanted { name: Some(name), size_bytes, weight, ops_blocks, ..Wanted::default() };
            let made = server.create_namespace(wanted)?;
            let ops_blocks = server.settings().of(&made.name).ops_blocks;
            return Ok(json!({"nsid": made.nsid(), "ops_blocks": ops_blocks.unwrap_or(made.origin.config.ops_blocks)}));
        }
        Command::DeleteNamespace { namespace } => server.delete_namespace(&server.require(&namespace)?)?,
        Command::Precondition {} => {
            return refuse("a device cannot be preconditioned while it is served; stop serving it first");
        }
        Command::Checkpoint {} => server.checkpoint(false)?,
        Command::RecordingStart { .. } | Command::RecordingFetch {} | Command::RecordingStop {} => {
            return refuse("there are no requests to record while the device is not served");
        }
    }
    Ok(json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(line: &str) -> &'static str {
        parse(line.as_bytes()).unwrap_err().1
    }

    #[test]
    fn commands_are_parsed() {
        let (id, command) = parse(br#"{"v":1,"id":7,"op":"move","from":"vm1","blocks":3}"#).unwrap();
        assert_eq!(id, Some(7));
        assert_eq!(command, Command::Move { from: Some("vm1".into()), to: None, blocks: 3 });
        assert_eq!(parse(br#"{"v":1,"op":"stats"}"#).unwrap().1, Command::Stats { brief: false });
        assert_eq!(parse(br#"{"v":1,"op":"stats","brief":true}"#).unwrap().1, Command::Stats { brief: true });
        assert_eq!(parse(br#"{"v":1,"op":"settings"}"#).unwrap().1, Command::Settings {});
    }

    #[test]
    fn invalid_commands_are_refused() {
        assert_eq!(refused("{}"), "malformed");
        assert_eq!(refused("[1]"), "malformed");
        assert_eq!(refused(r#"{"v":2,"op":"stats"}"#), "version");
        assert_eq!(refused(r#"{"v":1,"op":"format"}"#), "malformed");
        assert_eq!(refused(r#"{"v":1,"op":"stats","surplus":1}"#), "malformed");
        assert_eq!(refused(r#"{"v":1,"op":"move","blocks":-1}"#), "malformed");
        assert_eq!(refused(r#"{"v":1,"op":"set_weight","namespace":"a"}"#), "malformed");
        assert_eq!(refused(r#"{"v":1,"op":"set_scheduler"}"#), "malformed");
        assert_eq!(refused(&format!("{}{}", "[".repeat(5000), "]".repeat(5000))), "malformed");
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _either = parse(&bytes);
        }
    }
}
