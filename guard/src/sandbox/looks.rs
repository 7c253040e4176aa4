//! Looking at paths that may lie on a filesystem that hangs: a server that is gone must not keep the guard from starting.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long an answer is waited for. A busy disk takes a tenth of it to find a directory.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// What `look` says of each of `paths`, at the same place; `None` where there is no answer within [`LIMIT`].
///
/// One thread looks at all, and when it hangs, one more at each of the rest. Who hangs stays behind: it is told to do
/// nothing else should it ever go on.
pub(super) fn at_each<O: Send + 'static>(paths: &[PathBuf], look: fn(&PathBuf) -> O) -> Vec<Option<O>> {
    let mut answers = Vec::new();
    let all = start(paths.to_vec(), look);
    answers.extend(std::iter::from_fn(|| all.recv_timeout(LIMIT).ok()).take(paths.len()).map(Some));
    if answers.len() < paths.len() {
        answers.push(None);
    }
    // Whoever went on after all has nobody to tell it to, and ends.
    drop(all);
    let rest: Vec<_> = paths[answers.len()..].iter().map(|path| start(vec![path.clone()], look)).collect();
    answers.extend(rest.into_iter().map(|one| one.recv_timeout(LIMIT).ok()));
    answers
}

/// Tells of a path that is not looked at any longer.
pub(super) fn say_left_out(path: &Path) {
    tracing::warn!(
        path = %path.display(),
        "its filesystem does not answer, so the sandbox leaves it out; restart the guard once it does"
    );
}

/// Looks at `paths` one after the other, until nobody listens any more.
fn start<O: Send + 'static>(paths: Vec<PathBuf>, look: fn(&PathBuf) -> O) -> Receiver<O> {
    let (outbox, inbox) = channel();
    let thread = std::thread::Builder::new().name("look".to_owned()).spawn(move || {
        let _ = paths.iter().try_for_each(|path| outbox.send(look(path)));
    });
    if let Err(error) = thread {
        tracing::error!(%error, "cannot look at the paths that the sandbox is to leave");
    }
    inbox
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_hangs_costs_the_others_nothing() {
        let look = |path: &PathBuf| {
            let name = path.to_string_lossy().into_owned();
            if name.starts_with("stuck") {
                std::thread::sleep(LIMIT * 4);
            }
            name
        };
        let paths = ["a", "stuck", "b", "stuck-too", "c"].map(PathBuf::from);
        let answers = at_each(&paths, look);
        let answers: Vec<_> = answers.iter().map(Option::as_deref).collect();
        assert_eq!(answers, [Some("a"), None, Some("b"), None, Some("c")]);
        assert!(at_each(&[], look).is_empty());
    }
}
