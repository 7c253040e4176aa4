//! Fleets: traces made from a few words and a seed. Equal words and seeds give equal traces, on every machine.

use std::time::Duration;

use crate::model::{Bytes, Owner};
use crate::simulate::trace::{Event, Trace, What};

/// What a kind of node is like.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    capacity: Bytes,
    groups: &'static [Group],
    /// What else grows there within a day, in thousandths of the capacity.
    foreign_per_day: u64,
}

/// Containers that are checkpointed alike.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// The namespace; `#` is replaced by a number when there are several.
    namespace: &'static str,
    namespaces: u32,
    pods: u32,
    minutes_between: u64,
    /// So many checkpoints of a container come together, a minute apart.
    burst: u32,
    /// Smallest and largest.
    mib: (u64, u64),
    /// Of a hundred checkpoints so many are followed by a restore.
    restores_percent: u64,
    /// What a restore is worth.
    worth: u32,
    /// Whether its pods end after their burst, as those of CI jobs do.
    ends: bool,
}

const QUIET: Group = Group {
    namespace: "shop-#",
    namespaces: 5,
    pods: 4,
    minutes_between: 360,
    burst: 1,
    mib: (200, 1000),
    restores_percent: 20,
    worth: 10,
    ends: false,
};

/// Every fleet.
pub const FLEETS: [Fleet; 6] = [
    Fleet {
        name: "steady",
        about: "twenty services, each checkpointed four times a day",
        capacity: Bytes::gib(100),
        groups: &[QUIET],
        foreign_per_day: 0,
    },
    Fleet {
        name: "ci-bursts",
        about: "services beside CI jobs that checkpoint in bursts and end",
        capacity: Bytes::gib(100),
        groups: &[
            QUIET,
            Group {
                namespace: "ci-#",
                namespaces: 3,
                pods: 2,
                minutes_between: 240,
                burst: 12,
                mib: (100, 600),
                restores_percent: 2,
                worth: 1,
                ends: true,
            },
        ],
        foreign_per_day: 0,
    },
    Fleet {
        name: "gpu",
        about: "few training jobs with huge checkpoints",
        capacity: Bytes::gib(2048),
        groups: &[Group {
            namespace: "train-#",
            namespaces: 4,
            pods: 2,
            minutes_between: 240,
            burst: 1,
            mib: (20_000, 80_000),
            restores_percent: 10,
            worth: 10,
            ends: false,
        }],
        foreign_per_day: 0,
    },
    Fleet {
        name: "forensic",
        about: "series of checkpoints of suspect containers, to be compared later, beside services",
        capacity: Bytes::gib(200),
        groups: &[
            QUIET,
            Group {
                namespace: "incident-#",
                namespaces: 2,
                pods: 1,
                minutes_between: 1440,
                burst: 10,
                mib: (300, 600),
                restores_percent: 60,
                worth: 20,
                ends: false,
            },
        ],
        foreign_per_day: 0,
    },
    Fleet {
        name: "noisy-neighbour",
        about: "one namespace checkpoints every five minutes, nine others once a day",
        capacity: Bytes::gib(100),
        groups: &[
            Group {
                namespace: "noisy",
                namespaces: 1,
                pods: 2,
                minutes_between: 5,
                burst: 1,
                mib: (300, 500),
                restores_percent: 1,
                worth: 10,
                ends: false,
            },
            Group {
                namespace: "quiet-#",
                namespaces: 9,
                pods: 1,
                minutes_between: 1440,
                burst: 1,
                mib: (300, 900),
                restores_percent: 40,
                worth: 10,
                ends: false,
            },
        ],
        foreign_per_day: 0,
    },
    Fleet {
        name: "slow-foreign-growth",
        about: "services on a disk that something else fills, five per cent a day",
        capacity: Bytes::gib(100),
        groups: &[QUIET],
        foreign_per_day: 50,
    },
];

impl Fleet {
    /// The fleet of that name.
    pub fn named(name: &str) -> Option<&'static Fleet> {
        FLEETS.iter().find(|fleet| fleet.name == name)
    }

    /// What happens to node number `node` within `days`.
    pub fn trace(&self, node: u64, days: u64, seed: u64) -> Trace {
        let mut random = SplitMix(seed ^ node.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut trace =
            Trace { node: format!("{}-{node}", self.name), capacity: self.capacity, ..Trace::default() };
        let end = Duration::from_secs(days * 86_400);
        for group in self.groups {
            for namespace in 0..group.namespaces {
                let namespace = group.namespace.replace('#', &namespace.to_string());
                for pod in 0..group.pods {
                    group.happen(&mut trace, &namespace, pod, end, &mut random);
                }
            }
        }
        let hourly = self.capacity.0 / 24_000 * self.foreign_per_day;
        if hourly > 0 {
            let hours = (1..=days * 24).map(|hour| Duration::from_secs(hour * 3600));
            let grows = What::ForeignGrowth { bytes: hourly as i64 };
            trace.events.extend(hours.map(|at| Event { at, what: grows }));
        }
        // Stable: what happens at one moment keeps its order.
        trace.events.sort_by_key(|event| event.at);
        trace
    }
}

impl Group {
    fn happen(&self, trace: &mut Trace, namespace: &str, pod: u32, end: Duration, random: &mut SplitMix) {
        let between = self.minutes_between * 60;
        let mut start = random.below(between);
        let mut generation = 0;
        let owner_of = |trace: &mut Trace, generation: u64| {
            let pod = if self.ends { format!("job-{pod}-{generation}") } else { format!("pod-{pod}") };
            trace.owners.push(Owner::new(namespace, &pod, "main"));
            trace.owners.len() as u32 - 1
        };
        let mut owner = owner_of(trace, generation);
        // One container's checkpoints are of similar size.
        let usual = self.mib.0 + random.below(self.mib.1 - self.mib.0 + 1);
        while Duration::from_secs(start) < end {
            for nth in 0..u64::from(self.burst) {
                let at = start + nth * 60;
                let size = Bytes::mib((usual * (80 + random.below(41)) / 100).max(1));
                trace.events.push(Event { at: Duration::from_secs(at), what: What::Arrival { owner, size } });
                if random.below(100) < self.restores_percent {
                    // Soon after most often; mostly the newest, sometimes one of those before.
                    let delay = 1 + random.below(between).min(random.below(between));
                    let back = [0, 0, 0, 0, 0, 0, 0, 1, 1, 2][random.below(10) as usize];
                    let what = What::Restore { owner, back, value: self.worth };
                    trace.events.push(Event { at: Duration::from_secs(at + delay), what });
                }
            }
            let last = start + u64::from(self.burst) * 60;
            start = (start + between * (80 + random.below(41)) / 100).max(last);
            if self.ends {
                trace.events.push(Event { at: Duration::from_secs(last), what: What::PodGone { owner } });
                generation += 1;
                owner = owner_of(trace, generation);
            }
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): its numbers are the same for ever, which no library promises.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is above zero; the bias of the remainder is beyond what matters here.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_traces_and_nodes_differ() {
        for fleet in &FLEETS {
            assert_eq!(fleet.trace(3, 2, 42), fleet.trace(3, 2, 42));
            assert_ne!(fleet.trace(3, 2, 42).events, fleet.trace(4, 2, 42).events);
            assert!(fleet.trace(0, 2, 1).events.is_sorted_by_key(|event| event.at));
        }
    }
}
