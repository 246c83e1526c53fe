//! Which events of all streams a client wants: by the name of their stream or by their type, by prefixes or by a
//! regular expression.
//!
//! Expressions are those of .NET, which has look-around, and the default of the Python client uses it. An expression
//! that takes too many steps on a text does not match that text.

use std::sync::Arc;

use fancy_regex::{Regex, RegexBuilder};
use forebay_wire::kurrent::client::FilterOptions;
use forebay_wire::kurrent::client::filter_options::{Expression, Filter as Wire, Window};
use tonic::Status;

use super::event::DEFAULT_TYPE;
use super::{links, status};

/// The longest expression, in bytes.
const REGEX_BYTES_MAX: usize = 4_096;
/// Prefixes of one filter.
const PREFIXES_MAX: usize = 1_000;
/// Steps back that an expression may take on one text.
const STEPS_MAX: usize = 100_000;
/// Memory for a compiled expression.
const COMPILED_BYTES_MAX: usize = 1 << 20;
/// Events that are looked at between two checkpoints, if a client does not say how many.
const WINDOW: u32 = 32;

/// A condition on a text.
#[derive(Debug, Clone)]
enum Condition {
    Prefixes(Arc<[String]>),
    Regex(Arc<Regex>),
}

impl Condition {
    fn read(expression: &Expression) -> Result<Condition, Status> {
        if expression.regex.is_empty() {
            if expression.prefix.len() > PREFIXES_MAX {
                return Err(status::invalid(format!("a filter must have at most {PREFIXES_MAX} prefixes")));
            }
            return Ok(Condition::Prefixes(expression.prefix.clone().into()));
        }
        if expression.regex.len() > REGEX_BYTES_MAX {
            return Err(status::invalid(format!(
                "a regular expression must have at most {REGEX_BYTES_MAX} bytes"
            )));
        }
        let built = RegexBuilder::new(&expression.regex)
            .backtrack_limit(STEPS_MAX)
            .delegate_size_limit(COMPILED_BYTES_MAX)
            .delegate_dfa_size_limit(COMPILED_BYTES_MAX)
            .build();
        match built {
            Ok(regex) => Ok(Condition::Regex(Arc::new(regex))),
            Err(error) => {
                let regex = &expression.regex;
                Err(status::invalid(format!(
                    "the regular expression is not understood: {error}. regex=`{regex}`"
                )))
            }
        }
    }

    fn passes(&self, text: &str) -> bool {
        match self {
            Condition::Prefixes(prefixes) => prefixes.iter().any(|prefix| text.starts_with(prefix.as_str())),
            Condition::Regex(regex) => regex.is_match(text).unwrap_or(false),
        }
    }
}

/// Which events of all streams are wanted.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    streams: Option<Condition>,
    kinds: Option<Condition>,
}

impl Filter {
    pub(super) fn read(options: &FilterOptions) -> Result<Filter, Status> {
        match &options.filter {
            Some(Wire::StreamIdentifier(expression)) => {
                Ok(Filter { streams: Some(Condition::read(expression)?), kinds: None })
            }
            Some(Wire::EventType(expression)) => {
                Ok(Filter { streams: None, kinds: Some(Condition::read(expression)?) })
            }
            None => Err(status::invalid("a filter must have stream_identifier or event_type")),
        }
    }

    /// Whether types matter.
    pub(super) fn has_kinds(&self) -> bool {
        self.kinds.is_some()
    }

    /// Whether events of a stream may pass. Streams in which groups on `$all` keep their own state never do:
    /// the group would feed on itself.
    pub(super) fn passes_stream(&self, name: &str) -> bool {
        !is_hidden(name) && self.streams.as_ref().is_none_or(|condition| condition.passes(name))
    }

    /// Whether events of a type pass. A message without one has the default.
    pub(super) fn passes_kind(&self, kind: &str) -> bool {
        let kind = if kind.is_empty() { DEFAULT_TYPE } else { kind };
        self.kinds.as_ref().is_none_or(|condition| condition.passes(kind))
    }
}

/// Streams that are never among all streams.
pub(super) fn is_hidden(name: &str) -> bool {
    let is_of_group = || {
        name.starts_with("$persistentsubscription-$all::")
            && (name.ends_with("-checkpoint") || name.ends_with("-parked"))
    };
    name.starts_with('$')
        && (name == "$epoch-information" || name.starts_with(links::OF_ALL) || is_of_group())
}

/// Events that are looked at between two checkpoints of a subscription.
pub(super) fn checkpoint_interval(options: &FilterOptions) -> Result<u64, Status> {
    let window = match options.window {
        Some(Window::Max(max)) => max,
        Some(Window::Count(_)) | None => WINDOW,
    };
    if window == 0 {
        return Err(status::invalid("the window of a filter must be at least 1. max=`0`"));
    }
    match options.checkpoint_interval_multiplier {
        0 => Err(status::invalid("checkpointIntervalMultiplier must be at least 1. value=`0`")),
        multiplier => Ok(u64::from(window) * u64::from(multiplier)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_type(regex: &str, prefix: &[&str]) -> Result<Filter, Status> {
        let prefix = prefix.iter().map(|&text| text.to_owned()).collect();
        let expression = Expression { regex: regex.to_owned(), prefix };
        Filter::read(&FilterOptions { filter: Some(Wire::EventType(expression)), ..FilterOptions::default() })
    }

    #[test]
    fn the_default_of_the_python_client_leaves_out_system_events() {
        let filter = by_type(r"^(?!(\$.+$|PersistentConfig\d+$|Result$))", &[]).expect("a filter");
        for (kind, passes) in [
            ("OrderPlaced", true),
            ("$metadata", false),
            ("PersistentConfig1", false),
            ("Results", true),
            ("", true),
        ] {
            assert_eq!(filter.passes_kind(kind), passes, "{kind}");
        }
    }

    #[test]
    fn prefixes_count_if_there_is_no_expression() {
        let filter = by_type("", &["Order", "Bill"]).expect("a filter");
        assert!(filter.passes_kind("OrderPlaced") && filter.passes_kind("Billed"));
        assert!(!filter.passes_kind("order") && !filter.passes_kind(""));
        let both = by_type("^X", &["Order"]).expect("a filter");
        assert!(both.passes_kind("X1") && !both.passes_kind("OrderPlaced"));
    }

    #[test]
    fn an_expression_that_takes_too_long_does_not_match() {
        let filter = by_type(r"^(?=(a+)+$)(a+)+\1b$", &[]).expect("a filter");
        assert!(!filter.passes_kind(&"a".repeat(200)));
        for wrong in ["(", "(?<n", &"a".repeat(REGEX_BYTES_MAX + 1)] {
            assert!(by_type(wrong, &[]).is_err());
        }
    }

    #[test]
    fn bookkeeping_of_groups_is_never_among_all_streams() {
        let all = Filter::default();
        for (name, passes) in [
            ("orders", true),
            ("$$orders", true),
            ("$persistentsubscription-orders::g-parked", true),
            ("$all::g", false),
            ("$ce-orders", true),
            ("$persistentsubscription-$all::g-parked", false),
            ("$persistentsubscription-$all::g-checkpoint", false),
        ] {
            assert_eq!(all.passes_stream(name), passes, "{name}");
        }
    }

    #[test]
    fn checkpoints_come_after_so_many_events() {
        let options = |window, checkpoint_interval_multiplier| FilterOptions {
            filter: None,
            window,
            checkpoint_interval_multiplier,
        };
        assert_eq!(checkpoint_interval(&options(Some(Window::Max(10)), 5)).expect("a number"), 50);
        assert_eq!(checkpoint_interval(&options(None, 2)).expect("a number"), 64);
        assert!(checkpoint_interval(&options(None, 0)).is_err());
        assert!(checkpoint_interval(&options(Some(Window::Max(0)), 1)).is_err());
    }
}
