//! OpenAPI schemas of what the model declares, made from what its tables say about themselves.

use forebay_model::describe::{Field, Kind};
use forebay_model::value::{Limit, Setting};
use serde_json::Value;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::{Span, Time};

/// Stands for a type of the model, which cannot have a schema itself.
macro_rules! stands_for {
    ($name:ident, $help:literal) => {
        #[doc = $help]
        #[derive(Debug)]
        pub struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                of_kind(&<forebay_model::$name as Setting>::KIND, $help)
            }
        }

        impl ToSchema for $name {
            fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
                schemas.push((Span::name().into_owned(), Span::schema()));
                schemas.push((Time::name().into_owned(), Time::schema()));
            }
        }
    };
}

stands_for!(
    GroupSettings,
    "Settings of a group. A setting that is absent has its default, or stays as it is."
);
stands_for!(
    StreamSettings,
    "Settings of a stream. A setting that is absent has its default, or stays as it is."
);
stands_for!(Rate, "A steady pace, and how many may go at once after a rest.");
stands_for!(Start, "A place in a stream.");

fn of_kind(kind: &Kind, help: &str) -> RefOr<Schema> {
    let of = |kind| ObjectBuilder::new().schema_type(kind).description(Some(help));
    match kind {
        Kind::Switch => of(Type::Boolean).into(),
        Kind::Whole => of(Type::Integer).minimum(Some(0)).into(),
        Kind::Real => of(Type::Number).into(),
        Kind::Text => of(Type::String).into(),
        Kind::Words(words) => of(Type::String).enum_values(Some(words.iter().copied())).into(),
        Kind::Span => Ref::from_schema_name("Span").into(),
        Kind::Time => Ref::from_schema_name("Time").into(),
        Kind::Object(fields) => {
            let object = fields.iter().fold(of(Type::Object), |object, field| {
                let object = object.property(field.name, of_field(field));
                if field.is_required() { object.required(field.name) } else { object }
            });
            object.into()
        }
        Kind::Either(kinds) => {
            let either = OneOfBuilder::new().description(Some(help));
            kinds.iter().fold(either, |either, kind| either.item(of_kind(kind, ""))).into()
        }
    }
}

fn of_field(field: &Field) -> RefOr<Schema> {
    let default = (field.default)().map(|text| serde_json::from_str(&text).unwrap_or(Value::from(text)));
    match of_kind(&field.kind, field.help) {
        RefOr::Ref(mut reference) => {
            reference.description = field.help.to_owned();
            if field.nullable {
                let null = ObjectBuilder::new().schema_type(Type::Null);
                return OneOfBuilder::new().item(null).item(reference).default(default).into();
            }
            reference.into()
        }
        RefOr::T(Schema::Object(mut object)) => {
            match field.limit {
                Limit::Whole { min, max } => {
                    object.minimum = Some((min as f64).into());
                    object.maximum = (max != u64::MAX).then(|| (max as f64).into());
                }
                Limit::Real { min, max } => {
                    object.minimum = Some(min.into());
                    object.maximum = Some(max.into());
                }
                Limit::None | Limit::Span { .. } => {}
            }
            if field.nullable
                && let SchemaType::Type(kind) = object.schema_type
            {
                object.schema_type = SchemaType::Array(vec![kind, Type::Null]);
            }
            object.default = default;
            object.into()
        }
        RefOr::T(Schema::OneOf(mut either)) => {
            either.default = default;
            RefOr::T(Schema::OneOf(either))
        }
        other => other,
    }
}
