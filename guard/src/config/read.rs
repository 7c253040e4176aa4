//! Reading typed values out of what was typed: each reader says what it accepts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::duration::parse_duration;
use super::keys;
use super::problem::{Origin, Place, Problem, did_you_mean};
use super::raw::{Raw, Value};
use crate::model::{Amount, Bytes, Max, Pattern, Protection, Quantity, Signal};

/// One effective value and where it came from, for `check-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key, without the pool.
    pub key: String,
    /// As TOML.
    pub value: String,
    /// Who says so.
    pub origin: Origin,
}

/// Reads one pool's merged values, notes where each came from and everything that is wrong.
pub(super) struct Reader<'a> {
    root: &'a Raw,
    pub(super) file: Arc<Path>,
    pub(super) problems: Vec<Problem>,
    pub(super) settings: Vec<Setting>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(root: &'a Raw, file: &Arc<Path>) -> Reader<'a> {
        Reader { root, file: file.clone(), problems: Vec::new(), settings: Vec::new() }
    }

    /// What was typed at a dotted path.
    pub(super) fn written(&self, path: &str) -> Option<&'a Raw> {
        self.root.find(path)
    }

    /// The value of `key`: as written, else its default. `None` when there is neither, or it is wrong.
    pub(super) fn value<T>(&mut self, key: &str, read: impl Fn(&Raw) -> Result<T, String>) -> Option<T> {
        match (self.written(key), keys::find(key).map_or("", |known| known.default)) {
            (Some(raw), _) => self.read(raw, key, read),
            (None, "") => None,
            (None, default) => {
                let raw = Raw::literal(default);
                self.read(&raw, key, read)
            }
        }
    }

    /// The same for `name` in a member of a list of tables; `key` names the member for people, `schema` for the
    /// key table.
    pub(super) fn member<T>(
        &mut self,
        member: &Raw,
        (key, schema, name): (&str, &str, &str),
        read: impl Fn(&Raw) -> Result<T, String>,
    ) -> Option<T> {
        let key = format!("{key}.{name}");
        match (member.find(name), keys::find(&format!("{schema}.{name}")).map_or("", |known| known.default)) {
            (Some(raw), _) => self.read(raw, &key, read),
            (None, "") => None,
            (None, default) => self.read(&Raw::literal(default), &key, read),
        }
    }

    /// Reads `raw`, which is the value of `key`.
    pub(super) fn read<T>(
        &mut self,
        raw: &Raw,
        key: &str,
        read: impl Fn(&Raw) -> Result<T, String>,
    ) -> Option<T> {
        match read(raw) {
            Ok(value) => {
                self.settings.push(Setting {
                    key: key.to_owned(),
                    value: raw.value.to_string(),
                    origin: raw.origin(),
                });
                Some(value)
            }
            Err(message) => {
                self.problem(raw, key, message);
                None
            }
        }
    }

    /// The members of a list of tables; a wrong shape has been reported before.
    pub(super) fn tables(&self, path: &str) -> &'a [Raw] {
        match self.written(path).map(|raw| &raw.value) {
            Some(Value::List(members)) => members,
            _ => &[],
        }
    }

    /// `message` about `key`, which `raw` is the value of.
    pub(super) fn problem(&mut self, raw: &Raw, key: &str, message: impl Into<String>) {
        self.problems.push(Problem::at(raw.place.clone(), raw.full_key(key), message));
    }

    /// `message` about `key`, wherever it is written, or about the file.
    pub(super) fn problem_with(&mut self, key: &str, message: impl Into<String>) {
        match self.written(key) {
            Some(raw) => self.problem(raw, key, message),
            None => self.problems.push(Problem::of_file(&self.file, key, message)),
        }
    }

    /// Where `key` is written, if it is.
    pub(super) fn place(&self, key: &str) -> Option<Place> {
        self.written(key).and_then(|raw| raw.place.clone())
    }
}

fn refuse<T>(raw: &Raw, wanted: &str) -> Result<T, String> {
    Err(format!("{} is not accepted; {wanted}", raw.value))
}

pub(super) fn truth(raw: &Raw) -> Result<bool, String> {
    match raw.value {
        Value::Truth(truth) => Ok(truth),
        _ => refuse(raw, "write true or false"),
    }
}

pub(super) fn text(raw: &Raw) -> Result<String, String> {
    match &raw.value {
        Value::Text(text) if !text.trim().is_empty() => Ok(text.clone()),
        _ => refuse(raw, "write a name in quotes"),
    }
}

pub(super) fn count(raw: &Raw) -> Result<u32, String> {
    match raw.value {
        Value::Whole(number) => u32::try_from(number)
            .map_err(|_| format!("{number} is not accepted; write a whole number from 0 to {}", u32::MAX)),
        _ => refuse(raw, "write a whole number such as 3, without quotes or unit"),
    }
}

pub(super) fn duration(raw: &Raw) -> Result<Duration, String> {
    match &raw.value {
        Value::Text(text) => parse_duration(text),
        Value::Whole(0) => Ok(Duration::ZERO),
        Value::Whole(number) => {
            Err(format!("{number} has no unit; write \"{number}s\", or with ms, m, h, d or w, in quotes"))
        }
        _ => refuse(raw, "write a duration such as \"30s\", \"2m\" or \"14d\""),
    }
}

pub(super) fn bytes(raw: &Raw) -> Result<Bytes, String> {
    match &raw.value {
        Value::Text(text) => text.parse::<Bytes>().map_err(|error| error.to_string()),
        Value::Whole(0) => Ok(Bytes::ZERO),
        Value::Whole(number) => Err(format!("{number} has no unit; write for example \"{number}GiB\"")),
        _ => refuse(raw, "write a size such as \"10GiB\" or \"500MB\""),
    }
}

/// `"unlimited"`, or what `read` accepts.
pub(super) fn or_unlimited<T>(
    read: impl Fn(&Raw) -> Result<T, String>,
) -> impl Fn(&Raw) -> Result<Max<T>, String> {
    move |raw| match &raw.value {
        Value::Text(text) if text == "unlimited" => Ok(Max::Unlimited),
        _ => read(raw).map(Max::At).map_err(|message| format!("{message}; or \"unlimited\"")),
    }
}

/// A percentage or an absolute number, or a list of them.
pub(super) fn amount(raw: &Raw, signal: Signal) -> Result<Amount, String> {
    let one = |raw: &Raw| match (&raw.value, signal) {
        (Value::Text(text), _) => Quantity::parse(text, signal).map_err(|error| error.to_string()),
        (Value::Whole(0), _) => Ok(Quantity::Absolute(0)),
        (Value::Whole(number), Signal::InodesFree) => u64::try_from(*number)
            .map(Quantity::Absolute)
            .map_err(|_| format!("{number} is negative; write \"5%\" or a whole number of inodes")),
        (Value::Whole(number), Signal::Available) => {
            Err(format!("{number} has no unit; write for example \"{number}GiB\" or \"{number}%\""))
        }
        (_, Signal::Available) => refuse(raw, "write \"15%\", \"10GiB\" or a list of these"),
        (_, Signal::InodesFree) => refuse(raw, "write \"5%\", a number of inodes, or a list of these"),
    };
    match &raw.value {
        Value::List(items) => {
            let quantities = items.iter().map(one).collect::<Result<Vec<_>, _>>()?;
            Amount::new(quantities).ok_or_else(|| {
                "an empty list has no smallest value; write for example [\"15%\", \"100GiB\"]".into()
            })
        }
        _ => one(raw).map(Amount::one),
    }
}

pub(super) fn protection(raw: &Raw) -> Result<Protection, String> {
    let wanted = "write a whole number from 0 to 100, where 100 is never evicted";
    match raw.value {
        Value::Whole(number) => {
            u8::try_from(number).ok().and_then(Protection::new).map_or_else(|| refuse(raw, wanted), Ok)
        }
        _ => refuse(raw, wanted),
    }
}

pub(super) fn pattern(raw: &Raw) -> Result<Pattern, String> {
    match &raw.value {
        Value::Text(text) => Pattern::new(text).map_err(|error| error.to_string()),
        _ => refuse(raw, "write a name or a glob such as \"ci-*\" in quotes"),
    }
}

pub(super) fn absolute_path(raw: &Raw) -> Result<PathBuf, String> {
    match &raw.value {
        Value::Text(text) if Path::new(text).is_absolute() => Ok(PathBuf::from(text)),
        Value::Text(text) => {
            Err(format!("{text:?} is not an absolute path; write one that begins with \"/\""))
        }
        _ => refuse(raw, "write an absolute path in quotes"),
    }
}

/// `false` or `"off"`, or what `read` accepts.
pub(super) fn or_off<T>(
    read: impl Fn(&Raw) -> Result<T, String>,
) -> impl Fn(&Raw) -> Result<Option<T>, String> {
    move |raw| if is_off(raw) { Ok(None) } else { read(raw).map(Some) }
}

pub(super) fn is_off(raw: &Raw) -> bool {
    match &raw.value {
        Value::Truth(on) => !on,
        Value::Text(text) => text == "off",
        _ => false,
    }
}

pub(super) fn address(raw: &Raw) -> Result<SocketAddr, String> {
    match &raw.value {
        Value::Text(text) => text.parse().map_err(|_| {
            format!("{text:?} is not an address; write \"127.0.0.1:9477\", \"[::1]:9477\" or \"off\"")
        }),
        _ => refuse(raw, "write an address such as \"127.0.0.1:9477\", or \"off\""),
    }
}

/// One of a few words.
pub(super) fn one_of<'w, T: Copy>(words: &'w [(&'w str, T)]) -> impl Fn(&Raw) -> Result<T, String> + 'w {
    move |raw| {
        // TOML's false reads as the word "off" where there is such a word.
        let written = match &raw.value {
            Value::Text(text) => text.as_str(),
            Value::Truth(false) => "off",
            _ => "",
        };
        if let Some((_, choice)) = words.iter().find(|(word, _)| *word == written) {
            return Ok(*choice);
        }
        let known: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let hint = did_you_mean(written, words.iter().map(|(word, _)| *word));
        refuse(raw, &format!("write {}{hint}", known.join(", ")))
    }
}

/// A list of what `read` accepts, without repetition.
pub(super) fn list_of<T: PartialEq>(
    read: impl Fn(&Raw) -> Result<T, String>,
) -> impl Fn(&Raw) -> Result<Vec<T>, String> {
    move |raw| {
        let Value::List(items) = &raw.value else {
            return refuse(raw, "write a list such as [\"a\", \"b\"]");
        };
        let mut list = Vec::new();
        for item in items {
            let value = read(item)?;
            if list.contains(&value) {
                return Err(format!("{} stands in the list twice", item.value));
            }
            list.push(value);
        }
        Ok(list)
    }
}
