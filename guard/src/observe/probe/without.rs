//! [`Probe`] in a build without eBPF: there is none, and the compiler knows.

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd};

use super::{
    Armed, Attempt, Backend, Coverage, LedgerEntry, Lost, ProbeError, SelfTest, Slot, Wake, Written,
};
use crate::model::{Bytes, FileId, Monotonic};

/// The loaded eBPF program: never, in this build.
#[derive(Debug)]
pub struct Probe(Infallible);

/// The wakes of a [`Probe`].
#[derive(Debug)]
pub struct Wakes(Infallible);

#[expect(missing_docs, reason = "the documentation is that of the build with eBPF")]
impl Probe {
    pub fn load() -> Result<(Probe, Wakes), ProbeError> {
        Err(ProbeError::NotBuilt)
    }

    pub fn load_only(_: Backend) -> Result<(Probe, Wakes), ProbeError> {
        Err(ProbeError::NotBuilt)
    }

    pub fn watch(&self, _: Slot, _: BorrowedFd<'_>) -> Result<Coverage, ProbeError> {
        match self.0 {}
    }

    pub fn unwatch(&self, _: BorrowedFd<'_>) -> Result<(), ProbeError> {
        match self.0 {}
    }

    pub fn self_test(&self, _: BorrowedFd<'_>) -> Result<SelfTest, ProbeError> {
        match self.0 {}
    }

    pub fn arm(&self, _: Slot, _: Bytes) -> Result<Armed, ProbeError> {
        match self.0 {}
    }

    pub fn disarm(&self, _: Slot) -> Result<(), ProbeError> {
        match self.0 {}
    }

    pub fn written(&self, _: Slot) -> Result<Written, ProbeError> {
        match self.0 {}
    }

    pub fn ledger(&self) -> Result<Vec<LedgerEntry>, ProbeError> {
        match self.0 {}
    }

    pub fn forget(&self, _: FileId) -> Result<(), ProbeError> {
        match self.0 {}
    }

    pub fn sweep(&self, _: &[LedgerEntry], _: Monotonic) -> Result<usize, ProbeError> {
        match self.0 {}
    }

    pub fn lost(&self) -> Result<Lost, ProbeError> {
        match self.0 {}
    }
}

#[expect(missing_docs, reason = "the documentation is that of the build with eBPF")]
impl Wakes {
    pub fn drain(&mut self) -> impl Iterator<Item = Wake> {
        match self.0 {}
        #[expect(unreachable_code, reason = "names the type")]
        std::iter::empty()
    }
}

pub(super) fn attempts(_: Option<BorrowedFd<'_>>) -> Result<Vec<Attempt>, ProbeError> {
    Err(ProbeError::NotBuilt)
}

impl AsFd for Wakes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}

/// The brake's programs: never, in this build.
#[derive(Debug)]
pub struct Refusing(Infallible);

/// Calls that were refused: never, in this build.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the documentation is that of the build with eBPF")]
pub struct RefusedCalls {
    pub place: u32,
    pub comm: String,
    pub calls: u64,
    pub bytes: u64,
}

#[expect(missing_docs, reason = "the documentation is that of the build with eBPF")]
impl Refusing {
    pub fn load() -> Result<Refusing, ProbeError> {
        Err(ProbeError::NotBuilt)
    }

    pub fn add(&self, _: BorrowedFd<'_>) -> Result<u32, ProbeError> {
        match self.0 {}
    }

    pub fn remove(&self, _: u32) -> Result<(), ProbeError> {
        match self.0 {}
    }

    pub fn attach(&self) -> Result<(), ProbeError> {
        match self.0 {}
    }

    pub fn detach(&self) -> Result<(), ProbeError> {
        match self.0 {}
    }

    pub fn lease(&self, _: u32, _: u64) -> Result<(), ProbeError> {
        match self.0 {}
    }

    pub fn take_refused(&self) -> Vec<RefusedCalls> {
        match self.0 {}
    }
}
