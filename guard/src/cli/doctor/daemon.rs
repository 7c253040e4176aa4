//! Whether the daemon is running, and as what.

use super::report::{Check, Section};
use crate::config::Config;
use crate::observe::host::process::Process;
use crate::report::socket::{Client, ClientError, Reply, Request};

/// What answers at the socket.
#[derive(Debug)]
pub(super) struct Found {
    answer: Option<Result<Reply, ClientError>>,
    /// The daemon's, when it could be looked at; its rights are what counts, not those of this command.
    process: Option<(i32, Process)>,
}

impl Found {
    /// Asks at the configured socket.
    pub(super) fn look(config: Option<&Config>) -> Found {
        let Some(path) = config.and_then(|config| config.socket.path.as_deref()) else {
            return Found { answer: None, process: None };
        };
        let mut pid = None;
        let answer = Client::send(path, &Request::Daemon).and_then(|mut client| {
            pid = client.daemon_pid();
            client.reply()?.ok_or_else(|| client.ended())
        });
        let process = pid.and_then(|pid| Some((pid, Process::of(Some(pid)).ok()?)));
        Found { answer: Some(answer), process }
    }

    /// The running daemon's pid and rights.
    pub(super) fn process(&self) -> Option<(i32, Process)> {
        self.process
    }

    /// What there is to say about it.
    pub(super) fn section(&self) -> Section {
        let checks = match &self.answer {
            None => vec![Check::note(
                "socket",
                "[socket] path = \"off\": whether it is running cannot be told from here",
            )],
            Some(Err(error)) if error.is_not_running() => {
                vec![
                    Check::note("running", "no")
                        .advising("checkpoint-guard run, or systemctl start checkpoint-guard"),
                ]
            }
            Some(Err(error)) => vec![Check::degraded(
                "running",
                error.to_string(),
                "run this as root, where the daemon runs (kubectl exec into its pod)",
            )],
            Some(Ok(reply)) => self.running(reply),
        };
        Section { name: "daemon", checks }
    }

    fn running(&self, reply: &Reply) -> Vec<Check> {
        let Reply::Daemon { version, pool, dry_run, backend, .. } = reply else {
            return vec![Check::degraded(
                "running",
                "it answers something else",
                "is another program at the socket?",
            )];
        };
        let pid = self.process.map_or(String::new(), |(pid, _)| format!(", pid {pid}"));
        let running = format!("version {version}{pid}, pool {}", pool.as_deref().unwrap_or("none"));
        let mut checks = vec![if version == env!("CARGO_PKG_VERSION") {
            Check::ok("running", running)
        } else {
            let this = env!("CARGO_PKG_VERSION");
            Check::degraded("running", running, format!("this command is version {this}; restart the daemon"))
        }];
        if *dry_run {
            checks.push(Check::note("dry run", "it deletes nothing"));
        }
        checks.push(match backend.as_str() {
            "inotify" => {
                Check::note("backend", "inotify: it sees that something is written, not how much nor by whom")
                    .advising("see BACKENDS below")
            }
            backend => Check::ok("backend", backend),
        });
        checks
    }
}
