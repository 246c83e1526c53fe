//! The trace that a call belongs to, by the W3C's `traceparent` and `tracestate`. What is published carries
//! it on in its headers, so that whoever handles a message can tell where it came from.

use forebay_wire::v1;
use tonic::metadata::MetadataMap;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";
/// `version-trace-parent-flags`, in hex digits.
const PARENT_PARTS: [usize; 4] = [2, 32, 16, 2];
/// As much as everybody has to pass on.
const STATE_BYTES_MAX: usize = 512;

/// Headers for messages that have no trace of their own.
#[derive(Debug, Clone, Default)]
pub(super) struct Trace(Vec<(&'static str, String)>);

/// The trace in the metadata of a call. One that cannot be read is no trace.
pub(super) fn of_call(metadata: &MetadataMap) -> Trace {
    let text = |name| metadata.get(name).and_then(|value| value.to_str().ok());
    let Some(parent) = text(PARENT).filter(|parent| is_parent(parent)) else { return Trace::default() };
    let mut headers = vec![(PARENT, parent.to_owned())];
    if let Some(state) = text(STATE).filter(|state| !state.is_empty() && state.len() <= STATE_BYTES_MAX) {
        headers.push((STATE, state.to_owned()));
    }
    Trace(headers)
}

fn is_parent(text: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let parts: Vec<&str> = text.split('-').collect();
    parts.iter().map(|part| part.len()).eq(PARENT_PARTS) && parts.iter().all(|part| is_hex(part))
}

impl Trace {
    /// What a message gets beside its own headers.
    pub(super) fn headers_for(&self, message: &v1::Message) -> impl Iterator<Item = (&str, &str)> {
        let has_own = || message.headers.iter().any(|header| header.name.eq_ignore_ascii_case(PARENT));
        let headers = if self.0.is_empty() || has_own() { &[][..] } else { &self.0[..] };
        headers.iter().map(|(name, value)| (*name, &value[..]))
    }

    /// Bytes that these headers have.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len() + 4).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(metadata: &[(&'static str, &str)], own: &str) -> Vec<String> {
        let mut map = MetadataMap::new();
        for (name, value) in metadata {
            map.insert(*name, value.parse().expect("text"));
        }
        let own = v1::Header { name: own.to_owned(), value: "x".to_owned() };
        let message = v1::Message { headers: vec![own], ..v1::Message::default() };
        of_call(&map).headers_for(&message).map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn a_message_without_a_trace_gets_that_of_its_call() {
        let both = [("traceparent", SOUND), ("tracestate", "a=1")];
        assert_eq!(headers(&both, "color"), [format!("traceparent={SOUND}"), "tracestate=a=1".to_owned()]);
        assert!(headers(&both, "Traceparent").is_empty(), "it has its own");
        assert!(headers(&both[1..], "color").is_empty(), "a state belongs to a parent");
        for wrong in ["", "x", &SOUND[1..], &SOUND.to_uppercase(), &format!("{SOUND}-00")] {
            assert!(headers(&[("traceparent", wrong)], "color").is_empty(), "{wrong}");
        }
    }
}
