//! The parameters of a Query request: those of the query string and those of a form, as one.
//!
//! Structures are flattened into names, as in `Tag.2.Key`. The parameters are kept in order of their names, so
//! that everything that belongs to one list lies together, however many others there are.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

use percent_encoding::percent_decode;

use crate::sqs::wire::error::SqsError;

/// Far more than ten messages with ten attributes each have.
const PARAMS_MAX: usize = 10_000;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Params(BTreeMap<String, String>);

impl Params {
    /// A name that is given twice has its first value; the query string comes before the form.
    pub fn parse(query: &[u8], form: &[u8]) -> Result<Params, SqsError> {
        let mut params = BTreeMap::new();
        for pair in query.split(|byte| *byte == b'&').chain(form.split(|byte| *byte == b'&')) {
            if pair.is_empty() {
                continue;
            }
            let equals = pair.iter().position(|byte| *byte == b'=');
            let (name, value) = equals.map_or((pair, &b""[..]), |at| (&pair[..at], &pair[at + 1..]));
            if let Entry::Vacant(vacant) = params.entry(decode(name)?) {
                vacant.insert(decode(value)?);
            }
            if params.len() > PARAMS_MAX {
                return Err(SqsError::malformed("The request has too many parameters."));
            }
        }
        Ok(Params(params))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Gives a parameter a value, whatever it had.
    pub(super) fn set(&mut self, name: &str, value: String) {
        self.0.insert(name.to_owned(), value);
    }

    /// Whether there is a parameter with this name, or one of a structure that begins so.
    pub(super) fn has_any(&self, name: &str) -> bool {
        self.0.contains_key(name) || self.starting_with(&format!("{name}.")).next().is_some()
    }

    /// The numbers that follow `prefix`, in order. A gap between them means nothing, and a part that is not a
    /// number is ignored.
    pub(super) fn numbers(&self, prefix: &str) -> Vec<u32> {
        let mut numbers: Vec<u32> = self
            .starting_with(prefix)
            .filter_map(|name| name[prefix.len()..].split('.').next()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn starting_with(&self, prefix: &str) -> impl Iterator<Item = &str> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let all = self.0.range::<str, _>(from).map(|(name, _)| name.as_str());
        all.take_while(move |name| name.starts_with(prefix))
    }
}

/// As forms are encoded: a plus is a space.
fn decode(bytes: &[u8]) -> Result<String, SqsError> {
    let spaced: Vec<u8> = bytes.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    let decoded: Vec<u8> = percent_decode(&spaced).collect();
    String::from_utf8(decoded).map_err(|_| SqsError::malformed("The request is not encoded in UTF-8."))
}
