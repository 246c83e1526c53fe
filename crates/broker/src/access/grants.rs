//! The rights of a principal, as text and as something that can be asked.
//!
//! ```text
//! grants   = grant *( "," grant )
//! grant    = word *( "+" word ) ":" pattern
//! word     = an action or a role
//! pattern  = stream [ "/" group ]
//! ```
//!
//! In a name `*` stands for any characters, none included, and `\` takes away the meaning of the character after it. A
//! pattern without a group covers the stream and all of its groups; with one it covers those groups, and shows that
//! the stream exists. Names that begin with `$` belong to the system: a pattern covers them only if it begins with `$`
//! too.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use forebay_core::types::{GroupName, StreamName};

use super::{Resource, Right};

/// The longest text, and the most grants in it.
pub const GRANTS_BYTES_MAX: usize = 4 << 10;
pub const GRANTS_MAX: usize = 64;

/// A kind of work that can be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Publish,
    Consume,
    Read,
    View,
    Configure,
    Triage,
    Operate,
    Admin,
}

impl Action {
    pub const ALL: [Action; 8] = [
        Action::Publish,
        Action::Consume,
        Action::Read,
        Action::View,
        Action::Configure,
        Action::Triage,
        Action::Operate,
        Action::Admin,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Action::Publish => "publish",
            Action::Consume => "consume",
            Action::Read => "read",
            Action::View => "view",
            Action::Configure => "configure",
            Action::Triage => "triage",
            Action::Operate => "operate",
            Action::Admin => "admin",
        }
    }

    /// For the reference.
    pub fn help(self) -> &'static str {
        match self {
            Action::Publish => "Publish messages. Creates the stream where the server's `auto_create` is on.",
            Action::Consume => "Receive and settle the messages of a group, and see its parked messages.",
            Action::Read => "Read and follow messages of a stream, and see parked messages of its groups.",
            Action::View => "See settings and figures. Every other action includes it.",
            Action::Configure => "Create, change and delete streams and groups.",
            Action::Triage => {
                "See, replay, discard, move and resubmit parked messages; move waiting messages."
            }
            Action::Operate => {
                "Pause, resume and reset groups, and purge streams. On `*` also close connections."
            }
            Action::Admin => "Everything. On `*` also tokens and access keys.",
        }
    }
}

/// Words for several actions.
pub const ROLES: [(&str, &[Action]); 4] = [
    ("worker", &[Action::Publish, Action::Consume]),
    ("monitor", &[Action::View]),
    ("operator", &[Action::Read, Action::View, Action::Configure, Action::Triage, Action::Operate]),
    (
        "developer",
        &[Action::Publish, Action::Consume, Action::Read, Action::View, Action::Configure, Action::Triage],
    ),
];

/// A set of actions.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Actions(u16);

impl Actions {
    const ANY: Actions = Actions(u16::MAX);

    const fn of(actions: &[Action]) -> Actions {
        let (mut bits, mut n) = (0, 0);
        while n < actions.len() {
            bits |= 1 << actions[n] as u16;
            n += 1;
        }
        Actions(bits)
    }

    fn with(self, other: Actions) -> Actions {
        Actions(self.0 | other.0)
    }

    fn meets(self, other: Actions) -> bool {
        self.0 & other.0 != 0
    }

    /// The actions that include a right.
    fn including(right: Right) -> Actions {
        const fn or_admin(action: Action) -> Actions {
            Actions::of(&[action, Action::Admin])
        }
        match right {
            Right::Publish => or_admin(Action::Publish),
            Right::Consume => or_admin(Action::Consume),
            Right::Read => or_admin(Action::Read),
            Right::Inspect => Actions::of(&[Action::Read, Action::Consume, Action::Triage, Action::Admin]),
            Right::Look => Actions::ANY,
            Right::Create | Right::Change | Right::Delete => or_admin(Action::Configure),
            Right::Operate => or_admin(Action::Operate),
            Right::Triage => or_admin(Action::Triage),
            Right::Administer => Actions::of(&[Action::Admin]),
        }
    }
}

impl fmt::Debug for Actions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |action: &Action| self.meets(Actions::of(&[*action]));
        f.debug_set().entries(Action::ALL.iter().filter(|action| has(action))).finish()
    }
}

/// A name with stars in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    /// The texts between the stars; one more than there are stars.
    parts: Box<[Box<str>]>,
}

impl Glob {
    /// From a text as in a pattern of grants.
    pub(crate) fn parse(text: &str) -> Option<Glob> {
        glob(text, text).ok()
    }

    /// This name, whatever characters it has.
    pub(crate) fn literal(name: &str) -> Glob {
        Glob { parts: Box::new([name.into()]) }
    }

    /// Whether it is one name.
    pub(crate) fn is_literal(&self) -> bool {
        self.parts.len() == 1
    }

    fn is_universal(&self) -> bool {
        self.parts.len() > 1 && self.parts.iter().all(|part| part.is_empty())
    }

    /// Whether every name that begins with this matches. A star at the end matches all that may follow.
    fn matches_all_of(&self, prefix: &str) -> bool {
        self.parts.len() > 1 && self.parts.last().is_some_and(|last| last.is_empty()) && self.matches(prefix)
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        let [first, between @ .., last] = &*self.parts else {
            return self.parts.first().is_some_and(|only| **only == *name);
        };
        if name.starts_with('$') && !first.starts_with('$') {
            return false;
        }
        let Some(mut rest) = name.strip_prefix(&**first) else { return false };
        for part in between {
            // The first place leaves the most for the parts that follow.
            let Some(at) = rest.find(&**part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(&**last)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    stream: Glob,
    /// None: the stream itself, and all of its groups.
    group: Option<Glob>,
}

impl Pattern {
    fn is_universal(&self) -> bool {
        self.group.is_none() && self.stream.is_universal()
    }

    fn covers_stream(&self, stream: &StreamName) -> bool {
        self.group.is_none() && self.stream.matches(stream.as_str())
    }

    /// Whether the stream, or a group that it might have, is covered.
    fn shows_stream(&self, stream: &StreamName) -> bool {
        self.stream.matches(stream.as_str())
    }

    fn covers_group(&self, stream: &StreamName, group: &GroupName) -> bool {
        self.stream.matches(stream.as_str())
            && self.group.as_ref().is_none_or(|glob| glob.matches(group.as_str()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Grant {
    actions: Actions,
    on: Pattern,
}

/// The rights of a principal. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grants {
    grants: Arc<[Grant]>,
    /// As they were written.
    text: Arc<str>,
}

/// Why a text is not a list of grants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    #[error("grants must have at least one grant, such as publish:orders-*")]
    Empty,
    #[error("a grant must be ACTION:PATTERN, such as publish:orders-* or consume:orders/*. grant=`{grant}`")]
    NoPattern { grant: String },
    #[error("an action must be one of {}. action=`{word}`", known_words())]
    UnknownAction { word: String },
    #[error("a pattern must be STREAM or STREAM/GROUP, with * for any characters. grant=`{grant}`")]
    NoName { grant: String },
    #[error("a pattern of publish must name streams without groups. grant=`{grant}`")]
    PublishToGroup { grant: String },
    #[error("a backslash in a pattern must be followed by the character that it quotes. grant=`{grant}`")]
    OpenQuote { grant: String },
    #[error("grants must not have control characters")]
    Control,
    #[error("grants must have at most {} bytes. bytes=`{bytes}`", GRANTS_BYTES_MAX)]
    TooLong { bytes: usize },
    #[error("there must be at most {} grants. grants=`{grants}`", GRANTS_MAX)]
    TooMany { grants: usize },
}

fn known_words() -> String {
    let actions = Action::ALL.iter().map(|action| action.name());
    let words: Vec<&str> = actions.chain(ROLES.iter().map(|(role, _)| *role)).collect();
    words.join(", ")
}

impl Grants {
    /// Everything.
    pub fn admin() -> Grants {
        "admin:*".parse().expect("it is a grant")
    }

    /// Nothing.
    pub fn none() -> Grants {
        Grants { grants: Arc::from([]), text: "".into() }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether they include a right.
    pub fn allow(&self, right: Right, what: Resource<'_>) -> bool {
        let needed = Actions::including(right);
        self.grants.iter().any(|grant| grant.actions.meets(needed) && covers(&grant.on, right, what))
    }

    /// Whether there is anything at all that they show.
    pub fn are_some(&self) -> bool {
        !self.grants.is_empty()
    }
}

fn covers(pattern: &Pattern, right: Right, what: Resource<'_>) -> bool {
    match what {
        Resource::Server | Resource::Notes(_) => pattern.is_universal(),
        Resource::Stream(stream) if right == Right::Look => pattern.shows_stream(stream),
        Resource::Stream(stream) => pattern.covers_stream(stream),
        Resource::Group(stream, group) => pattern.covers_group(stream, group),
        Resource::StreamsOf(prefix) => pattern.group.is_none() && pattern.stream.matches_all_of(prefix),
    }
}

impl fmt::Display for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Grants {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Grants, GrantError> {
        if text.len() > GRANTS_BYTES_MAX {
            return Err(GrantError::TooLong { bytes: text.len() });
        }
        if text.chars().any(char::is_control) {
            return Err(GrantError::Control);
        }
        let parts: Vec<&str> =
            split(text, ',').into_iter().map(trim).filter(|part| !part.is_empty()).collect();
        match parts.len() {
            0 => return Err(GrantError::Empty),
            grants if grants > GRANTS_MAX => return Err(GrantError::TooMany { grants }),
            _ => {}
        }
        let grants = parts.iter().map(|part| grant(part)).collect::<Result<_, _>>()?;
        Ok(Grants { grants, text: parts.join(",").into() })
    }
}

fn grant(text: &str) -> Result<Grant, GrantError> {
    let Some((words, pattern)) = text.split_once(':') else {
        return Err(GrantError::NoPattern { grant: text.to_owned() });
    };
    let mut actions = Actions::default();
    for word in words.split('+').map(str::trim) {
        let action = Action::ALL.into_iter().find(|action| action.name() == word);
        let role = ROLES.iter().find(|(role, _)| *role == word);
        actions = actions.with(match (action, role) {
            (Some(action), _) => Actions::of(&[action]),
            (None, Some((_, of_role))) => Actions::of(of_role),
            (None, None) => return Err(GrantError::UnknownAction { word: word.to_owned() }),
        });
    }
    let names = split(trim_start(pattern), '/');
    let on = match &names[..] {
        [stream] => Pattern { stream: glob(stream, text)?, group: None },
        [stream, group] => Pattern { stream: glob(stream, text)?, group: Some(glob(group, text)?) },
        _ => return Err(GrantError::NoName { grant: text.to_owned() }),
    };
    if on.group.is_some() && actions == Actions::of(&[Action::Publish]) {
        return Err(GrantError::PublishToGroup { grant: text.to_owned() });
    }
    Ok(Grant { actions, on })
}

fn glob(name: &str, grant: &str) -> Result<Glob, GrantError> {
    if name.is_empty() {
        return Err(GrantError::NoName { grant: grant.to_owned() });
    }
    let (mut parts, mut part) = (Vec::new(), String::new());
    let mut characters = name.chars();
    while let Some(character) = characters.next() {
        match character {
            '*' => parts.push(std::mem::take(&mut part).into_boxed_str()),
            '\\' => match characters.next() {
                Some(quoted) => part.push(quoted),
                None => return Err(GrantError::OpenQuote { grant: grant.to_owned() }),
            },
            character => part.push(character),
        }
    }
    parts.push(part.into_boxed_str());
    Ok(Glob { parts: parts.into() })
}

/// The parts of a text between separators that are not quoted.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut begin, mut is_quoted) = (Vec::new(), 0, false);
    for (at, character) in text.char_indices() {
        if !is_quoted && character == separator {
            parts.push(&text[begin..at]);
            begin = at + separator.len_utf8();
        }
        is_quoted = !is_quoted && character == '\\';
    }
    parts.push(&text[begin..]);
    parts
}

/// Without spaces around it, except for a quoted one at its end.
fn trim(text: &str) -> &str {
    let trimmed = trim_start(text).trim_end();
    let quotes = trimmed.bytes().rev().take_while(|byte| *byte == b'\\').count();
    let text = trim_start(text);
    if quotes % 2 == 1 && trimmed.len() < text.len() { &text[..=trimmed.len()] } else { trimmed }
}

fn trim_start(text: &str) -> &str {
    text.trim_start()
}

#[cfg(test)]
mod tests;
