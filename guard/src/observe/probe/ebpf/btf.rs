//! [`Btf`]: what the running kernel says about its own structures.
//!
//! Just enough of the format for offsets of members, values of enumerators and numbers of arguments. The format is
//! Documentation/bpf/btf.rst of the kernel. The eBPF library reads it too, but keeps the members to itself.

use std::path::Path;

use super::super::ProbeError;

const MAGIC: u32 = 0xeb9f;

/// Kinds of types (`BTF_KIND_*`).
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

/// One type: its fixed part, and where the rest of it begins.
#[derive(Clone, Copy, Debug)]
struct Type {
    name: u32,
    kind: u32,
    /// Members, enumerators or arguments.
    count: u32,
    /// Bit offsets share their word with bit-field sizes.
    has_bit_fields: bool,
    /// The type referred to, or a size.
    target: u32,
    details: usize,
}

/// The types of the kernel, and of modules if they were added.
#[derive(Debug)]
pub(super) struct Btf {
    types: Vec<Type>,
    words: Vec<u32>,
    strings: Vec<u8>,
}

impl Btf {
    /// The kernel's own, `/sys/kernel/btf/vmlinux`.
    pub(super) fn of_kernel() -> Result<Btf, ProbeError> {
        let mut btf = Btf::empty();
        btf.add_file(Path::new("/sys/kernel/btf/vmlinux"))?;
        Ok(btf)
    }

    fn empty() -> Btf {
        // Type 0 is `void`.
        let void = Type { name: 0, kind: 0, count: 0, has_bit_fields: false, target: 0, details: 0 };
        Btf { types: vec![void], words: Vec::new(), strings: Vec::new() }
    }

    /// Adds the types of a module, when it is loaded and describes itself. Needs those of the kernel.
    pub(super) fn add_module(&mut self, module: &str) -> Result<(), ProbeError> {
        let path = Path::new("/sys/kernel/btf").join(module);
        if path.exists() { self.add_file(&path) } else { Ok(()) }
    }

    fn add_file(&mut self, path: &Path) -> Result<(), ProbeError> {
        let error = |reason: String| ProbeError::Btf { path: path.display().to_string(), reason };
        let data = std::fs::read(path).map_err(|source| error(source.to_string()))?;
        self.add(&data).ok_or_else(|| error("it is malformed".to_owned()))
    }

    /// A module's type numbers and string offsets go on where the kernel's end, so that adding is appending.
    fn add(&mut self, data: &[u8]) -> Option<()> {
        let words: Vec<u32> = data
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let header = words.get(..6)?;
        if header[0] & 0xffff != MAGIC {
            return None;
        }
        let [header_len, types_at, types_len, strings_at, strings_len] =
            [header[1], header[2], header[3], header[4], header[5]].map(|word| word as usize);
        let strings = data.get(header_len + strings_at..header_len + strings_at + strings_len)?;
        self.strings.extend_from_slice(strings);

        let from = (header_len + types_at) / 4;
        let section = words.get(from..from + types_len / 4)?;
        let base = self.words.len();
        self.words.extend_from_slice(section);
        let mut at = base;
        while at < self.words.len() {
            let [name, info, target] = *self.words.get(at..at + 3)? else { return None };
            let kind = info >> 24 & 0x1f;
            let count = info & 0xffff;
            let has_bit_fields = info >> 31 != 0;
            self.types.push(Type { name, kind, count, has_bit_fields, target, details: at + 3 });
            at += 3 + details_len(kind, count as usize);
        }
        (at == self.words.len()).then_some(())
    }

    /// Whether the string at `at` is `name`.
    fn is_named(&self, at: u32, name: &str) -> bool {
        let rest = self.strings.get(at as usize..).unwrap_or_default();
        rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }

    fn named(&self, kind: u32, name: &str) -> Option<Type> {
        self.types.get(self.id(kind, name)? as usize).copied()
    }

    /// The number by which the kernel knows a function of its own.
    pub(super) fn function_id(&self, name: &str) -> Option<u32> {
        self.id(kind::FUNC, name)
    }

    /// The number by which the kernel knows a structure.
    pub(super) fn structure_id(&self, name: &str) -> Option<u32> {
        self.id(kind::STRUCT, name)
    }

    fn id(&self, kind: u32, name: &str) -> Option<u32> {
        let at = self.types.iter().position(|this| this.kind == kind && self.is_named(this.name, name))?;
        u32::try_from(at).ok()
    }

    /// The type that `id` is, behind typedefs and qualifiers.
    fn resolve(&self, mut id: u32) -> Option<Type> {
        // No declaration is that long; a circle would be.
        for _ in 0..32 {
            let this = *self.types.get(id as usize)?;
            match this.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::TYPE_TAG => id = this.target,
                _ => return Some(this),
            }
        }
        None
    }

    /// Byte offset of a member, `"f_path.dentry"` within `"file"`. Unnamed structures and unions in between are
    /// looked through, as C does.
    pub(super) fn offset(&self, structure: &str, path: &str) -> Result<u32, ProbeError> {
        let mut this = self.named(kind::STRUCT, structure);
        let mut offset = 0;
        for member in path.split('.') {
            let found = this.and_then(|this| self.member(this, member));
            let Some((at, id)) = found else {
                return Err(ProbeError::Unfamiliar { missing: format!("struct {structure} member {path}") });
            };
            offset += at;
            this = self.resolve(id);
        }
        Ok(offset)
    }

    /// Bytes of a structure.
    pub(super) fn size(&self, structure: &str) -> Result<u32, ProbeError> {
        let this = self.named(kind::STRUCT, structure);
        this.map(|this| this.target)
            .ok_or_else(|| ProbeError::Unfamiliar { missing: format!("struct {structure}") })
    }

    /// Byte offset and type of a member.
    fn member(&self, this: Type, name: &str) -> Option<(u32, u32)> {
        if this.kind != kind::STRUCT && this.kind != kind::UNION {
            return None;
        }
        self.words[this.details..].chunks_exact(3).take(this.count as usize).find_map(|member| {
            let bits = if this.has_bit_fields { member[2] & 0xff_ffff } else { member[2] };
            if member[0] != 0 {
                return self.is_named(member[0], name).then_some((bits / 8, member[1]));
            }
            let (inner, id) = self.member(self.resolve(member[1])?, name)?;
            Some((bits / 8 + inner, id))
        })
    }

    /// Value of an enumerator of whatever enumeration.
    pub(super) fn enumerator(&self, name: &str) -> Result<u32, ProbeError> {
        self.types
            .iter()
            .filter(|this| this.kind == kind::ENUM)
            .flat_map(|this| self.words[this.details..].chunks_exact(2).take(this.count as usize))
            .find(|enumerator| self.is_named(enumerator[0], name))
            .map(|enumerator| enumerator[1])
            .ok_or_else(|| ProbeError::Unfamiliar { missing: format!("enumerator {name}") })
    }

    /// How many arguments a tracepoint passes to a raw tracepoint program, `None` when there is no such tracepoint.
    /// Its typedef `btf_trace_<name>` is a pointer to a function that has one more in front.
    pub(super) fn tracepoint_arguments(&self, tracepoint: &str) -> Option<u32> {
        let typedef = self.named(kind::TYPEDEF, &format!("btf_trace_{tracepoint}"))?;
        let pointer = self.resolve(typedef.target)?;
        let function = self.resolve(pointer.target)?;
        (pointer.kind == kind::PTR && function.kind == kind::FUNC_PROTO)
            .then(|| function.count.saturating_sub(1))
    }
}

impl Btf {
    /// How many arguments a function of the kernel takes, `None` when there is none of that name to be traced.
    pub(super) fn function_arguments(&self, function: &str) -> Option<u32> {
        let prototype = self.resolve(self.named(kind::FUNC, function)?.target)?;
        (prototype.kind == kind::FUNC_PROTO).then_some(prototype.count)
    }
}

/// How many words follow the fixed part of a type.
fn details_len(kind: u32, count: usize) -> usize {
    match kind {
        kind::INT | kind::VAR | kind::DECL_TAG => 1,
        kind::ARRAY => 3,
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 3 * count,
        kind::ENUM | kind::FUNC_PROTO => 2 * count,
        _ => 0,
    }
}

/// Name, bytes, and members with their byte offsets.
#[cfg(test)]
pub(super) type Structure<'a> = (&'a str, u32, &'a [(&'a str, u32)]);

#[cfg(test)]
impl Btf {
    /// Of a kernel that has these structures and this enumerator.
    pub(super) fn of_structures(structures: &[Structure<'_>], enumerator: (&str, u32)) -> Btf {
        let mut strings = "\0".to_owned();
        let mut string = |name: &str| {
            strings.push_str(name);
            strings.push('\0');
            (strings.len() - name.len() - 1) as u32
        };
        let mut types = vec![0, kind::ENUM << 24 | 1, 4, string(enumerator.0), enumerator.1];
        for (name, size, members) in structures {
            types.extend([string(name), kind::STRUCT << 24 | members.len() as u32, *size]);
            members.iter().for_each(|(name, at)| types.extend([string(name), 1, at * 8]));
        }
        let mut btf = Btf::empty();
        btf.add(&tests::encoded(&types, &strings)).expect("it is well formed");
        btf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BTF with these types (three words each, then details) and strings.
    pub(super) fn encoded(types: &[u32], strings: &str) -> Vec<u8> {
        let types_len = types.len() as u32 * 4;
        let header = [MAGIC | 1 << 16, 24, 0, types_len, types_len, strings.len() as u32];
        let mut data: Vec<u8> = header.iter().chain(types).flat_map(|word| word.to_le_bytes()).collect();
        data.extend(strings.as_bytes());
        data
    }

    fn info(kind: u32, count: u32) -> u32 {
        kind << 24 | count
    }

    /// `struct file { int count; const struct { int inner; } ; };` as types 1 to 4.
    fn kernel() -> Vec<u8> {
        #[rustfmt::skip]
        let types = [
            1, info(kind::INT, 0), 4, 32,
            5, info(kind::STRUCT, 2), 8, /* count */ 10, 1, 0, /* unnamed */ 0, 4, 32,
            0, info(kind::STRUCT, 1), 4, /* inner */ 16, 1, 0,
            0, info(kind::CONST, 0), 3,
        ];
        encoded(&types, "\0int\0file\0count\0inner\0")
    }

    #[test]
    fn members_of_unnamed_qualified_structures_are_found() {
        let mut btf = Btf::empty();
        btf.add(&kernel()).unwrap();
        assert_eq!(btf.offset("file", "count").unwrap(), 0);
        assert_eq!(btf.offset("file", "inner").unwrap(), 4);
        let error = btf.offset("file", "f_path.dentry").unwrap_err().to_string();
        assert!(error.contains("no struct file member f_path.dentry"), "{error}");
    }

    #[test]
    fn a_module_goes_on_numbering_where_the_kernel_ends() {
        let mut btf = Btf::empty();
        btf.add(&kernel()).unwrap();
        // `struct request { int count; struct file file; };`: string 22 is the module's first, types 1 and 2 and
        // string 10 are the kernel's.
        let types = [23, info(kind::STRUCT, 2), 16, 10, 1, 0, 5, 2, 64];
        btf.add(&encoded(&types, "\0request\0")).unwrap();
        assert_eq!(btf.offset("request", "count").unwrap(), 0);
        assert_eq!(btf.offset("request", "file.inner").unwrap(), 12);
    }

    #[test]
    fn damaged_data_is_refused() {
        let whole = kernel();
        for len in 0..whole.len() - 1 {
            let mut btf = Btf::empty();
            assert!(btf.add(&whole[..len]).is_none(), "the first {len} bytes");
        }
        let mut other = whole;
        other[0] ^= 1;
        assert!(Btf::empty().add(&other).is_none(), "not BTF");
    }

    #[test]
    fn the_running_kernel_is_understood() {
        let Ok(btf) = Btf::of_kernel() else {
            eprintln!("skipped: this kernel has no BTF");
            return;
        };
        // Unchanged since Linux 2.6.
        assert_eq!(btf.offset("list_head", "prev").unwrap(), 8);
        assert_eq!(btf.tracepoint_arguments("sys_enter"), Some(2));
        assert_eq!(btf.tracepoint_arguments("no_such_tracepoint"), None);
        assert_eq!(btf.function_arguments("vfs_write"), Some(4));
        assert_eq!(btf.function_arguments("no_such_function"), None);
    }
}
