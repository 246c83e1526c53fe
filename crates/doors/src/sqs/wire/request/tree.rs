//! A JSON body as a tree, within a limit. A byte of JSON can become a node of many bytes (`[0,0,0,...]`), so the
//! nodes are counted while they are read.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::sqs::wire::error::SqsError;

/// Far more than ten messages with ten attributes each have.
const NODES_MAX: u32 = 20_000;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tree {
    Null,
    /// A number or a truth value, as it would be written.
    Plain(String),
    Text(String),
    List(Vec<Tree>),
    Structure(Structure),
}

pub(super) type Structure = BTreeMap<String, Tree>;

/// The members of a request. No body at all is a request without members.
pub(super) fn parse(body: &[u8]) -> Result<Structure, SqsError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Structure::new());
    }
    let budget = Cell::new(NODES_MAX);
    let mut json = serde_json::Deserializer::from_slice(body);
    let tree = Seed(&budget).deserialize(&mut json).and_then(|tree| json.end().map(|()| tree));
    match tree {
        Ok(Tree::Structure(members)) => Ok(members),
        Ok(_) => Err(SqsError::malformed("The request is not a JSON object.")),
        Err(error) => Err(SqsError::malformed(format!("The request is not valid JSON: {error}"))),
    }
}

#[derive(Clone, Copy)]
struct Seed<'a>(&'a Cell<u32>);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Tree;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Tree, D::Error> {
        let left = self.0.get().checked_sub(1).ok_or_else(|| D::Error::custom("too many values"))?;
        self.0.set(left);
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Plain(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Plain(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Plain(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Plain(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Tree, E> {
        Ok(Tree::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Tree, A::Error> {
        let mut members = Structure::new();
        while let Some(name) = from.next_key::<String>()? {
            members.insert(name, from.next_value_seed(self)?);
        }
        Ok(Tree::Structure(members))
    }
}
