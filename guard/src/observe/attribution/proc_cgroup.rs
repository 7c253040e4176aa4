//! `/proc/PID/cgroup`: the groups of one process, one line for each hierarchy (cgroups(7)).

use super::cgroup_path::{Workload, of_path};

/// The workload that the process with this `/proc/PID/cgroup` belongs to.
///
/// A line is `number:controllers:path`; version 2 has one, numbered 0 and without controllers. Engines put a container into
/// some hierarchies of version 1 and not into others, and with both versions version 2 often stays at the root: so the line
/// that says most counts, of equal ones the first; version 2 comes before the others.
pub fn of_proc_cgroup(text: &str) -> Workload {
    let lines = || text.lines().filter_map(Line::parse);
    let unified = lines().filter(|line| line.is_unified);
    let others = lines().filter(|line| !line.is_unified);
    let mut best = Workload::default();
    for line in unified.chain(others) {
        let found = of_path(line.path);
        if found.rank() > best.rank() {
            best = found;
        }
    }
    best
}

struct Line<'a> {
    is_unified: bool,
    path: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Line<'a>> {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Line { is_unified: number == "0" && controllers.is_empty(), path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "19799841-684a-43df-95e8-50ad687b8d68";
    const A: &str = "2540fdaa9dd148c3096a1f4c1a07eb2cbdd6a22aaed07a589d538a4dc1b7c4f3";

    #[track_caller]
    fn check(text: &str, pod_uid: Option<&str>, container: Option<&str>) {
        let found = of_proc_cgroup(&text.replace("{u}", UID).replace("{a}", A));
        assert_eq!((found.pod_uid.as_deref(), found.container.as_deref()), (pod_uid, container), "{text}");
    }

    #[test]
    fn version_2_has_one_line() {
        check("0::/kubepods/burstable/pod{u}/{a}\n", Some(UID), Some(A));
        check("0::/\n", None, None);
        check("0::/system.slice/containerd.service\n", None, None);
    }

    #[test]
    fn of_version_1_the_line_that_says_most_counts() {
        let all =
            "12:pids:/kubepods/pod{u}/{a}\n11:cpu,cpuacct:/kubepods/pod{u}/{a}\n1:name=systemd:/\n0::/\n";
        check(all, Some(UID), Some(A));
        check("9:name=systemd:/\n4:memory:/kubepods/pod{u}/{a}\n3:cpuset:/\n", Some(UID), Some(A));
        check("9:memory:/kubepods/pod{u}\n4:pids:/docker/{a}\n", None, Some(A));
        check(
            "9:memory:/kubepods/pod{u}\n4:pids:/docker/{a}\n3:cpu:/kubepods/pod{u}/{a}\n",
            Some(UID),
            Some(A),
        );
    }

    #[test]
    fn with_both_versions_the_second_comes_first_when_it_says_as_much() {
        let b = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";
        check(&format!("4:pids:/docker/{b}\n0::/docker/{{a}}\n"), None, Some(A));
        check(&format!("4:pids:/kubepods/pod{{u}}/{{a}}\n0::/docker/{b}\n"), Some(UID), Some(A));
    }

    #[test]
    fn a_path_may_hold_colons() {
        check(
            "7:pids:/kubepods-pod19799841_684a_43df_95e8_50ad687b8d68.slice:cri-containerd:{a}",
            Some(UID),
            Some(A),
        );
    }

    #[test]
    fn garbage_is_nobodys() {
        for text in ["", "\n", "0:", "x", "::", "0::", "1:2"] {
            check(text, None, None);
        }
    }
}
