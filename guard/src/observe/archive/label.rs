//! Which texts may be names. What is not is dropped before anybody believes, stores or logs it.

/// A namespace or a Kubernetes container: a DNS label (RFC 1123), at most 63 bytes.
///
/// Kubernetes: `IsDNS1123Label`, staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go.
pub(super) fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else { return false };
    bytes.len() <= 63
        && alphanumeric(first)
        && alphanumeric(last)
        && bytes.iter().all(|&byte| alphanumeric(byte) || byte == b'-')
}

/// A pod: DNS labels with dots between, at most 253 bytes in all. Kubernetes bounds only the whole.
///
/// Kubernetes: `IsDNS1123Subdomain`, in the same file.
pub(super) fn is_dns_subdomain(text: &str) -> bool {
    let label = |part: &str| {
        let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        part.starts_with(alphanumeric)
            && part.ends_with(alphanumeric)
            && part.chars().all(|c| alphanumeric(c) || c == '-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// A podman container: letters, digits, `_`, `.`, `-`, the first none of the last three.
///
/// podman: `NameRegex`, libpod/define/config.go; it has no bound on the length, a file name has: 255.
pub(super) fn is_podman_name(text: &str) -> bool {
    text.len() <= 255
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// A pod's UID: a UUID, or the hash that the kubelet gives a static pod.
pub(super) fn is_uid(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, [label, subdomain, podman]: [bool; 3]) {
        assert_eq!(is_dns_label(text), label, "label {text:?}");
        assert_eq!(is_dns_subdomain(text), subdomain, "subdomain {text:?}");
        assert_eq!(is_podman_name(text), podman, "podman {text:?}");
    }

    #[test]
    fn names_are_what_their_owners_allow() {
        check("kube-system", [true, true, true]);
        check("web.v1-0", [false, true, true]);
        check("Web_1", [false, false, true]);
        check("a", [true, true, true]);
        check(&"a".repeat(64), [false, true, true]);
        check(&"a".repeat(254), [false, false, true]);
        check(&"a".repeat(256), [false, false, false]);
        check("a..b", [false, false, true]);
        check("a-.b", [false, false, true]);
        for bad in ["", "-a", ".a", "a/b", "a\n", "a\u{1b}[31m", "ä", "a b"] {
            check(bad, [false; 3]);
        }
    }

    #[test]
    fn uids_are_short_and_plain() {
        assert!(is_uid("19799841-684a-43df-95e8-50ad687b8d68"));
        assert!(is_uid("b8338512d5ef006ef7dbe43ce8ffbac8"));
        assert!(!is_uid("") && !is_uid("a/b") && !is_uid(&"a".repeat(65)));
    }
}
