//! The messages of a run: what their producers give them, and how consumers tell that they are the same.

use serde_json::json;

use crate::dice::Dice;

/// Of this type are messages that no consumer can finish until the end of the run.
pub(crate) const POISON: &str = "poison";
const WORK: &str = "work";
/// The header that has the message's number.
pub(crate) const NUMBER: &str = "n";

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Content {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) kind: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) priority: u32,
    pub(crate) body: Vec<u8>,
}

impl Content {
    /// The message's number, if it is one of ours.
    pub(crate) fn number(&self) -> Option<u64> {
        let (_, value) = self.headers.iter().find(|(name, _)| name == NUMBER)?;
        value.parse().ok()
    }

    pub(crate) fn is_poison(&self) -> bool {
        self.kind == POISON
    }

    /// Of all that a consumer sees. A body that is JSON may be written in another way by the door through
    /// which it comes, so it counts as what it means.
    pub(crate) fn digest(&self) -> u64 {
        let body = match serde_json::from_slice::<serde_json::Value>(&self.body) {
            Ok(value) => value.to_string().into_bytes(),
            Err(_) => self.body.clone(),
        };
        let mut digest = Digest::default();
        digest.take(self.id.as_bytes());
        digest.take(self.key.as_bytes());
        digest.take(self.kind.as_bytes());
        let mut headers = self.headers.clone();
        headers.sort();
        for (name, value) in &headers {
            digest.take(name.as_bytes());
            digest.take(value.as_bytes());
        }
        digest.take(&self.priority.to_le_bytes());
        digest.take(&body);
        digest.0
    }
}

/// FNV-1a, of pieces with their lengths.
struct Digest(u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xCBF2_9CE4_8422_2325)
    }
}

impl Digest {
    fn take(&mut self, bytes: &[u8]) {
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }
}

/// What the messages of a stream are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    Plain,
    /// Each has a key, one of so many.
    Keyed(u64),
    /// Delays, priorities and poison.
    Mixed,
}

/// A message to publish.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) number: u64,
    pub(crate) content: Content,
    pub(crate) delay_ms: u64,
}

impl Draft {
    pub(crate) fn new(number: u64, flavour: Flavour, has_id: bool, dice: &mut Dice) -> Draft {
        let mut content = Content {
            kind: WORK.to_owned(),
            headers: vec![(NUMBER.to_owned(), number.to_string())],
            body: body(number, dice),
            ..Content::default()
        };
        let mut delay_ms = 0;
        if has_id {
            content.id = format!("message-{number}");
        }
        match flavour {
            Flavour::Plain => {}
            Flavour::Keyed(keys) => content.key = format!("key-{}", dice.between(1, keys)),
            Flavour::Mixed => {
                if dice.permille(200) {
                    delay_ms = dice.between(50, 3_000);
                }
                if dice.permille(300) {
                    content.priority = dice.between(1, 9) as u32;
                }
                if dice.permille(20) {
                    content.kind = POISON.to_owned();
                }
                content.headers.push(("colour".to_owned(), "blue green".to_owned()));
            }
        }
        Draft { number, content, delay_ms }
    }
}

/// JSON mostly, bytes of all kinds now and then. Some are so large that in a minute there is enough of them for
/// the server to begin new segments, save images and trim its log.
fn body(number: u64, dice: &mut Dice) -> Vec<u8> {
    let size = if dice.permille(150) { dice.between(20_000, 80_000) } else { dice.between(0, 400) };
    if dice.permille(300) {
        // Begins with a byte that no JSON begins with.
        return std::iter::once(0xFF).chain((0..size).map(|_| dice.u64() as u8)).collect();
    }
    let filling: String = (0..size).map(|_| char::from(b'a' + dice.between(0, 25) as u8)).collect();
    json!({ "number": number, "filling": filling }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> Content {
        Draft::new(7, Flavour::Keyed(3), true, &mut Dice::from(4)).content
    }

    #[test]
    fn a_digest_tells_any_difference() {
        let whole = content();
        let mut others = vec![whole.clone(); 6];
        others[0].id.push('x');
        others[1].key.clear();
        others[2].kind = POISON.to_owned();
        others[3].headers[0].1.push('0');
        others[4].priority = 3;
        others[5].body.push(b'!');
        for other in others {
            assert_ne!(other.digest(), whole.digest(), "{other:?}");
        }
        assert_eq!(whole.number(), Some(7));
    }

    #[test]
    fn json_that_is_written_in_another_way_is_the_same() {
        let compact = Content { body: b"{\"a\":1,\"b\":[2]}".to_vec(), ..content() };
        let spaced = Content { body: b"{ \"b\": [2], \"a\": 1 }".to_vec(), ..content() };
        let other = Content { body: b"{\"a\":1,\"b\":[3]}".to_vec(), ..content() };
        assert_eq!(compact.digest(), spaced.digest());
        assert_ne!(compact.digest(), other.digest());
    }
}
