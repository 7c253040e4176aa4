//! Every map, and why it has its size. Together they take about 2 MiB.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, RingBuf};
use guard_ebpf::{
    BrakedDirectory, Braking, Crossing, DIRECTORIES, Learn, Lease, LedgerKey, LedgerValue, Limit, Lost,
    RefusedKey, RefusedValue, SLOTS, Total, WakeRecord, Watched,
};

/// One entry, replaced as a whole: a lookup at a constant index compiles to an address.
#[map]
pub(crate) static WATCHED: Array<Watched> = Array::with_max_entries(1, 0);

#[map]
pub(crate) static LEARN: Array<Learn> = Array::with_max_entries(1, 0);

/// A directory holds tens to hundreds of archives, but each file of a pod checkpoint counts too. Preallocated, as
/// programs on tracepoints may not allocate. Not an LRU map: that would forget without telling.
#[map]
pub(crate) static LEDGER: HashMap<LedgerKey, LedgerValue> = HashMap::with_max_entries(16 * 1024, 0);

/// Direct writes that have begun and not ended, by the address of their request. Hardly ever more than a queue's
/// depth; those that never end (a filesystem that then falls back to the page cache) make room by themselves.
#[map]
pub(crate) static DIRECT_WRITES: LruHashMap<u64, u8> = LruHashMap::with_max_entries(1024, 0);

/// One more than slots: [`guard_ebpf::SELF_TEST_SLOT`].
#[map]
pub(crate) static TOTALS: Array<Total> = Array::with_max_entries(SLOTS as u32 + 1, 0);

#[map]
pub(crate) static LIMITS: Array<Limit> = Array::with_max_entries(SLOTS as u32 + 1, 0);

/// The guard removes a slot's crossing when it arms the slot anew, so at most two of each slot lie here.
#[map]
pub(crate) static CROSSED: HashMap<Crossing, u8> = HashMap::with_max_entries(4 * SLOTS as u32, 0);

/// One page holds 170 wakes, each slot has at most one outstanding: one page is plenty.
#[map]
pub(crate) static WAKES: RingBuf = RingBuf::with_byte_size(4096, 0);

/// One entry.
#[map]
pub(crate) static BRAKING: Array<Braking> = Array::with_max_entries(1, 0);

/// By the address of their dentries.
#[map]
pub(crate) static BRAKED: HashMap<u64, BrakedDirectory> = HashMap::with_max_entries(DIRECTORIES as u32, 0);

/// Until when writers below each directory of [`BRAKED`] are refused: engaging and releasing is one write here.
#[map]
pub(crate) static LEASES: Array<Lease> = Array::with_max_entries(DIRECTORIES as u32, 0);

/// The guard empties it every second or so; three or four programs write checkpoints.
#[map]
pub(crate) static REFUSED: HashMap<RefusedKey, RefusedValue> = HashMap::with_max_entries(256, 0);

#[map]
pub(crate) static LOST: Array<Lost> = Array::with_max_entries(1, 0);

// What a wake takes in the ring buffer: itself and a header of 8 bytes.
const _: () = assert!(SLOTS * (size_of::<WakeRecord>() + 8) <= 4096);
