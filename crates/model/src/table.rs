//! The macro behind the tables in `settings.rs`.
//!
//! ```text
//! settings! {
//!     /// Settings of a group.                                   rustdoc of the struct
//!     GroupSettings, patched by GroupPatch {
//!         /// Ready, waiting and leased together.                rustdoc of field and setter, `--help`, docs, OpenAPI
//!         [15] window_max: u32 = 100_000, at_least(1);
//!          |   |           |     |        its range, if it has one: see `value::Limit`
//!          |   |           |     its default
//!          |   |           its type; `T by TPatch` for settings that belong together, which have a table of their own
//!          |   its name in the API
//!          its tag in the log: never used again for another setting; parts of a group count from the group's tag
//!     }
//!     internal { … }    settings that the native API does not show: not in the patch, JSON, help and docs
//! }
//! ```
//!
//! From this it makes
//!
//! - `GroupSettings` with `Default`, `check`, `reset` by name, `FIELDS`, and its [`Setting`](crate::value::Setting),
//!   by which the log keeps it;
//! - `GroupPatch`, all of whose fields are options, with a setter for each, `apply`, `check`, `difference`,
//!   `From<&GroupSettings>` and, with the feature `serde`, its JSON.
//!
//! A table in which two settings take the same tag does not compile, also if one of them takes several.
//!
//! Rules about several fields are written by hand, as `check_together`.

macro_rules! settings {
    (
        $(#[$about:meta])*
        $name:ident, patched by $patch:ident {
            $(
                $(#[doc = $help:literal])+
                [$tag:literal] $field:ident: $type:ident $(<$inner:ident>)? $(by $part:ident)? = $default:expr
                    $(, $limit:expr)?;
            )+
        }
        $(internal {
            $(
                $(#[doc = $i_help:literal])+
                [$i_tag:literal] $i_field:ident: $i_type:ident = $i_default:expr $(, $i_limit:expr)?;
            )+
        })?
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $($(#[doc = $help])+ pub $field: $type $(<$inner>)?,)+
            $($($(#[doc = $i_help])+ pub $i_field: $i_type,)+)?
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default,)+ $($($i_field: $i_default,)+)? }
            }
        }

        impl $name {
            /// The settings that the API shows.
            pub const FIELDS: &'static [Field] = &[
                $(Field {
                    name: stringify!($field),
                    kind: <$type $(<$inner>)? as Setting>::KIND,
                    nullable: <$type $(<$inner>)? as Setting>::NULLABLE,
                    default: || <$type $(<$inner>)? as Setting>::text(&$default),
                    limit: limit!($($limit)?),
                    help: concat!($($help),+).trim_ascii(),
                },)+
            ];

            /// Whether every setting is within its range and goes with the others.
            pub fn check(&self) -> Result<(), SettingsError> {
                $(Setting::check(&self.$field, stringify!($field), limit!($($limit)?))?;)+
                $($(Setting::check(&self.$i_field, stringify!($i_field), limit!($($i_limit)?))?;)+)?
                self.check_together()
            }

            /// Sets the field of that name, as in `rate` or `backoff.max`, back to its default. False: there is no
            /// such field.
            pub fn reset(&mut self, field: &str) -> bool {
                let (field, part) = field.split_once('.').unwrap_or((field, ""));
                match field {
                    $(stringify!($field) => Setting::reset(&mut self.$field, part, $default),)+
                    _ => false,
                }
            }
        }

        // The first of two settings with the same tag would be given the stored value of the other.
        const _: () = assert!(
            !overlap(&[
                $(($tag, <$type $(<$inner>)? as Setting>::TAGS),)+
                $($(($i_tag, <$i_type as Setting>::TAGS),)+)?
            ]),
            concat!("two settings take the same tag in ", stringify!($name)),
        );

        impl Setting for $name {
            const KIND: Kind = Kind::Object($name::FIELDS);
            const TAGS: u64 = {
                let mut tags = 0;
                $(tags = max(tags, $tag + <$type $(<$inner>)? as Setting>::TAGS);)+
                $($(tags = max(tags, $i_tag + <$i_type as Setting>::TAGS);)+)?
                tags
            };

            fn text(&self) -> Option<String> {
                None
            }

            fn check(&self, field: &str, _: Limit) -> Result<(), SettingsError> {
                self.check().map_err(|error| error.within(field))
            }

            fn reset(&mut self, part: &str, default: $name) -> bool {
                if part.is_empty() {
                    *self = default;
                    return true;
                }
                self.reset(part)
            }

            fn store(&self, tag: u64, out: &mut Store<'_>) {
                $(Setting::store(&self.$field, tag + $tag, out);)+
                $($(Setting::store(&self.$i_field, tag + $i_tag, out);)+)?
            }

            fn load(&mut self, at: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
                $(if let Some(at) = at.checked_sub($tag) && at < <$type $(<$inner>)? as Setting>::TAGS {
                    return Setting::load(&mut self.$field, at, raw);
                })+
                $($(if let Some(at) = at.checked_sub($i_tag) && at < <$i_type as Setting>::TAGS {
                    return Setting::load(&mut self.$i_field, at, raw);
                })+)?
                Ok(false)
            }
        }

        #[doc = concat!("A change of [`", stringify!($name), "`]. A setting that is absent stays as it is, or has its")]
        /// default where the settings are new.
        #[derive(Debug, Clone, Default, PartialEq)]
        #[non_exhaustive]
        pub struct $patch {
            $($(#[doc = $help])+ pub $field: Option<part!($type $(<$inner>)? $(by $part)?)>,)+
        }

        impl $patch {
            pub const FIELDS: &'static [Field] = $name::FIELDS;

            /// Changes nothing yet.
            pub fn new() -> $patch {
                $patch::default()
            }

            $(setter!($(#[doc = $help])+ $field: $type $(<$inner>)? $(by $part)?);)+

            /// Puts in the settings that are given.
            pub fn apply(&self, settings: &mut $name) {
                $(if let Some(change) = &self.$field {
                    Change::apply(change, &mut settings.$field);
                })+
            }

            /// Whether every setting that is given is within its range.
            pub fn check(&self) -> Result<(), SettingsError> {
                $(if let Some(change) = &self.$field {
                    Change::check(change, stringify!($field), limit!($($limit)?))?;
                })+
                Ok(())
            }

            /// The first setting that is given and differs.
            pub fn difference(&self, is: &$name) -> Option<String> {
                $(if let Some(change) = &self.$field
                    && let Some(differs) = Change::difference(change, &is.$field, stringify!($field))
                {
                    return Some(differs);
                })+
                None
            }

            /// The names of the settings that become none, which a message of `forebay.v1` cannot say otherwise.
            pub fn cleared(&self) -> Vec<String> {
                let mut names = Vec::new();
                Change::cleared(self, "", &mut names);
                names
            }
        }

        /// The change that makes any settings equal to these.
        impl From<&$name> for $patch {
            fn from(settings: &$name) -> $patch {
                $patch { $($field: Some(Change::to(&settings.$field)),)+ }
            }
        }

        impl Change<$name> for $patch {
            fn to(settings: &$name) -> $patch {
                settings.into()
            }

            fn apply(&self, settings: &mut $name) {
                self.apply(settings);
            }

            fn check(&self, field: &str, _: Limit) -> Result<(), SettingsError> {
                self.check().map_err(|error| error.within(field))
            }

            fn difference(&self, is: &$name, field: &str) -> Option<String> {
                self.difference(is).map(|inner| join(field, &inner))
            }

            fn cleared(&self, field: &str, names: &mut Vec<String>) {
                $(if let Some(change) = &self.$field {
                    Change::cleared(change, &join(field, stringify!($field)), names);
                })+
            }
        }

        #[cfg(feature = "serde")]
        const _: () = {
            use serde::ser::SerializeMap as _;

            crate::json::as_serde!($patch);

            impl serde::Serialize for $patch {
                fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                    let mut map = to.serialize_map(None)?;
                    $(crate::json::entry(&self.$field, stringify!($field), &mut map)?;)+
                    map.end()
                }
            }

            impl<'de> serde::Deserialize<'de> for $patch {
                fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$patch, D::Error> {
                    from.deserialize_map(Object)
                }
            }

            struct Object;

            impl<'de> serde::de::Visitor<'de> for Object {
                type Value = $patch;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object of settings")?;
                    match crate::describe::example($patch::FIELDS) {
                        Some((field, value)) => {
                            // Words and lengths of time are texts, which JSON has in quotes.
                            let is_bare = value.parse::<f64>().is_ok() || value.parse::<bool>().is_ok();
                            let quote = if is_bare { "" } else { "\"" };
                            write!(f, ", such as {{ \"{}\": {quote}{value}{quote} }}", field.name)
                        }
                        None => Ok(()),
                    }
                }

                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$patch, A::Error> {
                    let mut patch = $patch::default();
                    while let Some(name) = map.next_key::<String>()? {
                        match &name[..] {
                            $(stringify!($field) => {
                                crate::json::put(&mut patch.$field, stringify!($field), &mut map)?;
                            })+
                            _ => {
                                let names = &[$(stringify!($field)),+];
                                return Err(serde::de::Error::unknown_field(&name, names));
                            }
                        }
                    }
                    Ok(patch)
                }
            }
        };
    };
}
pub(crate) use settings;

/// The range of a setting that may have none.
macro_rules! limit {
    () => {
        Limit::None
    };
    ($limit:expr) => {
        $limit
    };
}
pub(crate) use limit;

/// The type of a patch's field: the patch of settings that belong together, or the setting's own.
macro_rules! part {
    ($type:ident by $part:ident) => {
        $part
    };
    ($type:ty) => {
        $type
    };
}
pub(crate) use part;

/// The setter of a patch's field. A number may stand for retries, and a value for one that may be none.
macro_rules! setter {
    ($(#[$doc:meta])+ $field:ident: Option<$inner:ident>) => {
        setter!(@takes $(#[$doc])+ $field: impl Into<Option<$inner>>);
    };
    ($(#[$doc:meta])+ $field:ident: Retries) => {
        setter!(@takes $(#[$doc])+ $field: impl Into<Retries>);
    };
    ($(#[$doc:meta])+ $field:ident: $type:ident by $part:ident) => {
        setter!(@takes $(#[$doc])+ $field: $part);
    };
    ($(#[$doc:meta])+ $field:ident: $type:ident) => {
        setter!(@takes $(#[$doc])+ $field: $type);
    };
    (@takes $(#[$doc:meta])+ $field:ident: impl Into<$type:ty>) => {
        $(#[$doc])+
        #[must_use]
        pub fn $field(mut self, $field: impl Into<$type>) -> Self {
            self.$field = Some($field.into());
            self
        }
    };
    (@takes $(#[$doc:meta])+ $field:ident: $type:ident) => {
        $(#[$doc])+
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = Some($field);
            self
        }
    };
}
pub(crate) use setter;

pub(crate) const fn max(a: u64, b: u64) -> u64 {
    if a > b { a } else { b }
}

/// Whether some tag is taken twice, where each setting takes so many tags from its first one on.
pub(crate) const fn overlap(settings: &[(u64, u64)]) -> bool {
    let mut one = 0;
    while one < settings.len() {
        let mut other = one + 1;
        while other < settings.len() {
            let ((a, a_tags), (b, b_tags)) = (settings[one], settings[other]);
            if a < b + b_tags && b < a + a_tags {
                return true;
            }
            other += 1;
        }
        one += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_that_is_taken_twice_is_noticed() {
        assert!(!overlap(&[(26, 3), (9, 1), (25, 1), (29, 1)]));
        assert!(overlap(&[(26, 3), (9, 1), (26, 1)]), "the first tag of another setting");
        assert!(overlap(&[(26, 3), (9, 1), (28, 1)]), "the last of three");
        assert!(overlap(&[(27, 1), (9, 1), (26, 3)]), "in either order");
        assert!(overlap(&[(9, 1), (24, 3), (26, 3)]), "the ends of two");
    }
}
