//! Looking a pod up that no watch tells of: its checkpoint is here and it is not, or not any more.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};

use super::Trouble;
use super::knowledge::uids_of;
use crate::model::{Allowance, LookUp, Monotonic, PodName};

/// One look-up after the other, this far apart at least: a node whose thousand pods have left is through in an hour, and a
/// fleet of 15,000 such nodes asks no more than 5,000 times a second in the worst of cases.
pub const EVERY: Duration = Duration::from_secs(3);
/// The first ones go at once.
pub const BURST: u32 = 20;
/// A pod that was looked up is not looked up again sooner, whatever its checkpoints say of their age.
const AGAIN: Duration = Duration::from_secs(600);
const LIMIT: Duration = Duration::from_secs(10);

/// Which pods are to be looked up, and when the next may be.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: VecDeque<PodName>,
    asked: HashMap<PodName, Monotonic>,
    allowance: Allowance,
}

impl Queue {
    /// What is wanted now, in place of what was wanted before.
    pub fn want(&mut self, pods: Vec<PodName>, now: Monotonic) {
        self.asked.retain(|_, asked| now.since(*asked) < AGAIN);
        self.waiting = pods.into_iter().filter(|pod| !self.asked.contains_key(pod)).collect();
    }

    /// The next one, if it may be now.
    pub fn next(&mut self, now: Monotonic) -> Option<PodName> {
        if !self.allowance.is_left(now, EVERY, BURST) {
            return None;
        }
        let pod = self.waiting.pop_front()?;
        self.allowance.spend();
        self.asked.insert(pod.clone(), now);
        Some(pod)
    }

    /// A look-up has failed: it may be tried again.
    pub fn failed(&mut self, pod: &PodName) {
        self.asked.remove(pod);
    }
}

/// Asks for a pod, not from the server's cache: only what etcd has not is not there.
///
/// # Errors
/// No answer, or another than yes and no: then nothing is known.
pub async fn look_up(client: &Client, pod: &PodName, at: Timestamp) -> Result<LookUp, Trouble> {
    let what = "get pods";
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let found = tokio::time::timeout(LIMIT, api.get_metadata_opt(&pod.pod)).await;
    let found = found.map_err(|_| Trouble::timeout(what, LIMIT))?;
    let found = found.map_err(|error| Trouble::new(what, &error))?;
    Ok(LookUp { at, found: found.map(|pod| uids_of(&pod.metadata)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Duration::from_secs(seconds))
    }

    fn pods(count: u32) -> Vec<PodName> {
        (0..count).map(|n| PodName { namespace: "a".into(), pod: format!("p-{n}").into() }).collect()
    }

    fn drain(queue: &mut Queue, now: Monotonic) -> usize {
        std::iter::from_fn(|| queue.next(now)).count()
    }

    #[test]
    fn a_thousand_unknown_pods_are_looked_up_a_few_at_a_time() {
        let mut queue = Queue::default();
        queue.want(pods(1000), at(1000));
        assert_eq!(drain(&mut queue, at(1000)), BURST as usize);
        assert_eq!(drain(&mut queue, at(1001)), 0);
        assert_eq!(drain(&mut queue, at(1003)), 1);
        assert_eq!(drain(&mut queue, at(1033)), 10);
    }

    #[test]
    fn one_that_was_asked_for_is_not_asked_for_again_before_long() {
        let mut queue = Queue::default();
        queue.want(pods(1), at(1000));
        let pod = queue.next(at(1000)).unwrap();
        queue.want(pods(1), at(1010));
        assert_eq!(queue.next(at(1010)), None);
        queue.failed(&pod);
        queue.want(pods(1), at(1020));
        assert_eq!(drain(&mut queue, at(1020)), 1);
        queue.want(pods(1), at(1700));
        assert_eq!(drain(&mut queue, at(1700)), 1);
    }
}
