//! The trace that a request belongs to, by the W3C's `traceparent` and `tracestate`. Messages that have no trace of
//! their own carry it on in their headers, so that their consumers can join it.

use crate::kit::trace::{PARENT, w3c};

const STATE: &str = "tracestate";
/// The number of bytes that the standard asks every service to pass on.
const STATE_BYTES_MAX: usize = 512;

/// Headers for messages that have no trace of their own.
#[derive(Debug, Clone, Default)]
pub(super) struct Trace(Vec<Header>);

/// A name and its value.
pub(super) type Header = (&'static str, String);

impl Trace {
    /// The trace of a request, by the values of its headers or metadata. A trace that cannot be read is
    /// ignored.
    pub(super) fn read<'a>(value: impl Fn(&'static str) -> Option<&'a str>) -> Trace {
        let Some(parent) = value(PARENT).filter(|parent| w3c(parent).is_some()) else {
            return Trace::default();
        };
        let mut headers = vec![(PARENT, parent.to_owned())];
        if let Some(state) = value(STATE).filter(|state| !state.is_empty() && state.len() <= STATE_BYTES_MAX)
        {
            headers.push((STATE, state.to_owned()));
        }
        Trace(headers)
    }

    /// The headers that a message gets beside its own, which have these names.
    pub(super) fn headers_beside<'a>(&self, mut own: impl Iterator<Item = &'a str>) -> &[Header] {
        let is_traced = self.0.is_empty() || own.any(|name| name.eq_ignore_ascii_case(PARENT));
        if is_traced { &[] } else { &self.0 }
    }

    /// Bytes that these headers take in a stored message.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len() + 4).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(request: &[(&str, &str)], own: &str) -> Vec<String> {
        let value = |name| request.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
        let trace = Trace::read(value);
        trace
            .headers_beside([own].into_iter())
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    #[test]
    fn a_message_without_a_trace_gets_that_of_its_request() {
        let both = [("traceparent", SOUND), ("tracestate", "a=1")];
        assert_eq!(headers(&both, "color"), [format!("traceparent={SOUND}"), "tracestate=a=1".to_owned()]);
        assert!(headers(&both, "Traceparent").is_empty(), "it has its own");
        assert!(headers(&both[1..], "color").is_empty(), "a state belongs to a parent");
        for wrong in ["", "x", &SOUND[1..], &SOUND.to_uppercase(), &format!("{SOUND}-00")] {
            assert!(headers(&[("traceparent", wrong)], "color").is_empty(), "{wrong}");
        }
    }
}
