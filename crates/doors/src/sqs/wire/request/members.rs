//! The members of a structure, whichever protocol they came by. Requests are read from these, once for both
//! protocols, so that an error has the same words in both.
//!
//! JSON has lists and maps; Query has numbered names. A member that is null, or of which there is nothing, is
//! absent. A list of which Query has the bare name (`TagKey=`, or `TagKeys=` from botocore) is empty, which is
//! something else than absent.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::form::Params;
use super::tree::{Structure, Tree};
use crate::sqs::wire::error::SqsError;

/// With padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Debug, Clone)]
pub(super) enum Members<'a> {
    Json(&'a Structure),
    /// The prefix is empty or ends with a dot.
    Query {
        params: &'a Params,
        prefix: String,
    },
}

/// The name of a list or a map in each protocol.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    pub(super) json: &'static str,
    pub(super) query: &'static str,
}

/// The names of the halves of a pair in Query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Halves {
    pub(super) key: &'static str,
    pub(super) value: &'static str,
}

/// A number, as it was given. Whether it is one, and one that may be, is asked once the queue is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given(String);

impl Given {
    /// Where it lies between `min` and `max`; otherwise `reason` is why not.
    pub fn within(&self, parameter: &str, min: u32, max: u32, reason: &str) -> Result<u32, SqsError> {
        let value = self.0.parse().ok().filter(|value| (min..=max).contains(value));
        value.ok_or_else(|| SqsError::value(&self.0, parameter, reason))
    }
}

impl From<i64> for Given {
    fn from(value: i64) -> Given {
        Given(value.to_string())
    }
}

impl<'a> Members<'a> {
    pub(super) fn of_query(params: &'a Params) -> Members<'a> {
        Members::Query { params, prefix: String::new() }
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, SqsError> {
        match self {
            Members::Json(members) => scalar(members.get(name), name),
            Members::Query { params, prefix } => {
                Ok(params.get(&format!("{prefix}{name}")).map(str::to_owned))
            }
        }
    }

    pub(super) fn required(&self, name: &str) -> Result<String, SqsError> {
        self.text(name)?.ok_or_else(|| SqsError::missing(name))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<Given>, SqsError> {
        Ok(self.text(name)?.map(Given))
    }

    pub(super) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, SqsError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let bytes = BASE64.decode(&text);
        bytes.map(Some).map_err(|_| SqsError::malformed(format!("The value of {name} is not base64.")))
    }

    pub(super) fn texts(&self, name: Name) -> Result<Option<Vec<String>>, SqsError> {
        match self {
            Members::Json(members) => {
                let Some(items) = list(members.get(name.json), name.json)? else { return Ok(None) };
                let texts = items.iter().filter_map(|item| scalar(Some(item), name.json).transpose());
                texts.collect::<Result<_, _>>().map(Some)
            }
            Members::Query { params, prefix } => {
                let start = format!("{prefix}{}.", name.query);
                let values =
                    params.numbers(&start).into_iter().filter_map(|n| params.get(&format!("{start}{n}")));
                Ok(self.has(name).then(|| values.map(str::to_owned).collect()))
            }
        }
    }

    pub(super) fn structures(&self, name: Name) -> Result<Option<Vec<Members<'a>>>, SqsError> {
        match self {
            Members::Json(members) => {
                let Some(items) = list(members.get(name.json), name.json)? else { return Ok(None) };
                let present = items.iter().filter(|item| **item != Tree::Null);
                present.map(|item| structure(item, name.json)).collect::<Result<_, _>>().map(Some)
            }
            Members::Query { params, prefix } => {
                let start = format!("{prefix}{}.", name.query);
                let one = |n| Members::Query { params, prefix: format!("{start}{n}.") };
                Ok(self.has(name).then(|| params.numbers(&start).into_iter().map(one).collect()))
            }
        }
    }

    /// Pairs of texts.
    pub(super) fn text_map(
        &self,
        name: Name,
        halves: Halves,
    ) -> Result<Option<BTreeMap<String, String>>, SqsError> {
        if let Members::Json(members) = self {
            let Some(pairs) = map(members.get(name.json), name.json)? else { return Ok(None) };
            let read = |(key, value): (&String, &Tree)| {
                Ok(scalar(Some(value), name.json)?.map(|value| (key.clone(), value)))
            };
            return pairs
                .iter()
                .filter_map(|pair| read(pair).transpose())
                .collect::<Result<_, _>>()
                .map(Some);
        }
        let mut pairs = BTreeMap::new();
        for pair in self.query_pairs(name, halves) {
            let key = pair.text(halves.key)?.unwrap_or_default();
            pairs.insert(key, pair.text(halves.value)?.unwrap_or_default());
        }
        Ok(self.has(name).then_some(pairs))
    }

    /// Pairs of a text and a structure.
    pub(super) fn structure_map(
        &self,
        name: Name,
        halves: Halves,
    ) -> Result<BTreeMap<String, Members<'a>>, SqsError> {
        if let Members::Json(members) = self {
            let Some(pairs) = map(members.get(name.json), name.json)? else { return Ok(BTreeMap::new()) };
            let present = pairs.iter().filter(|(_, value)| **value != Tree::Null);
            return present.map(|(key, value)| Ok((key.clone(), structure(value, name.json)?))).collect();
        }
        let mut pairs = BTreeMap::new();
        for pair in self.query_pairs(name, halves) {
            let key = pair.text(halves.key)?.unwrap_or_default();
            if let Members::Query { params, prefix } = pair {
                let value = Members::Query { params, prefix: format!("{prefix}{}.", halves.value) };
                pairs.insert(key, value);
            }
        }
        Ok(pairs)
    }

    /// Whether there is anything of a member, also where only its bare name is there.
    pub(super) fn has(&self, name: Name) -> bool {
        match self {
            Members::Json(members) => members.get(name.json).is_some_and(|value| *value != Tree::Null),
            Members::Query { params, prefix } => {
                params.has_any(&format!("{prefix}{}", name.query))
                    || params.get(&format!("{prefix}{}", name.json)).is_some()
            }
        }
    }

    /// Numbered pairs, or the single one without a number that old clients send.
    fn query_pairs(&self, name: Name, halves: Halves) -> Vec<Members<'a>> {
        let Members::Query { params, prefix } = self else { return Vec::new() };
        let start = format!("{prefix}{}.", name.query);
        let mut starts: Vec<String> =
            params.numbers(&start).into_iter().map(|n| format!("{start}{n}.")).collect();
        if starts.is_empty() && params.get(&format!("{start}{}", halves.key)).is_some() {
            starts.push(start);
        }
        starts.into_iter().map(|prefix| Members::Query { params, prefix }).collect()
    }
}

fn scalar(value: Option<&Tree>, name: &str) -> Result<Option<String>, SqsError> {
    match value {
        None | Some(Tree::Null) => Ok(None),
        Some(Tree::Plain(text) | Tree::Text(text)) => Ok(Some(text.clone())),
        Some(Tree::List(_) | Tree::Structure(_)) => Err(wrong_type(name, "a single value")),
    }
}

fn list<'a>(value: Option<&'a Tree>, name: &str) -> Result<Option<&'a [Tree]>, SqsError> {
    match value {
        None | Some(Tree::Null) => Ok(None),
        Some(Tree::List(items)) => Ok(Some(items)),
        Some(_) => Err(wrong_type(name, "a list")),
    }
}

fn map<'a>(value: Option<&'a Tree>, name: &str) -> Result<Option<&'a Structure>, SqsError> {
    match value {
        None | Some(Tree::Null) => Ok(None),
        Some(Tree::Structure(members)) => Ok(Some(members)),
        Some(_) => Err(wrong_type(name, "an object")),
    }
}

fn structure<'a>(value: &'a Tree, name: &str) -> Result<Members<'a>, SqsError> {
    match value {
        Tree::Structure(members) => Ok(Members::Json(members)),
        _ => Err(wrong_type(name, "an object")),
    }
}

fn wrong_type(name: &str, expected: &str) -> SqsError {
    SqsError::malformed(format!("The value of {name} must be {expected}."))
}
