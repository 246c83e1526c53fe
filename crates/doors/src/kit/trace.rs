//! The trace that a message belongs to, in the forms in which producers of each protocol send it.
//!
//! | Producer | Form |
//! | --- | --- |
//! | HTTP, gRPC, and message attributes of SQS | the header `traceparent` of the W3C |
//! | SQS with X-Ray | the system attribute `AWSTraceHeader`, which is kept in the header `sqs:trace` |
//! | KurrentDB | `$traceId` and `$spanId` in the metadata of the event |

use forebay_broker::api::{Door, Message, TraceContext, parse_content};

/// The header of the W3C, and the one that a message of SQS keeps its trace header in.
pub(crate) const PARENT: &str = "traceparent";
pub(crate) const AWS: &str = "sqs:trace";
/// Members of the metadata of an event.
const KURRENT_TRACE: &str = "$traceId";
const KURRENT_SPAN: &str = "$spanId";

/// The trace of a message whose producer wants it recorded.
pub(crate) fn context_of(content: &[u8]) -> Option<TraceContext> {
    let message = parse_content(content).ok()?;
    let header = |wanted: &str| {
        let found = message.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.and_then(|(_, value)| std::str::from_utf8(value).ok())
    };
    if !message.headers.is_empty() {
        if let Some(parent) = header(PARENT) {
            return w3c(parent).and_then(|(context, is_sampled)| is_sampled.then_some(context));
        }
        if let Some(context) = header(AWS).and_then(aws) {
            return Some(context);
        }
    }
    kurrent(&message)
}

/// A `traceparent`: `version-trace-parent-flags` in hex digits, and whether the trace is recorded.
pub(crate) fn w3c(text: &str) -> Option<(TraceContext, bool)> {
    let mut parts = text.split('-');
    let mut part = || parts.next();
    let (version, trace, parent, flags) = (part()?, part()?, part()?, part()?);
    let [version]: [u8; 1] = hex(version)?;
    let [flags]: [u8; 1] = hex(flags)?;
    // A later version may have more parts.
    let is_whole = version != 0xff && (version > 0 || part().is_none());
    let context = TraceContext { trace: some_hex(trace)?, parent: Some(some_hex(parent)?) };
    is_whole.then_some((context, flags & 1 == 1))
}

/// `Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1`: the time and the rest of the root are
/// the trace.
fn aws(text: &str) -> Option<TraceContext> {
    let field = |name: &str| {
        let mut fields = text.split(';').filter_map(|field| field.trim().split_once('='));
        fields.find(|(field, _)| *field == name).map(|(_, value)| value)
    };
    let (time, rest) = field("Root")?.strip_prefix("1-")?.split_once('-')?;
    let trace = some_hex(&format!("{time}{rest}")).filter(|_| time.len() == 8)?;
    (field("Sampled") == Some("1"))
        .then(|| TraceContext { trace, parent: field("Parent").and_then(some_hex) })
}

/// Clients of KurrentDB that trace write down their trace and span, and only if they are recorded.
fn kurrent(message: &Message<'_>) -> Option<TraceContext> {
    let metadata = message.own?.of(Door::KURRENT)?;
    let key = KURRENT_TRACE.as_bytes();
    // Most metadata has no trace, and need not be read as JSON for that.
    if !metadata.windows(key.len()).any(|window| window == key) {
        return None;
    }
    let members: serde_json::Value = serde_json::from_slice(metadata).ok()?;
    let text = |name: &str| members.get(name).and_then(|value| value.as_str());
    Some(TraceContext {
        trace: some_hex(text(KURRENT_TRACE)?)?,
        parent: text(KURRENT_SPAN).and_then(some_hex),
    })
}

/// Bytes in lower-case hex digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(bytes)
}

/// The same, where zero stands for nothing.
fn some_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    hex(text).filter(|bytes| *bytes != [0; N])
}

#[cfg(test)]
mod tests {
    use forebay_broker::api::{BatchBuilder, Own};

    use super::*;

    const SOUND: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const TRACE: [u8; 16] = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes();
    const SPAN: [u8; 8] = 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes();

    fn found(message: &Message<'_>) -> Option<TraceContext> {
        let mut batch = BatchBuilder::default();
        batch.push(message);
        context_of(batch.build().contents())
    }

    fn with_header(name: &str, value: &str) -> Option<TraceContext> {
        found(&Message { headers: vec![(name, value.as_bytes())], body: b"x", ..Message::default() })
    }

    #[test]
    fn the_trace_of_each_protocol_is_found() {
        let whole = Some(TraceContext { trace: TRACE, parent: Some(SPAN) });
        assert_eq!(with_header("Traceparent", SOUND), whole);
        let root = "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736";
        let all = format!("{root};Parent=00f067aa0ba902b7;Sampled=1");
        assert_eq!(with_header("sqs:trace", &all), whole);
        let alone = Some(TraceContext { trace: TRACE, parent: None });
        assert_eq!(with_header("sqs:trace", &format!("Sampled=1; {root}")), alone);
        let metadata = br#"{"$traceId":"4bf92f3577b34da6a3ce929d0e0e4736","$spanId":"00f067aa0ba902b7"}"#;
        let own = Some(Own::new(Door::KURRENT, metadata));
        assert_eq!(found(&Message { own, ..Message::default() }), whole);
        let other = Some(Own::new(Door::SQS, metadata));
        assert_eq!(found(&Message { own: other, ..Message::default() }), None);
    }

    #[test]
    fn a_trace_that_is_not_recorded_or_not_sound_is_none() {
        for wrong in [
            "",
            &SOUND.replace("-01", "-00"),
            &SOUND.to_uppercase(),
            &SOUND.replacen("00", "ff", 1),
            &SOUND.replace("00f067aa0ba902b7", "0000000000000000"),
            &SOUND.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            &format!("{SOUND}-00"),
            &SOUND[1..],
        ] {
            assert_eq!(with_header("traceparent", wrong), None, "{wrong}");
        }
        assert!(
            w3c(&format!("{}-more", SOUND.replacen("00", "01", 1))).is_some(),
            "a later version has more"
        );
        for wrong in ["Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Sampled=0", "Root=1-4bf92f35;Sampled=1", "x"]
        {
            assert_eq!(with_header("sqs:trace", wrong), None, "{wrong}");
        }
        let own = Some(Own::new(Door::KURRENT, br#"{"$traceId":7}"#));
        assert_eq!(found(&Message { own, ..Message::default() }), None);
    }
}
