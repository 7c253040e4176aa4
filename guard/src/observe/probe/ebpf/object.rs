//! [`Object`]: the eBPF object in the kernel, its maps taken out, its programs attached when they are needed.

use aya::maps::{Map, MapData, MapError};
use aya::programs::raw_trace_point::RawTracePointLinkId;
use aya::programs::{ProgramError, RawTracePoint};
use aya::{Ebpf, EbpfLoader};
use guard_ebpf::{Offsets, names};

use super::super::ProbeError;

/// The object that `cargo xtask build-ebpf` made.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/guard-ebpf.o"));

/// The loaded object.
#[derive(Debug)]
pub(super) struct Object {
    ebpf: Ebpf,
}

/// An attached program.
#[derive(Debug)]
pub(super) struct Attached {
    program: &'static str,
    link: RawTracePointLinkId,
}

impl Object {
    /// Creates the maps. Programs are verified when they are first attached.
    pub(super) fn load(offsets: &Offsets) -> Result<Object, ProbeError> {
        Object::load_bytes(OBJECT, offsets)
    }

    fn load_bytes(object: &[u8], offsets: &Offsets) -> Result<Object, ProbeError> {
        let ebpf = EbpfLoader::new()
            .override_global(names::OFFSETS, offsets, true)
            .load(object)
            .map_err(|error| refused("the eBPF object", &error))?;
        Ok(Object { ebpf })
    }

    /// Takes a map out of the object, to be used on its own.
    pub(super) fn map<M>(&mut self, name: &'static str) -> Result<M, ProbeError>
    where
        M: TryFrom<Map, Error = MapError>,
    {
        let map = self.ebpf.take_map(name);
        map.ok_or(MapError::ElementNotFound)
            .and_then(M::try_from)
            .map_err(|error| refused(&format!("map {name}"), &error))
    }

    /// Attaches `program` to `tracepoint`, loading it first if need be.
    pub(super) fn attach(&mut self, program: &'static str, tracepoint: &str) -> Result<Attached, ProbeError> {
        let what = || format!("program {program} on raw tracepoint {tracepoint}");
        let loaded = self.program(program).and_then(|it| match it.load() {
            Ok(()) | Err(ProgramError::AlreadyLoaded) => it.attach(tracepoint),
            Err(error) => Err(error),
        });
        let link = loaded.map_err(|error| refused(&what(), &error))?;
        Ok(Attached { program, link })
    }

    /// Attaches several, or none of them.
    pub(super) fn attach_all(
        &mut self,
        programs: &[(&'static str, &'static str)],
    ) -> Result<Vec<Attached>, ProbeError> {
        let mut all = Vec::new();
        for (program, tracepoint) in programs {
            match self.attach(program, tracepoint) {
                Ok(attached) => all.push(attached),
                Err(error) => {
                    for attached in all {
                        self.detach(attached)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(all)
    }

    /// Detaches it again.
    pub(super) fn detach(&mut self, attached: Attached) -> Result<(), ProbeError> {
        let Attached { program, link } = attached;
        let detached = self.program(program).and_then(|it| it.detach(link));
        detached.map_err(|error| refused(&format!("to detach program {program}"), &error))
    }

    fn program(&mut self, name: &str) -> Result<&mut RawTracePoint, ProgramError> {
        let program = self.ebpf.program_mut(name);
        program.ok_or_else(|| ProgramError::InvalidName { name: name.to_owned() })?.try_into()
    }
}

/// Says why the kernel refused something: the errno explained, and what the verifier said last.
pub(super) fn refused(what: &str, error: &(dyn std::error::Error + 'static)) -> ProbeError {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let cause = causes.find_map(|cause| cause.downcast_ref::<std::io::Error>());
    let text = error.to_string();
    // A refused program comes with the verifier's whole reasoning; the verdict is at its end.
    let verdict = text.lines().rev().find(|line| !line.trim().is_empty() && !line.starts_with("processed "));
    let first = text.lines().next().unwrap_or_default();
    let mut reason = first.to_owned();
    if let Some(verdict) = verdict.filter(|verdict| *verdict != first) {
        reason = format!("{reason} … {verdict}");
    }
    if let Some(cause) = cause.map(ToString::to_string).filter(|cause| !reason.contains(cause)) {
        reason = format!("{reason}: {cause}");
    }
    if let Some(advice) = cause.and_then(|cause| advice(cause.raw_os_error()?)) {
        reason = format!("{reason}; {advice}");
    }
    ProbeError::Refused { what: what.to_owned(), reason }
}

fn advice(errno: i32) -> Option<&'static str> {
    match errno {
        libc::EPERM | libc::EACCES => Some(
            "it needs CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), a seccomp profile that lets bpf(2) \
             pass, and no lockdown=confidentiality",
        ),
        libc::ENOENT => Some("this kernel has no such tracepoint"),
        libc::ENOMEM => Some("out of memory, or above RLIMIT_MEMLOCK (it counts for eBPF before Linux 5.11)"),
        libc::ENOSYS => Some("this kernel was built without bpf(2)"),
        _ => None,
    }
}

/// Maps that the object keeps are closed with it, those taken out with their owner.
pub(super) type Array<T> = aya::maps::Array<MapData, T>;
pub(super) type HashMap<K, V> = aya::maps::HashMap<MapData, K, V>;
pub(super) type RingBuf = aya::maps::RingBuf<MapData>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_object_is_refused_with_a_sentence() {
        let cuts = [0, 4, 64, OBJECT.len() / 2, OBJECT.len() - 1];
        for damaged in cuts.map(|len| OBJECT[..len].to_vec()) {
            let len = damaged.len();
            let error = Object::load_bytes(&damaged, &Offsets::default()).expect_err("it is damaged");
            assert!(error.to_string().starts_with("the kernel refuses"), "{len} bytes: {error}");
        }
    }
}
