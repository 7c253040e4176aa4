//! From header to header through a tar, as Go's archive/tar reads one.

use tar::{EntryType, Header};

use super::input::{BLOCK, Input, Stop};
use super::pax::Pax;

/// The largest extended header or long name that is read; a name is at most 4096 bytes, Go's limit is 1 MiB.
const EXTENDED_MAX: u64 = 64 << 10;

/// One entry, its data not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its name without leading `./`.
    pub(super) name: Vec<u8>,
    /// A regular file whose stored bytes are its content.
    pub(super) regular: bool,
    /// Bytes of data behind its header.
    pub(super) size: u64,
}

/// A walk over the entries of a tar.
pub(super) struct Walk<I> {
    input: I,
    /// Data and padding of the current entry that are still ahead.
    ahead: u64,
    headers: u32,
    headers_max: u32,
}

/// What extended headers said about the entry that follows them.
#[derive(Default)]
struct Extended {
    pax: Option<Pax>,
    long_name: Option<Vec<u8>>,
    long_link: bool,
}

impl<I: Input> Walk<I> {
    pub(super) fn new(input: I, headers_max: u32) -> Walk<I> {
        Walk { input, ahead: 0, headers: 0, headers_max }
    }

    /// Headers read so far.
    pub(super) fn headers(&self) -> u32 {
        self.headers
    }

    /// Bytes of the file read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.input.bytes_read()
    }

    /// The next entry; `None` at the end marker. What lies behind the marker is never looked at: it may be the
    /// tail of an older archive that was overwritten in place.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, Stop> {
        let mut extended = Extended::default();
        loop {
            let Some(block) = self.next_header()? else { return Ok(None) };
            let header = Header::from_byte_slice(&block);
            let size = octal_or_binary(&header.as_old().size).ok_or(Stop::Disputed)?;
            match header.entry_type() {
                EntryType::XHeader => {
                    let pax = Pax::parse(&self.extended_data(size)?).ok_or(Stop::Disputed)?;
                    once(&mut extended.pax, pax)?;
                }
                EntryType::GNULongName => {
                    let mut name = self.extended_data(size)?;
                    name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
                    once(&mut extended.long_name, name)?;
                }
                EntryType::GNULongLink if !extended.long_link => {
                    self.extended_data(size)?;
                    extended.long_link = true;
                }
                // A global size or name means one thing to some readers and nothing to Go.
                EntryType::XGlobalHeader => {
                    let pax = Pax::parse(&self.extended_data(size)?).ok_or(Stop::Disputed)?;
                    if pax.size.is_some() || pax.path.is_some() {
                        return Err(Stop::Disputed);
                    }
                }
                EntryType::GNULongLink => return Err(Stop::Disputed),
                _ => return self.entry(header, size, extended).map(Some),
            }
        }
    }

    /// The data of the entry that `next` gave, when it is at most `max` bytes long.
    pub(super) fn data(&mut self, entry: &Entry, max: u64) -> Result<Option<Vec<u8>>, Stop> {
        if entry.size > max {
            return Ok(None);
        }
        let mut data = vec![0; entry.size as usize];
        self.input.fill(&mut data)?;
        self.ahead -= entry.size;
        Ok(Some(data))
    }

    fn entry(&mut self, header: &Header, size: u64, extended: Extended) -> Result<Entry, Stop> {
        let pax = extended.pax.unwrap_or_default();
        let kind = header.entry_type();
        if kind.is_gnu_sparse() {
            self.pass_sparse_map(header)?;
        }
        let name = extended.long_name.filter(|name| !name.is_empty()).or(pax.path);
        let name = name.unwrap_or_else(|| header.path_bytes().into_owned());
        let size = if carries_no_data(header, &name) { 0 } else { pax.size.unwrap_or(size) };
        self.ahead = size.checked_next_multiple_of(BLOCK as u64).ok_or(Stop::Disputed)?;
        let regular = matches!(kind, EntryType::Regular | EntryType::Continuous) && !pax.sparse;
        Ok(Entry { name: top_level(name), regular, size })
    }

    /// The next block that is a header; `None` at the end marker, two blocks of zeros.
    fn next_header(&mut self) -> Result<Option<[u8; BLOCK]>, Stop> {
        self.input.skip(std::mem::take(&mut self.ahead))?;
        let block = self.block()?;
        if block != [0; BLOCK] {
            return if is_header(&block) { Ok(Some(block)) } else { Err(Stop::Broken) };
        }
        if self.block()? == [0; BLOCK] { Ok(None) } else { Err(Stop::Broken) }
    }

    fn block(&mut self) -> Result<[u8; BLOCK], Stop> {
        if self.headers >= self.headers_max {
            return Err(Stop::Limit);
        }
        let mut block = [0; BLOCK];
        self.input.fill(&mut block)?;
        self.headers += 1;
        Ok(block)
    }

    fn extended_data(&mut self, size: u64) -> Result<Vec<u8>, Stop> {
        if size > EXTENDED_MAX {
            return Err(Stop::Limit);
        }
        let mut data = vec![0; size as usize];
        self.input.fill(&mut data)?;
        self.ahead = size.next_multiple_of(BLOCK as u64) - size;
        Ok(data)
    }

    /// GNU's old sparse format continues its map in blocks that no size counts.
    fn pass_sparse_map(&mut self, header: &Header) -> Result<(), Stop> {
        let mut more = header.as_gnu().is_some_and(|gnu| gnu.is_extended());
        while more {
            more = self.block()?[504] == 1;
        }
        Ok(())
    }
}

/// Whether nothing lies behind the header, whatever its size says: links, devices, directories, and what tar of
/// Unix V7 wrote for a directory, a plain file with a slash at the end of its name.
fn carries_no_data(header: &Header, name: &[u8]) -> bool {
    let old_directory = header.as_old().linkflag == [0] && name.ends_with(b"/");
    old_directory
        || matches!(
            header.entry_type(),
            EntryType::Link
                | EntryType::Symlink
                | EntryType::Char
                | EntryType::Block
                | EntryType::Directory
                | EntryType::Fifo
        )
}

/// A second extended header for one entry: readers disagree which one counts.
fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), Stop> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Stop::Disputed),
    }
}

fn top_level(mut name: Vec<u8>) -> Vec<u8> {
    while name.starts_with(b"./") {
        name.drain(..2);
    }
    name
}

/// Whether `block` carries its own checksum: the sum of its bytes, those of the checksum taken as spaces. Old writers
/// summed signed bytes.
pub(super) fn is_header(block: &[u8; BLOCK]) -> bool {
    let header = Header::from_byte_slice(block);
    let Some(claimed) = octal_or_binary(&header.as_old().cksum) else { return false };
    let counted = [&block[..148], b"        ", &block[156..]];
    let unsigned: u64 = counted.iter().copied().flatten().map(|&byte| u64::from(byte)).sum();
    let high_bytes = counted.iter().copied().flatten().filter(|byte| !byte.is_ascii()).count() as u64;
    claimed == unsigned || claimed.checked_add(high_bytes * 256) == Some(unsigned)
}

/// A number field: octal digits among spaces and zeros, or big-endian binary with the highest bit set (GNU). `None`
/// when it is neither, negative, or beyond 64 bits.
fn octal_or_binary(field: &[u8]) -> Option<u64> {
    if let [0x80, number @ ..] = field {
        let (high, low) = number.split_at(number.len().saturating_sub(8));
        return high
            .iter()
            .all(|&byte| byte == 0)
            .then(|| low.iter().fold(0, |n, &byte| n << 8 | u64::from(byte)));
    }
    let text = str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    if text.is_empty() {
        return Some(0);
    }
    text.bytes().all(|byte| matches!(byte, b'0'..=b'7')).then(|| u64::from_str_radix(text, 8).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(field: &[u8], expect: Option<u64>) {
        assert_eq!(octal_or_binary(field), expect, "{field:?}");
    }

    #[test]
    fn number_fields_are_octal_or_binary() {
        check(b"00000001057\0", Some(0o1057));
        check(b"  644 \0\0\0\0\0\0", Some(0o644));
        check(b"777777777777", Some((8 << 30) * 8 - 1));
        check(b"\0\0\0\0\0\0\0\0\0\0\0\0", Some(0));
        check(b"\x80\0\0\0\0\0\0\x02\0\0\0\0", Some(8 << 30));
        check(b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", Some(u64::MAX));
        check(b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None);
        check(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None);
        check(b"0000000105x\0", None);
        check(b"+0000000644\0", None);
        check(b"00000000649\0", None);
        check(b"0000\0\x30000644", None);
    }
}
