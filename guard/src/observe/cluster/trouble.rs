//! [`Trouble`]: what may be wrong with the API server, in the few kinds that call for different help.

use kube::Error;

/// A call that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}: {message}{}", cause.hint())]
pub struct Trouble {
    /// `list pods`.
    pub what: String,
    /// What kind of failure.
    pub cause: Cause,
    /// What the server or the client said.
    pub message: String,
}

/// The kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// 401: the token is not accepted.
    Unauthorized,
    /// 403: a verb is missing.
    Forbidden,
    /// 410: what was watched from is too old; everything is listed again.
    Expired,
    /// 429: the server asks for less.
    Throttled,
    /// Any other 4xx.
    Refused,
    /// 5xx.
    Server,
    /// No answer in time.
    Timeout,
    /// No connection, or one that broke.
    Unreachable,
}

impl Cause {
    /// Every value.
    pub const ALL: [Cause; 8] = [
        Cause::Unauthorized,
        Cause::Forbidden,
        Cause::Expired,
        Cause::Throttled,
        Cause::Refused,
        Cause::Server,
        Cause::Timeout,
        Cause::Unreachable,
    ];

    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::Unauthorized => "unauthorized",
            Cause::Forbidden => "forbidden",
            Cause::Expired => "expired",
            Cause::Throttled => "throttled",
            Cause::Refused => "refused",
            Cause::Server => "server",
            Cause::Timeout => "timeout",
            Cause::Unreachable => "unreachable",
        }
    }

    const fn hint(self) -> &'static str {
        match self {
            Cause::Forbidden => "; the ClusterRole of deploy/kubernetes/base/rbac.yaml has what is needed",
            Cause::Unauthorized => "; is the service account's token mounted, and of this cluster?",
            _ => "",
        }
    }

    /// The kind that an HTTP status stands for.
    pub const fn from_status(code: u16) -> Cause {
        match code {
            401 => Cause::Unauthorized,
            403 => Cause::Forbidden,
            410 => Cause::Expired,
            429 => Cause::Throttled,
            400..500 => Cause::Refused,
            _ => Cause::Server,
        }
    }
}

impl Trouble {
    /// From what the client says about the call `what`.
    pub fn new(what: impl Into<String>, error: &Error) -> Trouble {
        let what = what.into();
        match error {
            Error::Api(status) => {
                Trouble { what, cause: Cause::from_status(status.code), message: status.message.clone() }
            }
            // The operating system's word comes last, and it is the one that helps.
            other => Trouble { what, cause: Cause::Unreachable, message: chain(other) },
        }
    }

    /// No answer within `limit`.
    pub fn timeout(what: impl Into<String>, limit: std::time::Duration) -> Trouble {
        let message = format!("no answer within {} s", limit.as_secs());
        Trouble { what: what.into(), cause: Cause::Timeout, message }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut words: Vec<String> = causes.map(ToString::to_string).collect();
    words.dedup();
    words.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_kind_and_a_hint() {
        for (code, cause) in [
            (401, Cause::Unauthorized),
            (403, Cause::Forbidden),
            (404, Cause::Refused),
            (410, Cause::Expired),
            (429, Cause::Throttled),
            (500, Cause::Server),
            (503, Cause::Server),
        ] {
            assert_eq!(Cause::from_status(code), cause, "{code}");
        }
        let trouble = Trouble { what: "list pods".into(), cause: Cause::Forbidden, message: "no".into() };
        assert!(trouble.to_string().starts_with("list pods: no; the ClusterRole"), "{trouble}");
    }
}
