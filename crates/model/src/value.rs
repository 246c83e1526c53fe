//! What a value must be able to do to stand in a table of settings.

use std::fmt;
use std::time::Duration;

use crate::describe::Kind;
use crate::limits::AGE_MAX;
use crate::text::Span;
use crate::types::micros;

/// Why a setting was refused: its name in the API, the rule, and the value that breaks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError {
    pub field: String,
    /// Follows "must be", as in "at least 1".
    pub rule: String,
    pub value: String,
}

impl SettingsError {
    pub fn new(field: &str, rule: impl Into<String>, value: impl Into<String>) -> SettingsError {
        SettingsError { field: field.to_owned(), rule: rule.into(), value: value.into() }
    }

    /// The same of a field that is part of another.
    pub(crate) fn within(self, outer: &str) -> SettingsError {
        SettingsError { field: join(outer, &self.field), ..self }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingsError { field, rule, value } = self;
        write!(f, "{field} must be {rule}. value=`{value}`")
    }
}

impl std::error::Error for SettingsError {}

/// `outer.inner`; the settings themselves have no name.
pub(crate) fn join(outer: &str, inner: &str) -> String {
    if outer.is_empty() { inner.to_owned() } else { format!("{outer}.{inner}") }
}

/// The range of a plain value, both ends included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    None,
    Whole { min: u64, max: u64 },
    Real { min: f64, max: f64 },
    Span { min: Duration, max: Duration },
}

pub const fn at_least(min: u64) -> Limit {
    Limit::Whole { min, max: u64::MAX }
}

pub const fn between(min: f64, max: f64) -> Limit {
    Limit::Real { min, max }
}

pub const fn lasting(min: Duration, max: Duration) -> Limit {
    Limit::Span { min, max }
}

/// As it follows "must be". Empty where everything is allowed.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Limit::None => Ok(()),
            Limit::Whole { min, max: u64::MAX } => write!(f, "at least {min}"),
            Limit::Whole { min, max } => write!(f, "between {min} and {max}"),
            Limit::Real { min, max } => write!(f, "between {min} and {max}"),
            Limit::Span { min: Duration::ZERO, max } => write!(f, "at most {}", Span(max)),
            Limit::Span { min, max } => write!(f, "between {} and {}", Span(min), Span(max)),
        }
    }
}

/// A value on its way into the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Takes a stored value, with its tag.
pub type Store<'a> = dyn FnMut(u64, Stored<'_>) + 'a;

/// A value as the log has it. Only the setting knows which of the two it is.
#[derive(Debug, Clone, Copy)]
pub struct Raw<'a> {
    pub bytes: &'a [u8],
    /// The bytes as a number, where they are one.
    pub number: Option<u64>,
}

/// A stored value is not one that the setting can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadRaw;

impl Raw<'_> {
    pub(crate) fn number(self) -> Result<u64, BadRaw> {
        self.number.ok_or(BadRaw)
    }
}

/// A setting, or several settings that belong together.
pub trait Setting: Clone + PartialEq + Sized {
    const KIND: Kind;
    /// Whether `null` is a value, and means none.
    const NULLABLE: bool = false;
    /// How many tags of the log it takes, one after the other.
    const TAGS: u64 = 1;

    /// As people write it. Settings that belong together are written one by one instead.
    fn text(&self) -> Option<String>;

    fn check(&self, field: &str, limit: Limit) -> Result<(), SettingsError> {
        let _ = (field, limit);
        Ok(())
    }

    /// The first field in which `is` differs from this.
    fn difference(&self, is: &Self, field: &str) -> Option<String> {
        (self != is).then(|| field.to_owned())
    }

    /// Whether it is `null`.
    fn is_none(&self) -> bool {
        false
    }

    /// Sets the part of that name, or all of it, back to the default. False: there is no such part.
    fn reset(&mut self, part: &str, default: Self) -> bool {
        if part.is_empty() {
            *self = default;
        }
        part.is_empty()
    }

    /// Hands over the values that the log keeps. `None` is not kept.
    fn store(&self, tag: u64, out: &mut Store<'_>);

    /// Takes the value with the tag `at`, counted from its first one. False: there is no such tag.
    fn load(&mut self, at: u64, raw: Raw<'_>) -> Result<bool, BadRaw>;
}

/// A wish to change a setting: a plain value replaces it, a patch changes parts of it.
pub trait Change<T>: Sized {
    /// The change that makes any setting equal to `value`.
    fn to(value: &T) -> Self;
    fn apply(&self, setting: &mut T);
    fn check(&self, field: &str, limit: Limit) -> Result<(), SettingsError>;
    fn difference(&self, is: &T, field: &str) -> Option<String>;
    /// Adds the names of settings that become none.
    fn cleared(&self, field: &str, names: &mut Vec<String>);
}

impl<T: Setting> Change<T> for T {
    fn to(value: &T) -> T {
        value.clone()
    }

    fn apply(&self, setting: &mut T) {
        *setting = self.clone();
    }

    fn check(&self, field: &str, limit: Limit) -> Result<(), SettingsError> {
        Setting::check(self, field, limit)
    }

    fn difference(&self, is: &T, field: &str) -> Option<String> {
        Setting::difference(self, is, field)
    }

    fn cleared(&self, field: &str, names: &mut Vec<String>) {
        if self.is_none() {
            names.push(field.to_owned());
        }
    }
}

fn checked(
    fits: bool,
    field: &str,
    limit: Limit,
    value: impl FnOnce() -> String,
) -> Result<(), SettingsError> {
    if fits { Ok(()) } else { Err(SettingsError::new(field, limit.to_string(), value())) }
}

/// Whole numbers, `u32` and `u64`.
macro_rules! whole {
    ($type:ty) => {
        impl Setting for $type {
            const KIND: Kind = Kind::Whole;

            fn text(&self) -> Option<String> {
                Some(self.to_string())
            }

            fn check(&self, field: &str, limit: Limit) -> Result<(), SettingsError> {
                let Limit::Whole { min, max } = limit else { return Ok(()) };
                checked((min..=max).contains(&u64::from(*self)), field, limit, || self.to_string())
            }

            fn store(&self, tag: u64, out: &mut Store<'_>) {
                out(tag, Stored::Number((*self).into()));
            }

            fn load(&mut self, _: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
                *self = <$type>::try_from(raw.number()?).unwrap_or(<$type>::MAX);
                Ok(true)
            }
        }
    };
}

whole!(u32);
whole!(u64);

impl Setting for bool {
    const KIND: Kind = Kind::Switch;

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        out(tag, Stored::Number((*self).into()));
    }

    fn load(&mut self, _: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        *self = match raw.number()? {
            0 => false,
            1 => true,
            _ => return Err(BadRaw),
        };
        Ok(true)
    }
}

impl Setting for f64 {
    const KIND: Kind = Kind::Real;

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn check(&self, field: &str, limit: Limit) -> Result<(), SettingsError> {
        let Limit::Real { min, max } = limit else { return Ok(()) };
        checked((min..=max).contains(self), field, limit, || self.to_string())
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        out(tag, Stored::Number(self.to_bits()));
    }

    fn load(&mut self, _: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        *self = f64::from_bits(raw.number()?);
        Ok(true)
    }
}

impl Setting for Duration {
    const KIND: Kind = Kind::Span;

    fn text(&self) -> Option<String> {
        Some(Span(*self).to_string())
    }

    fn check(&self, field: &str, limit: Limit) -> Result<(), SettingsError> {
        let Limit::Span { min, max } = limit else { return Ok(()) };
        checked((min..=max).contains(self), field, limit, || Span(*self).to_string())
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        out(tag, Stored::Number(micros(*self)));
    }

    /// Ages had no limit once, and settings that were stored then must still be readable.
    fn load(&mut self, _: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        *self = Duration::from_micros(raw.number()?).min(AGE_MAX);
        Ok(true)
    }
}

/// A value that may be absent, and with what reading it from the log begins.
pub trait Optional: Setting {
    const BLANK: Self;
}

impl Optional for u64 {
    const BLANK: u64 = 0;
}

impl Optional for Duration {
    const BLANK: Duration = Duration::ZERO;
}

impl<T: Optional> Setting for Option<T> {
    const KIND: Kind = T::KIND;
    const NULLABLE: bool = true;
    const TAGS: u64 = T::TAGS;

    fn text(&self) -> Option<String> {
        match self {
            Some(value) => value.text(),
            None => Some("null".to_owned()),
        }
    }

    fn check(&self, field: &str, limit: Limit) -> Result<(), SettingsError> {
        self.as_ref().map_or(Ok(()), |value| value.check(field, limit))
    }

    fn is_none(&self) -> bool {
        self.is_none()
    }

    fn difference(&self, is: &Option<T>, field: &str) -> Option<String> {
        match (self, is) {
            (Some(asked), Some(is)) => asked.difference(is, field),
            _ => (self != is).then(|| field.to_owned()),
        }
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        if let Some(value) = self {
            value.store(tag, out);
        }
    }

    fn load(&mut self, at: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        self.get_or_insert(T::BLANK).load(at, raw)
    }
}
