//! The process's own log, on stderr: for people as text, for machines as JSON lines.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look (`--log`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text on a terminal, JSON lines otherwise: what collects a daemon's stderr wants fields, not columns.
    #[default]
    Auto,
    /// Always text.
    Text,
    /// Always JSON lines.
    Json,
}

/// Why logging could not begin.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// `--log-level` or `RUST_LOG` is no filter.
    #[error(
        "{filter:?} (from {origin}) is not a log filter: {source}; write error, warn, info, debug or trace, or a list \
         such as \"info,guard::act=debug\""
    )]
    Filter {
        /// What was written.
        filter: String,
        /// Where: the option or the variable.
        origin: &'static str,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Logging had begun already.
    #[error("logging was already set up: {0}")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// Starts logging to stderr. The filter is `level` (`--log-level`), else `RUST_LOG`, else `info`. Colour only on a
/// terminal, and not where `NO_COLOR` is set.
///
/// # Errors
/// When the filter cannot be read, or logging had begun already.
pub fn start(format: Format, level: Option<&str>) -> Result<(), LoggingError> {
    let from_environment = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = choose_filter(level, from_environment.as_deref())?;
    let on_terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if is_json(format, on_terminal) {
        lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .finish()
            .try_init()?;
    } else {
        let colour = on_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        lines.with_ansi(colour).with_target(false).finish().try_init()?;
    }
    Ok(())
}

fn is_json(format: Format, on_terminal: bool) -> bool {
    match format {
        Format::Auto => !on_terminal,
        Format::Text => false,
        Format::Json => true,
    }
}

fn choose_filter(option: Option<&str>, variable: Option<&str>) -> Result<EnvFilter, LoggingError> {
    let (filter, origin) = match (option, variable) {
        (Some(option), _) => (option, "--log-level"),
        (None, Some(variable)) => (variable, "RUST_LOG"),
        (None, None) => ("info", "the default"),
    };
    EnvFilter::try_new(filter).map_err(|source| LoggingError::Filter {
        filter: filter.to_owned(),
        origin,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_text_and_collectors_read_json() {
        for (format, on_terminal, json) in [
            (Format::Auto, true, false),
            (Format::Auto, false, true),
            (Format::Text, false, false),
            (Format::Json, true, true),
        ] {
            assert_eq!(is_json(format, on_terminal), json, "{format:?}, terminal: {on_terminal}");
        }
    }

    #[test]
    fn the_option_wins_over_the_variable_and_info_is_the_default() {
        let shown = |option, variable| choose_filter(option, variable).unwrap().to_string();
        assert_eq!(shown(Some("debug"), Some("trace")), "debug");
        assert_eq!(shown(None, Some("warn,guard=debug")), "guard=debug,warn");
        assert_eq!(shown(None, None), "info");
    }

    #[test]
    fn a_wrong_filter_is_quoted_with_its_origin_and_what_is_accepted() {
        let error = choose_filter(None, Some("guard=loud")).unwrap_err().to_string();
        for part in ["guard=loud", "RUST_LOG", "error, warn, info, debug or trace"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
