use jiff::SignedDuration;

use super::*;
use crate::decide::fixture::{archive, inventory, now, policy};
use crate::model::{Certainty, Checkpoint};

#[track_caller]
fn check(checkpoints: Vec<Checkpoint>, keep_last: u32, expect: &[&str]) {
    let mut policy = policy();
    policy.eviction.keep_last = keep_last;
    let inventory = inventory(checkpoints);
    let census = Census::new(&inventory, &policy, now());
    let words = |index: u32| {
        let follows = census.follows(index);
        let words = [(Follows::SUPERSEDED, "superseded"), (Follows::LAST, "last"), (Follows::YOUNG, "young")];
        words.iter().filter(|(flag, _)| follows.contains(*flag)).map(|(_, word)| *word).collect::<Vec<_>>()
    };
    let got: Vec<_> = (0..inventory.checkpoints.len() as u32).map(|index| words(index).join(" ")).collect();
    assert_eq!(got, expect);
}

#[test]
fn the_newest_complete_one_supersedes_all_older_ones_of_its_container() {
    check(
        vec![
            archive("a/p/c", 60, 1),
            archive("a/p/c", 10, 1),
            archive("a/p/c", 30, 1),
            archive("a/p/d", 99, 1),
        ],
        1,
        &["superseded", "last", "superseded", "last"],
    );
}

#[test]
fn keep_last_counts_complete_ones_only() {
    check(
        vec![
            archive("a/p/c", 5, 1).with(States::INCOMPLETE),
            archive("a/p/c", 4, 1).with(States::BEING_WRITTEN),
            archive("a/p/c", 3, 1).with(States::PRE_CHECKPOINT),
            archive("a/p/c", 10, 1),
            archive("a/p/c", 20, 1),
            archive("a/p/c", 30, 1),
            archive("a/p/c", 40, 1).with(States::INCOMPLETE),
        ],
        2,
        &["", "", "", "last", "superseded last", "superseded", "superseded"],
    );
    check(vec![archive("a/p/c", 10, 1)], 0, &[""]);
}

#[test]
fn what_may_be_no_checkpoint_takes_no_place_of_one_that_is() {
    let unproven = |minutes| archive("a/p/c", minutes, 1).with(States::UNPROVEN);
    check(vec![unproven(5), archive("a/p/c", 30, 1), unproven(60)], 1, &["", "last", "superseded"]);
    check(vec![unproven(5), archive("a/p/c", 30, 1), unproven(60)], 2, &["last", "last", "superseded"]);
    // A format to come.
    check(vec![unproven(5), unproven(30), unproven(60)], 1, &["last", "superseded", "superseded"]);
    check(vec![unproven(5), unproven(30), unproven(60)], 2, &["last", "superseded last", "superseded"]);
}

#[test]
fn a_container_that_is_gone_has_no_last_one_to_keep() {
    check(vec![archive("a/p/c", 10, 1).with(States::ORPHAN), archive("a/q/c", 10, 1)], 1, &["", "last"]);
}

#[test]
fn case_10_containers_of_team_and_team_prod_are_counted_apart() {
    check(vec![archive("team/x/prod-app", 60, 1), archive("team-prod/x/app", 10, 1)], 1, &["last", "last"]);
}

#[test]
fn an_ambiguous_one_supersedes_nobody_and_takes_nobodys_place() {
    check(vec![archive("a/p/c", 60, 1), archive("a/p/c", 10, 1).or(&["b/p/c"])], 1, &["last", "last"]);
}

#[test]
fn an_ambiguous_one_is_superseded_only_when_it_is_by_every_reading() {
    let doubtful = || archive("a/p/c", 60, 1).or(&["b/p/c"]);
    check(vec![doubtful(), archive("a/p/c", 10, 1)], 0, &["", ""]);
    check(vec![doubtful(), archive("a/p/c", 10, 1), archive("b/p/c", 70, 1)], 0, &["", "", ""]);
    check(vec![doubtful(), archive("a/p/c", 10, 1), archive("b/p/c", 20, 1)], 0, &["superseded", "", ""]);
}

#[test]
fn nobody_knows_the_last_one_of_nobody() {
    let unknown = archive("?/?/?", 60, 1).known(Certainty::Unknown);
    check(vec![unknown.clone(), unknown], 1, &["", ""]);
}

#[test]
fn case_02_equal_times_are_told_apart_by_mtime_then_by_name() {
    let mut earlier = archive("a/p/c", 10, 1);
    earlier.modified -= SignedDuration::from_nanos(1);
    check(vec![archive("a/p/c", 10, 1), earlier], 1, &["last", "superseded"]);
    let mut z = archive("a/p/c", 10, 1);
    z.name = std::ffi::OsString::from("z.tar").into();
    check(vec![archive("a/p/c", 10, 1), z], 1, &["superseded", "last"]);
}

#[test]
fn case_39_one_dated_2039_is_neither_young_for_ever_nor_the_newest_for_ever() {
    let mut dated = archive("a/p/c", 60, 1);
    dated.created = "2039-01-01T00:00:00Z".parse().unwrap();
    check(vec![dated.clone(), archive("a/p/c", 10, 1)], 1, &["superseded", "last"]);
    dated.modified = "2038-01-01T00:00:00Z".parse().unwrap();
    check(vec![dated], 0, &[""]);
    check(vec![archive("a/p/c", 1, 1)], 0, &["young"]);
}
