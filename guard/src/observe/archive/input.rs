//! The bytes of the tar, in order: read where they lie, or decompressed.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::os::unix::fs::FileExt;

use super::sniff::Packing;

/// A tar block.
pub(super) const BLOCK: usize = 512;

/// The largest window that a zstd stream may ask for: 2^23 = 8 MiB, enough for every level below 20.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// The memory an xz stream may ask for: `xz -6` needs 9 MiB.
const XZ_MEMORY_MAX: u64 = 10 << 20;

/// Why reading stops before the end marker.
#[derive(Debug)]
pub(super) enum Stop {
    /// The bytes end too soon.
    Early,
    /// No header lies where one must, or the stream is damaged.
    Broken,
    /// A header means one thing to some readers and another, or nothing, to others.
    Disputed,
    /// A bound is reached, or the stream asks for more memory than allowed.
    Limit,
    /// The kernel could not read.
    Io { offset: u64, source: io::Error },
}

/// Bytes of the tar, forwards only.
pub(super) trait Input {
    /// Fills `buffer` wholly or stops.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), Stop>;
    /// Passes over `count` bytes.
    fn skip(&mut self, count: u64) -> Result<(), Stop>;
    /// How many bytes of the file have been read.
    fn bytes_read(&self) -> u64;
}

/// A plain tar, read with pread(2) where a header or a dump lies, and nowhere else.
pub(super) struct Plain<'a> {
    file: &'a File,
    position: u64,
    len: u64,
    bytes_read: u64,
    bytes_max: u64,
}

impl<'a> Plain<'a> {
    pub(super) fn new(file: &'a File, len: u64, bytes_max: u64) -> Plain<'a> {
        Plain { file, position: 0, len, bytes_read: 0, bytes_max }
    }
}

impl Input for Plain<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), Stop> {
        let count = buffer.len() as u64;
        if count > self.len - self.position {
            return Err(Stop::Early);
        }
        if self.bytes_read.saturating_add(count) > self.bytes_max {
            return Err(Stop::Limit);
        }
        self.file.read_exact_at(buffer, self.position).map_err(|source| match source.kind() {
            // It was longer a moment ago.
            io::ErrorKind::UnexpectedEof => Stop::Early,
            _ => Stop::Io { offset: self.position, source },
        })?;
        self.bytes_read += count;
        self.position += count;
        Ok(())
    }

    fn skip(&mut self, count: u64) -> Result<(), Stop> {
        if count > self.len - self.position {
            return Err(Stop::Early);
        }
        self.position += count;
        Ok(())
    }

    fn bytes_read(&self) -> u64 {
        self.bytes_read
    }
}

/// A compressed tar, decompressed from its start.
pub(super) struct Stream<'a> {
    decoder: Decoder<'a>,
    produced: u64,
    produced_max: u64,
}

/// The decoders stop after the first member of a file: thousands of empty ones are a bomb of another kind. The four
/// are alike but for their types.
enum Decoder<'a> {
    Gzip(flate2::bufread::GzDecoder<Packed<'a>>),
    Zstd(Box<zstd::Decoder<'static, Packed<'a>>>),
    Xz(liblzma::bufread::XzDecoder<Packed<'a>>),
    Bzip2(bzip2::bufread::BzDecoder<Packed<'a>>),
}

impl<'a> Stream<'a> {
    /// `None` for a plain tar. No decoder takes in more, or gives out more, than [`Packing::bounds`] and
    /// `bytes_max` allow.
    pub(super) fn new(file: &'a File, len: u64, packing: Packing, bytes_max: u64) -> Option<Stream<'a>> {
        let bounds = packing.bounds();
        let packed = Packed::new(file, len, bounds.input.min(bytes_max));
        let decoder = match packing {
            Packing::Plain => return None,
            Packing::Gzip => Decoder::Gzip(flate2::bufread::GzDecoder::new(packed)),
            Packing::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(packed).ok()?.single_frame();
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).ok()?;
                Decoder::Zstd(Box::new(decoder))
            }
            Packing::Xz => {
                let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_MAX, 0).ok()?;
                Decoder::Xz(liblzma::bufread::XzDecoder::new_stream(packed, stream))
            }
            Packing::Bzip2 => Decoder::Bzip2(bzip2::bufread::BzDecoder::new(packed)),
        };
        Some(Stream { decoder, produced: 0, produced_max: bounds.output.min(bytes_max) })
    }

    fn packed(&self) -> &Packed<'a> {
        match &self.decoder {
            Decoder::Gzip(decoder) => decoder.get_ref(),
            Decoder::Zstd(decoder) => decoder.get_ref(),
            Decoder::Xz(decoder) => decoder.get_ref(),
            Decoder::Bzip2(decoder) => decoder.get_ref(),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.decoder {
            Decoder::Gzip(decoder) => decoder.read(buffer),
            Decoder::Zstd(decoder) => decoder.read(buffer),
            Decoder::Xz(decoder) => decoder.read(buffer),
            Decoder::Bzip2(decoder) => decoder.read(buffer),
        }
    }

    /// What it means that the decoder gives nothing more.
    fn why(&self, error: io::Error) -> Stop {
        let packed = self.packed();
        match &packed.failed {
            Some(Failed::Bound) => return Stop::Limit,
            Some(Failed::Io(kind)) => return Stop::Io { offset: packed.position, source: (*kind).into() },
            None => {}
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Stop::Early,
            // A decoder that refuses a stream from its first byte may only lack memory for its window.
            _ if self.produced == 0 => Stop::Limit,
            _ => Stop::Broken,
        }
    }
}

impl Input for Stream<'_> {
    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<(), Stop> {
        while !buffer.is_empty() {
            let room = usize::try_from(self.produced_max - self.produced).unwrap_or(usize::MAX);
            let piece = buffer.len().min(room);
            if piece == 0 {
                return Err(Stop::Limit);
            }
            match self.read(&mut buffer[..piece]) {
                // The member is whole; what follows it is not looked at.
                Ok(0) if self.packed().has_more() => return Err(Stop::Limit),
                Ok(0) => return Err(Stop::Early),
                Ok(count) => {
                    self.produced += count as u64;
                    buffer = &mut buffer[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.why(error)),
            }
        }
        Ok(())
    }

    fn skip(&mut self, mut count: u64) -> Result<(), Stop> {
        let mut scratch = [0; 16 << 10];
        while count > 0 {
            let piece = count.min(scratch.len() as u64);
            self.fill(&mut scratch[..piece as usize])?;
            count -= piece;
        }
        Ok(())
    }

    fn bytes_read(&self) -> u64 {
        self.packed().position
    }
}

/// The packed bytes of a file up to a bound, by pread(2): the caller's file offset stays where it is.
struct Packed<'a> {
    file: &'a File,
    /// Where the next piece is read.
    position: u64,
    len: u64,
    bytes_max: u64,
    buffer: Box<[u8; 16 << 10]>,
    /// The part of `buffer` that is not consumed.
    unread: std::ops::Range<usize>,
    /// Decoders wrap or replace errors; this is what really happened.
    failed: Option<Failed>,
}

enum Failed {
    Bound,
    Io(io::ErrorKind),
}

impl<'a> Packed<'a> {
    fn new(file: &'a File, len: u64, bytes_max: u64) -> Packed<'a> {
        let buffer = Box::new([0; 16 << 10]);
        Packed { file, position: 0, len, bytes_max, buffer, unread: 0..0, failed: None }
    }

    fn has_more(&self) -> bool {
        !self.unread.is_empty() || self.position < self.len
    }

    fn next_piece(&mut self) -> io::Result<()> {
        let bound = self.bytes_max.min(self.len);
        let piece = (bound - self.position).min(self.buffer.len() as u64) as usize;
        if piece == 0 && self.position < self.len {
            self.failed = Some(Failed::Bound);
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let count = self.file.read_at(&mut self.buffer[..piece], self.position).inspect_err(|error| {
            self.failed = Some(Failed::Io(error.kind()));
        })?;
        self.position += count as u64;
        self.unread = 0..count;
        Ok(())
    }
}

impl Read for Packed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Packed<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.unread.is_empty() {
            self.next_piece()?;
        }
        Ok(&self.buffer[self.unread.clone()])
    }

    fn consume(&mut self, count: usize) {
        self.unread.start = (self.unread.start + count).min(self.unread.end);
    }
}
