//! PAX extended headers: the few records that change how an entry is read.

/// What an extended header says about the next entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pax {
    /// Its real size; Go's archive/tar leaves 0 in the header of an entry of 8 GiB and more.
    pub(super) size: Option<u64>,
    /// Its real name.
    pub(super) path: Option<Vec<u8>>,
    /// It is a sparse file: what is stored are pieces and a map, not the content.
    pub(super) sparse: bool,
}

impl Pax {
    /// Takes the records `"<length> <key>=<value>\n"` apart; `None` when one is malformed.
    ///
    /// By their lengths and not by newlines: a value may hold newlines, and a file name is a value.
    pub(super) fn parse(mut data: &[u8]) -> Option<Pax> {
        let mut pax = Pax::default();
        while !data.is_empty() {
            let space = data.iter().take(20).position(|&byte| byte == b' ')?;
            let length = usize::try_from(decimal(&data[..space])?).ok()?;
            let (record, rest) = data.split_at_checked(length)?;
            let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|&byte| byte == b'=')?;
            pax.take(&record[..equals], &record[equals + 1..])?;
            data = rest;
        }
        Some(pax)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"" => return None,
            b"size" => self.size = Some(decimal(value)?),
            // C readers end a name at a NUL, others do not.
            b"path" if value.contains(&0) => return None,
            // For Go an empty value means the header's own.
            b"path" => self.path = (!value.is_empty()).then(|| value.to_vec()),
            key if key.starts_with(b"GNU.sparse.") => self.sparse = true,
            _ => {}
        }
        Some(())
    }
}

/// A number of decimal digits and nothing else.
fn decimal(digits: &[u8]) -> Option<u64> {
    // `u64::from_str` takes a sign, which no tar writer writes.
    digits.iter().all(u8::is_ascii_digit).then_some(())?;
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(data: &str, expect: Option<Pax>) {
        assert_eq!(Pax::parse(data.as_bytes()), expect, "{data:?}");
    }

    fn sized(size: u64) -> Option<Pax> {
        Some(Pax { size: Some(size), ..Pax::default() })
    }

    #[test]
    fn sizes_and_names_are_read_and_the_rest_is_passed_over() {
        check("", Some(Pax::default()));
        check("20 size=09663676416\n", sized(9 << 30));
        check("20 mtime=1796024787\n12 size=512\n", sized(512));
        check("12 size=512\n10 size=7\n", sized(7));
        check("14 path=a/b/cd\n", None);
        check("15 path=a/b/cd\n", Some(Pax { path: Some(b"a/b/cd".to_vec()), ..Pax::default() }));
        check("8 path=\n", Some(Pax::default()));
        check("22 GNU.sparse.major=1\n", Some(Pax { sparse: true, ..Pax::default() }));
    }

    #[test]
    fn a_newline_in_a_name_forges_no_record() {
        let name = "x\n11 size=99";
        let record = format!("{} path={name}\n", name.len() + 9);
        check(&record, Some(Pax { path: Some(name.as_bytes().to_vec()), ..Pax::default() }));
    }

    #[test]
    fn malformed_records_are_refused() {
        for data in [
            "size=5\n",
            "9 size=5",
            "11 size=5\n",
            "10 size=x\n",
            "11 size=-5\n",
            "11 size=+5\n",
            "0 \n",
            "3 \n",
            "6 =ab\n",
            "99999999999999999999999 size=5\n",
            "30 size=99999999999999999999999\n",
            " 9 size=5\n",
        ] {
            check(data, None);
        }
        check("9 size=5\n", sized(5));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(0u8.., 0..200)) {
            Pax::parse(&bytes);
        }
    }
}
