//! Magic bytes: what a file is, whatever its name ends in (podman writes zstd under `.tar`, podman#10567).

use super::input::BLOCK;
use super::walk::is_header;

/// How the tar is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Not at all. Also what nobody recognises: the walk says what is wrong with it.
    Plain,
    /// gzip, RFC 1952.
    Gzip,
    /// Zstandard, RFC 8878.
    Zstd,
    /// xz, format 1.2.
    Xz,
    /// bzip2.
    Bzip2,
}

impl Packing {
    /// Decides by the first bytes of a file. A tar whose first entry is called `BZh1` is still a tar.
    pub(super) fn of(start: &[u8]) -> Packing {
        match start {
            _ if start.first_chunk::<BLOCK>().is_some_and(is_header) => Packing::Plain,
            [0x1f, 0x8b, ..] => Packing::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Packing::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Packing::Xz,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Packing::Bzip2,
            _ => Packing::Plain,
        }
    }

    /// How much a decoder may take in and give out, in bytes, so that the worst stream costs tens of
    /// milliseconds. Output bounds ordinary bombs. Input bounds those that give out next to nothing: tiny blocks,
    /// each with tables to build. Measured with such streams (blocks of 1 to 300 bytes, release build, one core of
    /// a 2-core VM): gzip 0.4 µs a byte of input (27 ms), bzip2 0.12 (31 ms), xz 0.08 (10 ms), zstd 0.01 (2 ms).
    ///
    /// podman's identity lies in the first 56 KiB of the tar, 8 to 15 KiB packed. Of a longer archive it stays
    /// unknown whether it is complete.
    pub(super) const fn bounds(self) -> Bounds {
        match self {
            Packing::Plain => Bounds { input: u64::MAX, output: u64::MAX },
            Packing::Gzip => Bounds { input: 64 << 10, output: 8 << 20 },
            Packing::Zstd => Bounds { input: 256 << 10, output: 8 << 20 },
            Packing::Xz => Bounds { input: 128 << 10, output: 2 << 20 },
            Packing::Bzip2 => Bounds { input: 256 << 10, output: 1 << 20 },
        }
    }
}

/// How much one decoder may take in and give out, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Packed bytes.
    pub(super) input: u64,
    /// Unpacked bytes.
    pub(super) output: u64,
}
