//! `#[derive(Payload)]`, which `forebay-client` exports and documents beside the trait.
//!
//! The macro reads three things: the name of the type, whether it has generics, and its attribute `payload`. They are
//! found in the tokens directly, so the SDK needs no parser of Rust for it.

use proc_macro::{Delimiter, Group, Ident, Literal, Span, TokenStream, TokenTree};

/// Implements `Payload` for a struct or an enum. See `forebay_client::Payload`.
#[proc_macro_derive(Payload, attributes(payload))]
pub fn payload(input: TokenStream) -> TokenStream {
    let tokens = Declaration::read(input).and_then(Declaration::implementation);
    tokens.unwrap_or_else(Wrong::into_error)
}

/// Why the attribute or the type cannot be used, and where.
struct Wrong {
    at: Span,
    why: String,
}

impl Wrong {
    fn new(at: Span, why: impl Into<String>) -> Wrong {
        Wrong { at, why: why.into() }
    }

    /// An error of the compiler at that place.
    fn into_error(self) -> TokenStream {
        let text = Literal::string(&self.why);
        let tokens: TokenStream =
            format!("::core::compile_error! {{ {text} }}").parse().expect("it is valid Rust");
        tokens.into_iter().map(|token| at(token, self.at)).collect()
    }
}

/// The token, reported at another place.
fn at(mut token: TokenTree, span: Span) -> TokenTree {
    if let TokenTree::Group(group) = &token {
        let inner = group.stream().into_iter().map(|token| at(token, span)).collect();
        token = TokenTree::Group(Group::new(group.delimiter(), inner));
    }
    token.set_span(span);
    token
}

struct Declaration {
    name: Ident,
    /// The text of literals, as it stands in the attribute.
    kind: Option<String>,
    schema: Option<String>,
    content_type: Option<String>,
}

impl Declaration {
    fn read(input: TokenStream) -> Result<Declaration, Wrong> {
        let mut tokens = input.into_iter().peekable();
        let mut attributes = Vec::new();
        let name = loop {
            match tokens.next() {
                Some(TokenTree::Punct(mark)) if mark.as_char() == '#' => {
                    if let Some(TokenTree::Group(group)) = tokens.next() {
                        attributes.extend(arguments(&group));
                    }
                }
                Some(TokenTree::Ident(word))
                    if ["struct", "enum", "union"].contains(&word.to_string().as_str()) =>
                {
                    match tokens.next() {
                        Some(TokenTree::Ident(name)) => break name,
                        _ => return Err(Wrong::new(word.span(), "a payload has a name")),
                    }
                }
                Some(_) => {}
                None => return Err(Wrong::new(Span::call_site(), "a payload is a struct or an enum")),
            }
        };
        if matches!(tokens.peek(), Some(TokenTree::Punct(mark)) if mark.as_char() == '<') {
            let why = "a payload with generics has no single name; implement `Payload` for each of its types";
            return Err(Wrong::new(name.span(), why));
        }
        let mut declaration = Declaration { name, kind: None, schema: None, content_type: None };
        for group in attributes {
            declaration.take(group)?;
        }
        Ok(declaration)
    }

    /// Takes the arguments of one attribute: `name = literal`, with commas between.
    fn take(&mut self, arguments: Group) -> Result<(), Wrong> {
        let mut tokens = arguments.stream().into_iter();
        while let Some(token) = tokens.next() {
            let (at, name) = (token.span(), token.to_string());
            let place = match name.as_str() {
                "type" => &mut self.kind,
                "schema" => &mut self.schema,
                "content_type" => &mut self.content_type,
                _ => {
                    let why = format!("expected `type`, `schema` or `content_type`. found=`{name}`");
                    return Err(Wrong::new(at, why));
                }
            };
            let is_set = matches!(tokens.next(), Some(TokenTree::Punct(mark)) if mark.as_char() == '=');
            let Some(TokenTree::Literal(value)) = tokens.next().filter(|_| is_set) else {
                return Err(Wrong::new(at, format!("expected `{name} = ` and a literal")));
            };
            check(&name, &value)?;
            if place.replace(value.to_string()).is_some() {
                return Err(Wrong::new(at, format!("`{name}` is given twice")));
            }
            match tokens.next() {
                Some(TokenTree::Punct(mark)) if mark.as_char() == ',' => {}
                None => {}
                Some(other) => {
                    return Err(Wrong::new(other.span(), format!("expected a comma. found=`{other}`")));
                }
            }
        }
        Ok(())
    }

    fn implementation(self) -> Result<TokenStream, Wrong> {
        let Declaration { name, kind, schema, content_type } = self;
        let Some(kind) = kind else {
            let why =
                "a payload needs the name that travels with its messages: #[payload(type = \"email.send\")]";
            return Err(Wrong::new(name.span(), why));
        };
        let schema = schema.map(|schema| format!("const SCHEMA: u64 = {schema};")).unwrap_or_default();
        let content_type = content_type.map(|of| {
            format!("const CONTENT_TYPE: ::core::option::Option<&'static str> = ::core::option::Option::Some({of});")
        });
        let content_type = content_type.unwrap_or_default();
        let code = format!(
            "impl ::forebay_client::Payload for {name} {{ const TYPE: &'static str = {kind}; {schema} {content_type} }}"
        );
        let tokens: TokenStream = code.parse().expect("it is valid Rust");
        // Traits that the type lacks are reported at its name.
        Ok(tokens.into_iter().map(|token| at(token, name.span())).collect())
    }
}

/// The arguments of an attribute `payload(..)`, given the group in its square brackets.
fn arguments(attribute: &Group) -> Option<Group> {
    let mut tokens = attribute.stream().into_iter();
    let is_ours = matches!(tokens.next(), Some(TokenTree::Ident(name)) if name.to_string() == "payload");
    match tokens.next().filter(|_| is_ours) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => Some(group),
        _ => None,
    }
}

/// A literal of the right kind.
fn check(name: &str, value: &Literal) -> Result<(), Wrong> {
    let text = value.to_string();
    let wrong =
        |rule: &str| Err(Wrong::new(value.span(), format!("`{name}` must be {rule}. value=`{text}`")));
    if name == "schema" {
        let is_right = text.replace('_', "").parse::<u64>().is_ok_and(|version| version > 0);
        return if is_right { Ok(()) } else { wrong("a number from 1 on") };
    }
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        return wrong("a text in quotes");
    };
    let is_json = inner == "application/json" || (inner.contains('/') && inner.ends_with("+json"));
    match name {
        _ if inner.is_empty() => wrong("a text that is not empty"),
        // The body of a payload is JSON.
        "content_type" if !is_json => wrong("application/json, or a type that ends in +json"),
        _ => Ok(()),
    }
}
