//! [`Object`]: the eBPF object in the kernel, its maps taken out, its programs attached when they are needed.

use aya::maps::{Map, MapData, MapError};
use aya::programs::fentry::FEntryLinkId;
use aya::programs::fexit::FExitLinkId;
use aya::programs::kprobe::KProbeLinkId;
use aya::programs::raw_trace_point::RawTracePointLinkId;
use aya::programs::{Program, ProgramError, RawTracePoint};
use aya::{Btf, BtfError, Ebpf, EbpfLoader};
use guard_ebpf::{CAST_PLACEHOLDER, Offsets, names};

use super::super::ProbeError;
use super::super::surroundings::{Capabilities, Lockdown, locked_memory_advice, perf_advice};
use super::offsets::{Cast, Layout};

/// The object that `cargo xtask build-ebpf` made.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/guard-ebpf.o"));

/// The loaded object.
#[derive(Debug)]
pub(super) struct Object {
    ebpf: Ebpf,
    /// The kernel's types, for programs on functions; read when the first of them is attached.
    types: Option<Btf>,
}

/// An attached program.
#[derive(Debug)]
pub(super) struct Attached {
    program: &'static str,
    link: Link,
}

impl Attached {
    /// Its name.
    pub(super) fn program(&self) -> &'static str {
        self.program
    }
}

#[derive(Debug)]
enum Link {
    Tracepoint(RawTracePointLinkId),
    Entry(FEntryLinkId),
    Exit(FExitLinkId),
    Probe(KProbeLinkId),
}

impl Object {
    /// Creates the maps. Programs are verified when they are first attached.
    pub(super) fn load(layout: &Layout) -> Result<Object, ProbeError> {
        let offsets = &layout.offsets;
        let Some(cast) = layout.cast else { return Object::load_bytes(OBJECT, offsets) };
        Object::load_casting(cast, layout).or_else(|error| {
            // A kernel whose compiler of programs is switched off has the function and refuses calls of it. Whatever else it
            // is will show when the programs are attached.
            tracing::debug!(%error, "programs read kernel memory by helper calls, which take longer");
            Object::load_bytes(OBJECT, offsets)
        })
    }

    /// The same with calls of the kernel's function, if the kernel lets programs make them: the one that every directory takes,
    /// and one that walks from a file's name to the root, as those do that count.
    fn load_casting(cast: Cast, layout: &Layout) -> Result<Object, ProbeError> {
        let offsets = Offsets { word_type: cast.word_type, ..layout.offsets };
        let mut object = Object::load_bytes(&with_calls(OBJECT, cast.function), &offsets)?;
        object.load_tracepoint(names::LEARNER.0)?;
        if layout.knows_pages {
            object
                .load_tracepoint(layout.dirty_pages.0)?
                .unload()
                .map_err(|error| refused("to unload", &error))?;
        }
        Ok(object)
    }

    fn load_tracepoint(&mut self, program: &str) -> Result<&mut RawTracePoint, ProbeError> {
        let it = self.ebpf.program_mut(program).and_then(|program| program.try_into().ok());
        let it: &mut RawTracePoint =
            it.ok_or_else(|| ProbeError::Unfamiliar { missing: format!("program {program}") })?;
        it.load().map_err(|error| refused(&format!("program {program}"), &error))?;
        Ok(it)
    }

    fn load_bytes(object: &[u8], offsets: &Offsets) -> Result<Object, ProbeError> {
        let ebpf = EbpfLoader::new()
            .override_global(names::OFFSETS, offsets, true)
            .load(object)
            .map_err(|error| refused("the eBPF object", &error))?;
        Ok(Object { ebpf, types: None })
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

    /// Attaches `program` to `hook`, a tracepoint or a function depending on the program, loading it first if need be.
    pub(super) fn attach(&mut self, program: &'static str, hook: &str) -> Result<Attached, ProbeError> {
        let link = self
            .link(program, hook)
            .map_err(|error| refused(&format!("program {program} on {hook}"), &error))?;
        Ok(Attached { program, link })
    }

    fn link(&mut self, name: &str, hook: &str) -> Result<Link, ProgramError> {
        let program = self.ebpf.program_mut(name);
        let program = program.ok_or_else(|| ProgramError::InvalidName { name: name.to_owned() })?;
        let types = &mut self.types;
        // Loaded once, a program is attached again without the kernel's types, which take long to read.
        let is_new = program.fd().is_err();
        match program {
            Program::RawTracePoint(program) => {
                if is_new {
                    program.load()?;
                }
                program.attach(hook).map(Link::Tracepoint)
            }
            Program::KProbe(program) => {
                if is_new {
                    program.load()?;
                }
                program.attach(hook, 0).map(Link::Probe)
            }
            Program::FEntry(program) => {
                if is_new {
                    program.load(hook, kernel_types(types)?)?;
                }
                // Before Linux 5.13 such a program can be attached once only; another load makes it a new one.
                program.attach().map(Link::Entry).or_else(|_| {
                    program.unload()?;
                    program.load(hook, kernel_types(types)?)?;
                    program.attach().map(Link::Entry)
                })
            }
            Program::FExit(program) => {
                if is_new {
                    program.load(hook, kernel_types(types)?)?;
                }
                program.attach().map(Link::Exit).or_else(|_| {
                    program.unload()?;
                    program.load(hook, kernel_types(types)?)?;
                    program.attach().map(Link::Exit)
                })
            }
            _ => Err(ProgramError::UnexpectedProgramType),
        }
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
        let detached = match (self.ebpf.program_mut(program), link) {
            (Some(Program::RawTracePoint(it)), Link::Tracepoint(link)) => it.detach(link),
            (Some(Program::KProbe(it)), Link::Probe(link)) => it.detach(link),
            (Some(Program::FEntry(it)), Link::Entry(link)) => it.detach(link),
            (Some(Program::FExit(it)), Link::Exit(link)) => it.detach(link),
            _ => Err(ProgramError::UnexpectedProgramType),
        };
        detached.map_err(|error| refused(&format!("to detach program {program}"), &error))
    }

    /// Lets go of what only attaching needs: the kernel's types take megabytes.
    pub(super) fn settle(&mut self) {
        self.types = None;
    }
}

/// The object with a call of the kernel's function number `function` in each place that is kept for one.
fn with_calls(object: &[u8], function: u32) -> Vec<u8> {
    // Instructions lie at multiples of their size. `BPF_ALU64 | BPF_MOV | BPF_K` becomes `BPF_JMP | BPF_CALL`, the source
    // register `BPF_PSEUDO_KFUNC_CALL`; see linux/bpf.h.
    let instruction = |code: u8, registers: u8, immediate: u32| {
        let [a, b, c, d] = immediate.to_le_bytes();
        [code, registers, 0, 0, a, b, c, d]
    };
    let placeholder = instruction(0xb7, 0, CAST_PLACEHOLDER.cast_unsigned());
    let call = instruction(0x85, 0x20, function);
    let mut object = object.to_vec();
    for at in object.chunks_exact_mut(size_of_val(&call)).filter(|at| **at == placeholder) {
        at.copy_from_slice(&call);
    }
    object
}

/// What the verifier says of its own work, after the verdict.
fn is_statistics(line: &str) -> bool {
    ["processed ", "verification time ", "stack depth "].iter().any(|it| line.starts_with(it))
}

/// The kernel's types, read when somebody asks first.
pub(super) fn kernel_types(read: &mut Option<Btf>) -> Result<&Btf, BtfError> {
    Ok(match read {
        Some(types) => types,
        None => read.insert(Btf::from_sys_fs()?),
    })
}

/// Says why the kernel refused something: the errno explained, and what the verifier said last.
pub(super) fn refused(what: &str, error: &(dyn std::error::Error + 'static)) -> ProbeError {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let cause = causes.find_map(|cause| cause.downcast_ref::<std::io::Error>());
    let errno = cause.and_then(std::io::Error::raw_os_error);
    let text = error.to_string();
    // A refused program comes with the verifier's whole reasoning; the verdict is at its end.
    let verdict = text.lines().rev().find(|line| !line.trim().is_empty() && !is_statistics(line));
    // What comes before the verifier's words, which may be none.
    let whole = text.lines().next().unwrap_or_default();
    let first = whole.trim_end().trim_end_matches("Verifier output:").trim_end_matches(['.', ' ']);
    let mut reason = first.to_owned();
    if let Some(verdict) = verdict.filter(|verdict| *verdict != whole) {
        reason = format!("{reason} … {verdict}");
    }
    if let Some(cause) = cause.map(ToString::to_string).filter(|cause| !reason.contains(cause)) {
        reason = format!("{reason}: {cause}");
    }
    if let Some(advice) = errno.and_then(advice) {
        reason = format!("{reason}; {advice}");
    }
    ProbeError::Refused { what: what.to_owned(), reason, errno }
}

fn advice(errno: i32) -> Option<String> {
    if matches!(errno, libc::EPERM | libc::ENOMEM)
        && Capabilities::read().missing().is_empty()
        && let Some(advice) = locked_memory_advice()
    {
        return Some(advice);
    }
    if matches!(errno, libc::EPERM | libc::EINVAL) && Lockdown::read().hides_kernel_memory() {
        let advice =
            "lockdown=confidentiality lets no program read kernel memory: boot with lockdown=integrity";
        return Some(advice.to_owned());
    }
    if errno == libc::EACCES
        && let Some(advice) = perf_advice()
    {
        return Some(advice);
    }
    let advice = match errno {
        libc::EPERM | libc::EACCES if Capabilities::read().missing().is_empty() => {
            "the capabilities for it are held, so it is the kernel's configuration that refuses, its lockdown, or a \
             seccomp profile"
        }
        libc::EPERM | libc::EACCES => {
            "it needs CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), a seccomp profile that lets bpf(2) \
             pass, and no lockdown=confidentiality"
        }
        libc::ENOENT => "this kernel has no such hook",
        libc::ENOMEM => "out of memory",
        libc::ENOSYS => {
            "this kernel was built without it, or the guard's own sandbox does not let it pass: perf_event_open(2), \
             which kprobes take, is let through with [probe] mode = \"kprobe\""
        }
        _ => return None,
    };
    Some(advice.to_owned())
}

/// Maps that the object keeps are closed with it, those taken out with their owner.
pub(super) type Array<T> = aya::maps::Array<MapData, T>;
pub(super) type HashMap<K, V> = aya::maps::HashMap<MapData, K, V>;
pub(super) type RingBuf = aya::maps::RingBuf<MapData>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_the_verifier_says_the_verdict_is_told() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Said(&'static str);
        let said = Said(
            "the BPF_PROG_LOAD syscall returned Invalid argument (os error 22). Verifier output: 0: R1=ctx() R10=fp0\n\
             0: (8d) callx r1\nunknown opcode 8d\nverification time 98 usec\nstack depth 112+0+0\nprocessed 1 insns\n",
        );
        let error = refused("program x", &said).to_string();
        assert!(error.ends_with("… unknown opcode 8d"), "{error}");
    }

    #[test]
    fn calls_are_put_in_the_place_of_what_stands_for_them_and_nothing_else_changes() {
        let called = with_calls(OBJECT, 0x0102_0304);
        let is_call = |at: &&[u8]| *at == [0x85, 0x20, 0, 0, 4, 3, 2, 1];
        let calls = called.chunks_exact(8).filter(is_call).count();
        let changed = OBJECT.chunks(8).zip(called.chunks(8)).filter(|(before, after)| before != after);
        assert!(calls > 0 && calls == changed.count(), "{calls} calls");
        assert_eq!(called.len(), OBJECT.len());
    }

    #[test]
    fn a_kernel_that_casts_takes_every_program_of_ours_that_does() {
        let Ok(layout) = super::super::offsets::of_kernel() else {
            eprintln!("skipped: this kernel has no BTF");
            return;
        };
        let Some(cast) = layout.cast else {
            eprintln!("skipped: this kernel has no {}", super::super::offsets::CAST);
            return;
        };
        if let Err(error) =
            Object::load(&layout).and_then(|mut object| object.attach(names::LEARNER.0, names::LEARNER.1))
        {
            eprintln!("skipped: no program is let in here: {error}");
            return;
        }
        let mut object = Object::load_casting(cast, &layout).unwrap();
        for (program, hook) in
            names::EXT4.into_iter().chain([layout.dirty_pages]).chain(layout.direct_io.iter().copied())
        {
            object.attach(program, hook).unwrap();
        }
    }

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
