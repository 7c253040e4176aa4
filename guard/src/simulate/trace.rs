//! Traces: what happens to nodes, one JSON object a line.
//!
//! ```text
//! {"kind":"Node","name":"n0","capacityBytes":107374182400}
//! {"kind":"Arrival","atSeconds":60,"namespace":"shop","pod":"web-0","container":"app","sizeBytes":524288000}
//! {"kind":"ForeignGrowth","atSeconds":90,"bytes":1048576}
//! {"kind":"Restore","atSeconds":4000,"namespace":"shop","pod":"web-0","container":"app","back":0,"value":1}
//! {"kind":"PodGone","atSeconds":5000,"namespace":"shop","pod":"web-0"}
//! ```
//!
//! A `Node` line begins a node, and the lines after it happen to that node, in time order. `ForeignGrowth` may be
//! negative. A `Restore` wants the checkpoint that was the newest of the container then (`back` 0, the default), or the
//! one before it (1), and so on; what it is worth is its `value` (1 by default).

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{Bytes, Owner};

/// What happens to one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The node's name.
    pub node: String,
    /// The size of its filesystem.
    pub capacity: Bytes,
    /// The containers that [`What`] refers to.
    pub owners: Vec<Owner>,
    /// In time order.
    pub events: Vec<Event>,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Since the beginning of the trace.
    pub at: Duration,
    /// What.
    pub what: What,
}

/// What happens; `owner` is an index into [`Trace::owners`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A checkpoint is complete.
    Arrival {
        /// Of whom.
        owner: u32,
        /// How large.
        size: Bytes,
    },
    /// Something else on the filesystem grew, or shrank.
    ForeignGrowth {
        /// By so much.
        bytes: i64,
    },
    /// Somebody wants a checkpoint back.
    Restore {
        /// Whose.
        owner: u32,
        /// How many before the newest.
        back: u32,
        /// What it is worth.
        value: u32,
    },
    /// The pod is gone: its checkpoints are orphans.
    PodGone {
        /// One container of the pod.
        owner: u32,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all_fields = "camelCase", deny_unknown_fields)]
enum Line {
    Node {
        name: String,
        capacity_bytes: u64,
    },
    Arrival {
        at_seconds: f64,
        namespace: String,
        pod: String,
        container: String,
        size_bytes: u64,
    },
    ForeignGrowth {
        at_seconds: f64,
        bytes: i64,
    },
    Restore {
        at_seconds: f64,
        namespace: String,
        pod: String,
        container: String,
        #[serde(default)]
        back: u32,
        #[serde(default = "one")]
        value: u32,
    },
    PodGone {
        at_seconds: f64,
        namespace: String,
        pod: String,
    },
}

fn one() -> u32 {
    1
}

/// Why a trace cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("cannot read line {line} of the trace")]
    Read {
        /// Which line, from 1.
        line: usize,
        /// Why.
        source: std::io::Error,
    },
    /// A line is none of the known objects.
    #[error(
        "line {line} of the trace is no event; Node, Arrival, ForeignGrowth, Restore and PodGone are known"
    )]
    Malformed {
        /// Which line, from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// Something happens before there is a node.
    #[error("line {line} of the trace comes before any node; begin with {{\"kind\":\"Node\",…}}")]
    NoNode {
        /// Which line, from 1.
        line: usize,
    },
    /// A time that is none, or before that of the line before.
    #[error("line {line} of the trace: atSeconds is {at}; write seconds since the beginning, never falling")]
    Time {
        /// Which line, from 1.
        line: usize,
        /// What was written.
        at: f64,
    },
}

/// Reads every node of a trace. Blank lines are skipped.
pub fn read(input: impl BufRead) -> Result<Vec<Trace>, TraceError> {
    let mut traces: Vec<Reader> = Vec::new();
    for (line, text) in (1..).zip(input.lines()) {
        let text = text.map_err(|source| TraceError::Read { line, source })?;
        if text.trim().is_empty() {
            continue;
        }
        let parsed = serde_json::from_str(&text).map_err(|source| TraceError::Malformed { line, source })?;
        match (parsed, traces.last_mut()) {
            (Line::Node { name, capacity_bytes }, _) => traces.push(Reader::new(name, Bytes(capacity_bytes))),
            (_, None) => return Err(TraceError::NoNode { line }),
            (parsed, Some(reader)) => reader.take(parsed, line)?,
        }
    }
    Ok(traces.into_iter().map(|reader| reader.trace).collect())
}

struct Reader {
    trace: Trace,
    owners: HashMap<Owner, u32>,
}

impl Reader {
    fn new(node: String, capacity: Bytes) -> Reader {
        Reader { trace: Trace { node, capacity, ..Trace::default() }, owners: HashMap::new() }
    }

    fn take(&mut self, line: Line, number: usize) -> Result<(), TraceError> {
        let (at, what) = match line {
            Line::Node { .. } => return Ok(()),
            Line::Arrival { at_seconds, namespace, pod, container, size_bytes } => {
                let owner = self.owner(Owner::new(&namespace, &pod, &container));
                (at_seconds, What::Arrival { owner, size: Bytes(size_bytes) })
            }
            Line::ForeignGrowth { at_seconds, bytes } => (at_seconds, What::ForeignGrowth { bytes }),
            Line::Restore { at_seconds, namespace, pod, container, back, value } => {
                let owner = self.owner(Owner::new(&namespace, &pod, &container));
                (at_seconds, What::Restore { owner, back, value })
            }
            Line::PodGone { at_seconds, namespace, pod } => {
                let owner =
                    Owner { namespace: Some(namespace.into()), pod: Some(pod.into()), container: None };
                (at_seconds, What::PodGone { owner: self.owner(owner) })
            }
        };
        let time = Duration::try_from_secs_f64(at).map_err(|_| TraceError::Time { line: number, at })?;
        if self.trace.events.last().is_some_and(|last| last.at > time) {
            return Err(TraceError::Time { line: number, at });
        }
        self.trace.events.push(Event { at: time, what });
        Ok(())
    }

    /// Its index. Strings are shared, so that the census recognises them by address.
    fn owner(&mut self, owner: Owner) -> u32 {
        let next = self.trace.owners.len() as u32;
        *self.owners.entry(owner).or_insert_with_key(|owner| {
            self.trace.owners.push(owner.clone());
            next
        })
    }
}

/// Writes one node of a trace.
pub fn write(trace: &Trace, output: &mut impl Write) -> std::io::Result<()> {
    let mut put = |line: &Line| {
        serde_json::to_writer(&mut *output, line)?;
        output.write_all(b"\n")
    };
    put(&Line::Node { name: trace.node.clone(), capacity_bytes: trace.capacity.0 })?;
    for Event { at, what } in &trace.events {
        let at_seconds = at.as_secs_f64();
        let names = |owner: &u32| {
            let owner = &trace.owners[*owner as usize];
            let text = |part: &Option<std::sync::Arc<str>>| part.as_deref().unwrap_or_default().to_owned();
            (text(&owner.namespace), text(&owner.pod), text(&owner.container))
        };
        put(&match what {
            What::Arrival { owner, size } => {
                let (namespace, pod, container) = names(owner);
                Line::Arrival { at_seconds, namespace, pod, container, size_bytes: size.0 }
            }
            What::ForeignGrowth { bytes } => Line::ForeignGrowth { at_seconds, bytes: *bytes },
            What::Restore { owner, back, value } => {
                let (namespace, pod, container) = names(owner);
                Line::Restore { at_seconds, namespace, pod, container, back: *back, value: *value }
            }
            What::PodGone { owner } => {
                let (namespace, pod, _) = names(owner);
                Line::PodGone { at_seconds, namespace, pod }
            }
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"kind":"Node","name":"n0","capacityBytes":1000}
{"kind":"Arrival","atSeconds":60.0,"namespace":"shop","pod":"web-0","container":"app","sizeBytes":500}
{"kind":"ForeignGrowth","atSeconds":90.0,"bytes":-7}
{"kind":"Restore","atSeconds":90.5,"namespace":"shop","pod":"web-0","container":"app","back":1,"value":3}
{"kind":"PodGone","atSeconds":91.0,"namespace":"shop","pod":"web-0"}
{"kind":"Node","name":"n1","capacityBytes":2000}
"#;

    #[test]
    fn a_trace_is_read_as_it_is_written() {
        let traces = read(TRACE.as_bytes()).unwrap();
        assert_eq!((traces.len(), traces[0].events.len(), traces[0].owners.len()), (2, 4, 2));
        let mut written = Vec::new();
        for trace in &traces {
            write(trace, &mut written).unwrap();
        }
        assert_eq!(String::from_utf8(written).unwrap(), TRACE);
    }

    #[track_caller]
    fn refuse(text: &str, message: &str) {
        let error = read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        let node = r#"{"kind":"Node","name":"n0","capacityBytes":1000}"#;
        refuse(
            r#"{"kind":"ForeignGrowth","atSeconds":1,"bytes":1}"#,
            "line 1 of the trace comes before any node",
        );
        refuse(&format!("{node}\n\n{{\"kind\":\"Departure\"}}"), "line 3 of the trace is no event");
        refuse(
            &format!("{node}\n{{\"kind\":\"ForeignGrowth\",\"atSeconds\":-1,\"bytes\":1}}"),
            "never falling",
        );
        let falling = r#"{"kind":"ForeignGrowth","atSeconds":2,"bytes":1}
{"kind":"ForeignGrowth","atSeconds":1,"bytes":1}"#;
        refuse(&format!("{node}\n{falling}"), "line 3 of the trace: atSeconds is 1");
    }
}
