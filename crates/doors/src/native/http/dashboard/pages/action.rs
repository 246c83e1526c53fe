//! Calls of operators as dialogs.
//!
//! A dialog is a form that the server writes: what happens, its fields, the equivalent command. The script sends it
//! as a call of the HTTP API, and shows the API's answer. A dangerous one wants the name of its subject typed in
//! first.

use maud::{Markup, html};

use super::super::layout::command;

/// How the value of a field is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Text,
    Number,
    /// JSON as it is typed.
    Json,
    /// True, or left out.
    Flag,
    /// `beginning`, `end`, a position or a time.
    Place,
    /// A number a second, with a burst of one second; nothing takes the limit away.
    Pace,
}

impl Sent {
    fn as_str(self) -> &'static str {
        match self {
            Sent::Text => "text",
            Sent::Number => "number",
            Sent::Json => "json",
            Sent::Flag => "flag",
            Sent::Place => "place",
            Sent::Pace => "pace",
        }
    }
}

/// A field of a dialog.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    /// Its path in the body of the call, as `filter.reason`.
    pub(super) name: &'a str,
    pub(super) label: &'a str,
    pub(super) value: String,
    pub(super) hint: &'a str,
    pub(super) sent: Sent,
    pub(super) is_required: bool,
    /// More than one line.
    pub(super) is_long: bool,
}

impl<'a> Field<'a> {
    pub(super) fn new(name: &'a str, label: &'a str, sent: Sent) -> Field<'a> {
        Field { name, label, value: String::new(), hint: "", sent, is_required: false, is_long: false }
    }

    pub(super) fn value(self, value: impl Into<String>) -> Field<'a> {
        Field { value: value.into(), ..self }
    }

    pub(super) fn hint(self, hint: &'a str) -> Field<'a> {
        Field { hint, ..self }
    }

    pub(super) fn required(self) -> Field<'a> {
        Field { is_required: true, ..self }
    }

    pub(super) fn long(self) -> Field<'a> {
        Field { is_long: true, ..self }
    }
}

/// A call of an operator.
pub(super) struct Action<'a> {
    /// Of its own on the page.
    pub(super) id: &'a str,
    /// On the button that opens it, and on the one that does it.
    pub(super) label: &'a str,
    pub(super) title: String,
    pub(super) text: Markup,
    pub(super) method: &'a str,
    /// The call, relative to the page.
    pub(super) address: String,
    /// What the body has beside the fields, in JSON.
    pub(super) body: String,
    pub(super) fields: Vec<Field<'a>>,
    /// The equivalent command, without its options.
    pub(super) command: String,
    /// Options, where `{name}` stands for a field's value; a part in brackets is left out where the value is empty.
    pub(super) options: &'a str,
    /// The text to type before it can be done.
    pub(super) confirm: Option<String>,
    /// The notice when it is done. `{name}` stands for a field of the answer.
    pub(super) done: &'a str,
    /// Where to go then. `None`: the page stays.
    pub(super) then: Option<String>,
}

impl Action<'_> {
    fn is_dangerous(&self) -> bool {
        self.confirm.is_some()
    }

    /// The button that opens the dialog.
    pub(super) fn button(&self) -> Markup {
        html! {
            button type="button" class=[self.is_dangerous().then_some("danger")] data-open=(self.id) { (self.label) }
        }
    }

    pub(super) fn dialog(&self) -> Markup {
        let title_id = format!("{}-title", self.id);
        html! {
            dialog id=(self.id) aria-labelledby=(title_id) {
                form method="dialog" data-call data-method=(self.method) data-address=(self.address)
                    data-body=(self.body) data-done=(self.done) data-then=[self.then.as_deref()] {
                    h2 id=(title_id) { (self.title) }
                    div.what { (self.text) }
                    @for field in &self.fields { (self.field(field)) }
                    @if let Some(name) = &self.confirm {
                        @let id = format!("{}-confirm", self.id);
                        div.field {
                            label for=(id) { "Type " code { (name) } " to confirm" }
                            input id=(id) type="text" autocomplete="off" spellcheck="false" required
                                data-confirm=(name);
                        }
                    }
                    p.command-title { "The same on the command line" }
                    div data-command-of data-head=(self.command) data-options=(self.options) {
                        (command(&self.command))
                    }
                    p.error role="alert" data-error hidden {}
                    div.buttons {
                        button.quiet type="button" data-close { "Cancel" }
                        button type="submit" class=(if self.is_dangerous() { "danger" } else { "primary" })
                            disabled[self.is_dangerous()] { (self.label) }
                    }
                }
            }
        }
    }

    fn field(&self, field: &Field<'_>) -> Markup {
        let id = format!("{}-{}", self.id, field.name.replace('.', "-"));
        let hint = format!("{id}-hint");
        let described = (!field.hint.is_empty()).then_some(&hint);
        if field.sent == Sent::Flag {
            return html! {
                div.field.check {
                    input id=(id) type="checkbox" name=(field.name) data-sent="flag";
                    label for=(id) { (field.label) }
                }
            };
        }
        html! {
            div.field {
                label for=(id) { (field.label) }
                @if field.is_long {
                    textarea id=(id) name=(field.name) rows="8" spellcheck="false" data-sent=(field.sent.as_str())
                        aria-describedby=[described] required[field.is_required] { (field.value) }
                } @else {
                    @let is_number = matches!(field.sent, Sent::Number | Sent::Pace);
                    input id=(id) type=(if is_number { "number" } else { "text" })
                        name=(field.name) value=(field.value) autocomplete="off" spellcheck="false" min="0" step="any"
                        data-sent=(field.sent.as_str()) aria-describedby=[described] required[field.is_required];
                }
                @if !field.hint.is_empty() { p.hint id=(hint) { (field.hint) } }
            }
        }
    }
}
