//! What was typed: TOML values with the lines they stand on, and pools laid over the base.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Origin, Place, Problem};

/// A value as typed.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    pub(super) value: Value,
    /// `None` for a default, which stands in no file.
    pub(super) place: Option<Place>,
    /// The pool whose table holds it.
    pub(super) pool: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Table(BTreeMap<String, Raw>),
    List(Vec<Raw>),
    Text(String),
    Whole(i64),
    Truth(bool),
    /// A float, a date, or a whole number too large: nothing of ours is one. As typed.
    Other(String),
}

impl Raw {
    /// Reads a file's text. All syntax errors at once.
    pub(super) fn parse(text: &str, file: &Arc<Path>) -> Result<Raw, Vec<Problem>> {
        let (document, errors) = DeTable::parse_recoverable(text);
        let lines = Lines::new(text);
        if errors.is_empty() {
            let place = |offset: usize| Some(Place { file: file.clone(), line: lines.at(offset) });
            return Ok(Raw { value: table(document.get_ref(), &place), place: None, pool: None });
        }
        let problem = |error: &toml::de::Error| Problem {
            file: Some(file.clone()),
            line: error.span().map(|span| lines.at(span.start)),
            key: String::new(),
            message: format!("not TOML: {}", error.message()),
        };
        Err(errors.iter().map(problem).collect())
    }

    /// A default, written as in the key table.
    pub(super) fn literal(text: &str) -> Raw {
        let document = format!("it = {text}");
        let parsed = DeTable::parse(&document).expect("a test reads every default of the key table");
        match table(parsed.get_ref(), &|_| None) {
            Value::Table(mut entries) => entries.remove("it").expect("the line above defines it"),
            _ => unreachable!("a document is a table"),
        }
    }

    /// The table's entry.
    pub(super) fn get(&self, key: &str) -> Option<&Raw> {
        match &self.value {
            Value::Table(entries) => entries.get(key),
            _ => None,
        }
    }

    /// The entry at a dotted path of plain keys.
    pub(super) fn find(&self, path: &str) -> Option<&Raw> {
        path.split('.').try_fold(self, |raw, key| raw.get(key))
    }

    pub(super) fn origin(&self) -> Origin {
        self.place.clone().map_or(Origin::Default, Origin::Written)
    }

    /// `key` as the person who wrote this value would name it.
    pub(super) fn full_key(&self, key: &str) -> String {
        match &self.pool {
            Some(pool) => format!("pool.{}.{key}", quote_key(pool)),
            None => key.to_owned(),
        }
    }

    /// Marks everything in it as written in `pool`.
    pub(super) fn in_pool(mut self, pool: &Arc<str>) -> Raw {
        self.pool = Some(pool.clone());
        self.value = match self.value {
            Value::Table(entries) => {
                Value::Table(entries.into_iter().map(|(key, raw)| (key, raw.in_pool(pool))).collect())
            }
            Value::List(items) => Value::List(items.into_iter().map(|raw| raw.in_pool(pool)).collect()),
            scalar => scalar,
        };
        self
    }
}

/// Lays `over` on `base`: tables field by field, rules by whom they are about, everything else as a whole.
///
/// A pool's rule about the same owners as an inherited one overrides it field by field; others are added. A
/// pool's `[[directory]]` list replaces the inherited one: a node has these directories or those.
pub(super) fn overlay(base: &Raw, over: &Raw, path: &str) -> Raw {
    let value = match (&base.value, &over.value) {
        (Value::Table(below), Value::Table(above)) => {
            let mut merged = below.clone();
            for (key, raw) in above {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let laid = match below.get(key) {
                    Some(inherited) => overlay(inherited, raw, &path),
                    None => raw.clone(),
                };
                merged.insert(key.clone(), laid);
            }
            Value::Table(merged)
        }
        (Value::List(below), Value::List(above)) if RULES.contains(&path) => {
            let mut merged = below.clone();
            for rule in above {
                match merged.iter_mut().find(|inherited| owner(inherited) == owner(rule)) {
                    Some(inherited) => *inherited = overlay(inherited, rule, path),
                    None => merged.push(rule.clone()),
                }
            }
            Value::List(merged)
        }
        (_, replacement) => replacement.clone(),
    };
    Raw { value, place: over.place.clone(), pool: over.pool.clone() }
}

/// Lists whose members are rules about owners.
pub(super) const RULES: [&str; 2] = ["retention", "protection.rule"];

/// Whom a rule is about, as typed.
pub(super) fn owner(rule: &Raw) -> [Option<String>; 3] {
    ["namespace", "pod", "container"].map(|part| match rule.get(part).map(|raw| &raw.value) {
        Some(Value::Text(text)) => Some(text.clone()),
        _ => None,
    })
}

/// A key as TOML wants it: bare when it can be.
pub(super) fn quote_key(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !key.is_empty() && key.chars().all(bare) { key.to_owned() } else { quote(key) }
}

/// A text as TOML wants it.
pub(super) fn quote(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// As TOML, on one line.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(&quote(text)),
            Value::Whole(number) => write!(f, "{number}"),
            Value::Truth(truth) => write!(f, "{truth}"),
            Value::Other(text) => f.write_str(text),
            Value::List(items) => {
                let items: Vec<_> = items.iter().map(|raw| raw.value.to_string()).collect();
                write!(f, "[{}]", items.join(", "))
            }
            Value::Table(entries) => {
                let entry = |(key, raw): (&String, &Raw)| format!("{} = {}", quote_key(key), raw.value);
                let entries: Vec<_> = entries.iter().map(entry).collect();
                write!(f, "{{ {} }}", entries.join(", "))
            }
        }
    }
}

type PlaceOf<'a> = dyn Fn(usize) -> Option<Place> + 'a;

fn table(entries: &DeTable<'_>, place: &PlaceOf<'_>) -> Value {
    let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let key: &std::borrow::Cow<'_, str> = key.get_ref();
        (key.to_string(), raw(value, place))
    };
    Value::Table(entries.iter().map(entry).collect())
}

fn raw(spanned: &Spanned<DeValue<'_>>, place: &PlaceOf<'_>) -> Raw {
    let value = match spanned.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => Value::Whole(number),
            Err(_) => Value::Other(integer.to_string()),
        },
        DeValue::Float(float) => Value::Other(float.to_string()),
        DeValue::Boolean(truth) => Value::Truth(*truth),
        DeValue::Datetime(time) => Value::Other(time.to_string()),
        DeValue::Array(items) => Value::List(items.iter().map(|item| raw(item, place)).collect()),
        DeValue::Table(entries) => table(entries, place),
    };
    Raw { value, place: place(spanned.span().start), pool: None }
}

/// Offsets at which lines begin.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Lines {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Lines(std::iter::once(0).chain(ends.map(|(offset, _)| offset + 1)).collect())
    }

    /// The line, from 1, that `offset` lies on.
    fn at(&self, offset: usize) -> u32 {
        let line = self.0.partition_point(|start| *start <= offset);
        u32::try_from(line).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Raw {
        Raw::parse(text, &Arc::from(Path::new("guard.toml"))).unwrap()
    }

    #[test]
    fn every_value_knows_its_line() {
        let raw = parse("[[directory]]\npath = \"/a\"\n\n[pool.gpu]\n\npressure.hard.available = \"1GiB\"\n");
        let line = |path: &str| raw.find(path).unwrap().place.clone().unwrap().line;
        assert_eq!(line("directory"), 1);
        assert_eq!(line("pool.gpu"), 4);
        assert_eq!(line("pool.gpu.pressure.hard.available"), 6);
    }

    #[test]
    fn all_syntax_errors_are_told_at_once() {
        let problems = Raw::parse("a = \nb = 1\nb = 2\n", &Arc::from(Path::new("guard.toml"))).unwrap_err();
        let lines: Vec<_> = problems.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [Some(1), Some(3)]);
    }

    #[test]
    fn a_layer_overrides_field_by_field_and_rules_by_owner() {
        let base = parse(
            "pressure.hard = { available = \"15%\", inodes-free = \"7%\" }\n\
             retention = [{ namespace = \"a\", max-size = \"1GiB\", max-age = \"1d\" }, { namespace = \"b\" }]",
        );
        let over = parse(
            "pressure.hard.available = \"20%\"\n\
             retention = [{ namespace = \"c\" }, { namespace = \"a\", max-age = \"2d\" }]",
        );
        let merged = overlay(&base, &over, "");
        assert_eq!(
            merged.find("pressure.hard").unwrap().value.to_string(),
            "{ available = \"20%\", inodes-free = \"7%\" }"
        );
        assert_eq!(
            merged.find("retention").unwrap().value.to_string(),
            "[{ max-age = \"2d\", max-size = \"1GiB\", namespace = \"a\" }, { namespace = \"b\" }, { namespace = \"c\" }]"
        );
    }
}
