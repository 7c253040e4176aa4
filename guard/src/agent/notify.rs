//! Who is told of deletions: before each a command, after each round a URL.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::act::command::{self, GivenUp, Job, Ran};
use crate::act::executor::Objection;
use crate::act::journal::{Intent, Outcome, Verdict};
use crate::act::refusal::Refused;
use crate::agent::clock::{monotonic, wall};
use crate::agent::filesystem::Filesystem;
use crate::agent::shared::Shared;
use crate::agent::stumbles;
use crate::config::{CommandConfig, CommandFailure, Config, WebhookConfig};
use crate::decide::{protection, threshold};
use crate::model::{Level, Observation, Trigger, Victim};
use crate::observe::cluster::client::node_name;
use crate::observe::cluster::watch::jittered;
use crate::observe::filesystem::observe;
use crate::report::audit::{Deletion, Event};
use crate::report::metrics::RoundOutcome;
use crate::report::record::CheckpointRecord;
use crate::report::webhook::{Dropped, Post, Posted, Poster, Round, Rounds, Told};

/// From the first try to post a round to the last wait.
const BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// A round that could not be posted for so long is dropped: a receiver that comes back wants what happens now.
const STALE: Duration = Duration::from_secs(600);
/// How often to count those that wait.
const TICK: Duration = Duration::from_secs(1);

/// Who is told, as of the start: the sandbox was made for these.
#[derive(Debug)]
pub(super) struct Notify {
    command: Option<CommandConfig>,
    rounds: Option<(WebhookConfig, Rounds)>,
    node: String,
}

impl Notify {
    pub(super) fn new(config: &Config) -> Notify {
        Notify {
            command: config.notify.command.clone(),
            rounds: config.notify.webhook.clone().map(|webhook| (webhook, Rounds::default())),
            node: node_name(config.kubernetes.node_name.as_deref()).unwrap_or_default(),
        }
    }

    /// Whether something is run before deletions.
    pub(super) fn has_command(&self) -> bool {
        self.command.is_some()
    }

    /// Waits until every round is posted, for `limit` at most; how many are not.
    pub(super) async fn finish(&self, limit: Duration) -> usize {
        let Some((_, rounds)) = &self.rounds else { return 0 };
        let posted = async {
            while rounds.waiting() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(limit, posted).await;
        rounds.waiting()
    }
}

/// Starts the thread that posts rounds, where they are to be posted.
pub(super) fn start(shared: &Arc<Shared>) {
    if shared.notify.command.is_some() {
        shared.metrics.command_begin();
    }
    let Some((webhook, rounds)) = shared.notify.rounds.clone() else { return };
    shared.metrics.webhook_begin();
    let poster = match Poster::new(&webhook) {
        Ok(poster) => {
            tracing::info!(server = webhook.shown, "posting rounds of deletions");
            Some(poster)
        }
        Err(error) => {
            tracing::error!(%error, "rounds cannot be posted; each round tries again");
            shared.metrics.webhook_failed();
            None
        }
    };
    let shared = shared.clone();
    let mut posting = Posting { shared, webhook, rounds, poster, is_at_one: false, said: String::new() };
    let spawned = std::thread::Builder::new().name("webhook".to_owned()).spawn(move || {
        stumbles::go_on("webhook", || {
            match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(posting.run()),
                Err(error) => tracing::error!(%error, "rounds are posted nowhere"),
            }
        });
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "rounds are posted nowhere: no thread for it");
    }
}

/// The thread that posts.
struct Posting {
    shared: Arc<Shared>,
    webhook: WebhookConfig,
    rounds: Rounds,
    /// `None`: the certificates are to be read, or could not be.
    poster: Option<Poster>,
    /// A round is being posted.
    is_at_one: bool,
    /// The problem that the log knows of.
    said: String,
}

impl Posting {
    /// Never ends but by a panic, after which it can be called again.
    async fn run(&mut self) {
        if std::mem::take(&mut self.is_at_one) {
            self.drop_first();
        }
        loop {
            self.count();
            match self.rounds.first() {
                Some(posted) => {
                    self.is_at_one = true;
                    self.deliver(&posted).await;
                    self.rounds.done();
                    self.is_at_one = false;
                }
                None => {
                    let _ = tokio::time::timeout(TICK, self.rounds.left()).await;
                }
            }
        }
    }

    /// Drops the round that made this panic: it might do so for ever, and the others wait behind it.
    fn drop_first(&mut self) {
        // Its connections ended with the runtime that they were made in.
        self.poster = None;
        if let Some(posted) = self.rounds.first() {
            self.rounds.done();
            self.record(&posted, RoundOutcome::Dropped, Some("a bug of the guard: posting it panicked"), 1);
        }
    }

    /// Takes note of those that were dropped, and of those that wait.
    fn count(&self) {
        if let Some(Dropped { count, first, last }) = self.rounds.newly_dropped() {
            let error = format!("too many were waiting: {count} were dropped, up to {last}");
            self.shared.metrics.webhook_rounds(RoundOutcome::Dropped, count);
            self.audit(&first, RoundOutcome::Dropped, Some(&error), 0);
        }
        self.shared.metrics.webhook_waiting(self.rounds.waiting());
    }

    async fn deliver(&mut self, posted: &Posted) {
        let began = monotonic();
        let mut wait = BACKOFF[0];
        for attempt in 1.. {
            let problem = match self.post(posted).await {
                Post::Delivered => {
                    if !std::mem::take(&mut self.said).is_empty() {
                        tracing::info!(server = self.webhook.shown, "rounds can be posted again");
                    }
                    return self.record(posted, RoundOutcome::Delivered, None, attempt);
                }
                Post::Refused(problem) => {
                    self.shared.metrics.webhook_failed();
                    self.say(&problem);
                    return self.record(posted, RoundOutcome::Refused, Some(&problem), attempt);
                }
                Post::Failed(problem) => problem,
            };
            self.shared.metrics.webhook_failed();
            self.say(&problem);
            if monotonic().since(began) > STALE {
                return self.record(posted, RoundOutcome::Dropped, Some(&problem), attempt);
            }
            self.count();
            tokio::time::sleep(jittered(wait)).await;
            wait = (wait * 2).min(BACKOFF[1]);
        }
    }

    /// Posts it once. After a failure the certificates are read anew: they may have come, or have been renewed.
    async fn post(&mut self, posted: &Posted) -> Post {
        let poster = match self.poster.take().map_or_else(|| Poster::new(&self.webhook), Ok) {
            Ok(poster) => poster,
            Err(error) => return Post::Failed(error.to_string()),
        };
        let post = poster.post(posted).await;
        if !matches!(post, Post::Failed(_)) {
            self.poster = Some(poster);
        }
        post
    }

    /// A receiver that is away for a day is one line in the log, and one when it is back.
    fn say(&mut self, problem: &str) {
        if self.said != problem {
            tracing::warn!(server = self.webhook.shown, problem, "a round could not be posted");
            self.said = problem.to_owned();
        }
    }

    fn record(&self, posted: &Posted, outcome: RoundOutcome, error: Option<&str>, attempts: u32) {
        self.shared.metrics.webhook_rounds(outcome, 1);
        self.audit(&posted.id, outcome, error, attempts);
    }

    fn audit(&self, round: &str, outcome: RoundOutcome, error: Option<&str>, attempts: u32) {
        let outcome = outcome.as_str();
        let server = &self.webhook.shown;
        self.shared.record(&Event::Webhook { server, round, outcome, error, attempts });
    }
}

/// Leaves a round for the URL, where there is one. To be called while the catalog still has what was deleted.
pub(super) fn tell(fs: &Filesystem, tried: &[(&Outcome, &Victim)], seen: Option<Observation>) {
    let Some((_, rounds)) = &fs.shared.notify.rounds else { return };
    // A dry run makes the same round every second.
    let tried: Vec<_> =
        tried.iter().filter(|(outcome, _)| !matches!(outcome.verdict, Verdict::WouldBeDeleted)).collect();
    if tried.is_empty() {
        return;
    }
    let (now, inventory, policy) = (wall(), fs.catalog.inventory(), &fs.config.policy.protection);
    let reasons: Vec<_> = tried.iter().map(|(_, victim)| victim.reason.to_string()).collect();
    let directories = fs.directory_names();
    let available = seen.map(|seen| seen.available.0);
    let mut round = Round::new(&fs.shared.notify.node, fs.label.as_str(), &directories, now, available);
    for ((outcome, victim), reason) in tried.into_iter().zip(&reasons) {
        let is_deleted = matches!(outcome.verdict, Verdict::Deleted(_));
        round.add(is_deleted, outcome.freed.bytes.0, || {
            let checkpoint = &inventory.checkpoints[outcome.index as usize];
            let protection = protection::of_readings(policy, checkpoint.identity.readings()).protection;
            let directory = inventory.directory_of(checkpoint);
            let deletion = Deletion {
                phase: "outcome",
                checkpoint: CheckpointRecord::new(checkpoint, directory, now, protection, &[]),
                trigger: victim.trigger.to_string(),
                reason,
                requested_by: None,
                outcome: Some((*outcome).into()),
            };
            Told { audit_id: outcome.id, deletion }
        });
    }
    rounds.leave(&round);
}

/// Runs the command before a deletion, where there is one; an error speaks against the deletion. `worst` is the worst level
/// that was seen in this round: what one deletion at critical gives back is not the end of it.
pub(super) fn before(fs: &Filesystem, intent: &Intent<'_>, worst: &Cell<Level>) -> Result<(), Objection> {
    let Some(config) = &fs.shared.notify.command else { return Ok(()) };
    let measured = &fs.dirs[fs.measured()];
    let is_for_room = matches!(intent.trigger, Trigger::Pressure(_));
    if let Trigger::Pressure(level) = intent.trigger {
        worst.set(worst.get().max(*level));
    }
    let mut give_up = || {
        // The loop does not turn meanwhile, and is well.
        fs.shared.health.beat(&fs.label, monotonic());
        if fs.shared.stop.load(Ordering::Relaxed) {
            return Some(GivenUp::Stopping);
        }
        if let Ok(seen) = observe(measured) {
            worst.set(worst.get().max(threshold::level_of(&fs.thresholds, &seen)));
        }
        match worst.get() {
            Level::Hard | Level::Critical if !is_for_room => Some(GivenUp::Pressed),
            Level::Critical => Some(GivenUp::Critical),
            _ => None,
        }
    };
    let mut record = |ran: &Ran, took, event: &Event<'_>| {
        fs.shared.metrics.command_ran(ran.label(), took);
        fs.shared.record(event);
    };
    run_before(config, intent, &mut give_up, &mut record)
}

/// Runs the command before a deletion; an error speaks against the deletion. `record` is told how it went.
///
/// # Errors
/// The command failed, and a checkpoint whose command fails is to be spared; or something more urgent ended it.
pub fn run_before(
    config: &CommandConfig,
    intent: &Intent<'_>,
    give_up: &mut dyn FnMut() -> Option<GivenUp>,
    record: &mut dyn FnMut(&Ran, Duration, &Event<'_>),
) -> Result<(), Objection> {
    let began = monotonic();
    let ran = command::run(&job(intent), config.timeout, &monotonic, give_up);
    let took = monotonic().since(began);
    let (name, problem) = (intent.checkpoint.display_name(), ran.problem());
    let directory = intent.directory.display().to_string();
    match &problem {
        None => tracing::info!(directory, %name, ?took, "the command before the deletion is done"),
        Some(problem) => {
            tracing::warn!(directory, %name, problem, "the command before the deletion did not succeed")
        }
    }
    let event = Event::Command {
        directory: &directory,
        name: &name,
        outcome: ran.label(),
        error: problem.as_deref(),
        took_millis: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    };
    record(&ran, took, &event);
    match (ran, problem) {
        (Ran::Failed(_) | Ran::TimedOut(_), Some(problem)) if config.failure == CommandFailure::Spare => {
            Err(Objection::Spare(Refused::CommandFailed(problem)))
        }
        (Ran::GivenUp(GivenUp::Pressed | GivenUp::Stopping), _) => Err(Objection::Stop),
        _ => Ok(()),
    }
}

fn job(intent: &Intent<'_>) -> Job {
    let path = intent.directory.join(&*intent.checkpoint.name).into_os_string();
    let record = CheckpointRecord::new(intent.checkpoint, intent.directory, wall(), intent.protection, &[]);
    let record = serde_json::to_string(&record).expect("texts and numbers are JSON");
    Job { path, trigger: intent.trigger.to_string(), record }
}
