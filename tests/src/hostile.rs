//! Archives made to cost as much as they can: in bytes, in memory, in time.

use std::io::{self, Write};

use liblzma::stream::{Action, Check, Status};
use tar::EntryType;

use crate::forged::entry;

/// An archive and what it tries.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// What it tries.
    pub what: &'static str,
    /// The file.
    pub bytes: Vec<u8>,
}

/// One of each kind.
pub fn all() -> Vec<Hostile> {
    [small(), large()].concat()
}

/// Those of at most 256 KiB, of which a directory can hold thousands.
pub fn small() -> Vec<Hostile> {
    let hostile = |what, bytes| Hostile { what, bytes };
    vec![
        hostile("gzip: a bomb", packed("gzip", &bomb())),
        hostile("zstd: a bomb", packed("zstd", &bomb())),
        hostile("xz: a bomb", packed("xz", &bomb())),
        hostile("bzip2: a bomb", packed("bzip2", &bomb())),
        hostile("gzip: tiny blocks", trickled("gzip", 64 << 10)),
        hostile("zstd: tiny blocks", trickled("zstd", 256 << 10)),
        hostile("xz: tiny blocks", trickled("xz", 128 << 10)),
        hostile("bzip2: tiny blocks", trickled("bzip2", 256 << 10)),
        hostile("pax: a size beyond everything", pax("29 size=18446744073709550000\n", 1)),
        hostile("pax: as many records as fit", pax(&"6 a=b\n".repeat(10_000), 3)),
        hostile("gnu: long names", long_names(3)),
        hostile("gnu: a sparse map", sparse_map(400)),
        hostile("json: nested", nested_json(100 << 10)),
        hostile("json: a long text", long_json(200 << 10)),
    ]
}

/// Those that need their size.
pub fn large() -> Vec<Hostile> {
    let hostile = |what, bytes| Hostile { what, bytes };
    vec![
        hostile("tar: a million entries", entries(40_000)),
        hostile("pax: headers without end", pax(&"6 a=b\n".repeat(10_000), 200)),
        hostile("gnu: long names without end", long_names(200)),
        hostile("gnu: a sparse map without end", sparse_map(30_000)),
        hostile("json: nested, as large as allowed", nested_json(1 << 20)),
        hostile("json: a long text, as large as allowed", long_json((1 << 20) - 64)),
        hostile(
            "dumps again and again",
            [long_json((1 << 20) - 64)[..(1 << 20) + 512].repeat(16), vec![0; 1024]].concat(),
        ),
    ]
}

/// The header of an entry without end, and 32 MiB of it.
fn bomb() -> Vec<u8> {
    let mut tar = endless();
    tar.resize(32 << 20, 0);
    tar
}

fn endless() -> Vec<u8> {
    let mut tar = Vec::new();
    entry(&mut tar, "checkpoint/pages-1.img", EntryType::Regular, &[]);
    let mut header = tar::Header::from_byte_slice(&tar[..512]).clone();
    header.set_size(4 << 30);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn packed(kind: &str, data: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    let written = match kind {
        "gzip" => flate2::write::GzEncoder::new(&mut packed, flate2::Compression::fast()).write_all(data),
        "zstd" => {
            zstd::Encoder::new(&mut packed, 1).and_then(|encoder| encoder.auto_finish().write_all(data))
        }
        "xz" => liblzma::write::XzEncoder::new(&mut packed, 0).write_all(data),
        _ => bzip2::write::BzEncoder::new(&mut packed, bzip2::Compression::fast()).write_all(data),
    };
    written.expect("memory can be written");
    packed
}

/// A stream of tiny blocks, each with tables of its own to build: much work for next to nothing.
fn trickled(kind: &str, size: usize) -> Vec<u8> {
    let header = endless();
    let mut state = 1_u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Unevenly distributed letters: for each block a table of its own is worth while.
        b'a' + ((state >> 24) & (state >> 16) & 31) as u8
    };
    let mut piece = move || -> Vec<u8> { (0..200).map(|_| noise()).collect() };
    let mut out = Vec::new();
    match kind {
        "gzip" => trickle(
            flate2::write::GzEncoder::new(&mut out, flate2::Compression::best()),
            &header,
            &mut piece,
            size,
        ),
        "zstd" => trickle(zstd::Encoder::new(&mut out, 1).expect("an encoder"), &header, &mut piece, size),
        "xz" => return trickled_xz(&header, &mut piece, size),
        _ => trickle(
            bzip2::write::BzEncoder::new(&mut out, bzip2::Compression::best()),
            &header,
            &mut piece,
            size,
        ),
    }
    out.truncate(size);
    out
}

/// Flushes after each piece; every kind makes at least 50 bytes of one.
fn trickle(mut encoder: impl Write, header: &[u8], piece: &mut dyn FnMut() -> Vec<u8>, size: usize) {
    let mut write = |bytes: &[u8]| -> io::Result<()> {
        encoder.write_all(bytes)?;
        encoder.flush()
    };
    write(header).expect("memory can be written");
    for _ in 0..size / 50 {
        write(&piece()).expect("memory can be written");
    }
}

fn trickled_xz(header: &[u8], piece: &mut dyn FnMut() -> Vec<u8>, size: usize) -> Vec<u8> {
    let mut stream = liblzma::stream::Stream::new_easy_encoder(0, Check::Crc32).expect("an encoder");
    let mut out = Vec::with_capacity(size + (64 << 10));
    let mut data = header.to_vec();
    while out.len() < size {
        let before = stream.total_in();
        loop {
            out.reserve(4096);
            let consumed = (stream.total_in() - before) as usize;
            match stream.process_vec(&data[consumed..], &mut out, Action::FullFlush) {
                Ok(Status::StreamEnd) => break,
                Ok(_) if (stream.total_in() - before) as usize == data.len() => break,
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        }
        data = piece();
    }
    out.truncate(size);
    out
}

fn pax(records: &str, count: usize) -> Vec<u8> {
    let mut tar = Vec::new();
    for _ in 0..count {
        entry(&mut tar, "PaxHeaders.0/x", EntryType::XHeader, records.as_bytes());
        entry(&mut tar, "checkpoint/x", EntryType::Regular, b"");
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

fn long_names(count: usize) -> Vec<u8> {
    let mut tar = Vec::new();
    for _ in 0..count {
        entry(&mut tar, "././@LongLink", EntryType::GNULongName, &[b'a'; 64 << 10]);
        entry(&mut tar, "checkpoint/x", EntryType::Regular, b"");
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

/// GNU's old format: the map goes on in blocks that no size counts.
fn sparse_map(blocks: usize) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_path("checkpoint/x").expect("a short name");
    header.set_size(0);
    header.as_mut_bytes()[482] = 1;
    header.set_cksum();
    let mut block = [b'7'; 512];
    block[504] = 1;
    let mut tar = header.as_bytes().to_vec();
    tar.extend(block.repeat(blocks));
    tar
}

fn entries(count: usize) -> Vec<u8> {
    let mut one = Vec::new();
    entry(&mut one, "checkpoint/core-1.img", EntryType::Regular, b"");
    one.repeat(count)
}

fn nested_json(size: usize) -> Vec<u8> {
    let deep =
        [br#"{"annotations":"#.as_slice(), &vec![b'['; size / 2 - 16], &vec![b']'; size / 2 - 16], b"}"]
            .concat();
    dumps(&deep)
}

fn long_json(size: usize) -> Vec<u8> {
    let key = "io.kubernetes.cri-o.Labels";
    let text = format!(r#"{{"name":"","annotations":{{"{key}":"{}"}}}}"#, "\\u0041".repeat((size - 80) / 6));
    dumps(text.as_bytes())
}

fn dumps(json: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    for name in ["config.dump", "spec.dump", "status.dump"] {
        entry(&mut tar, name, EntryType::Regular, json);
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}
