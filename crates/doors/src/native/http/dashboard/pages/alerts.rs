//! The alerts that are active, and how the receivers of notifications are, on the overview.

use forebay_broker::api::Caller;
use forebay_core::types::{GroupName, StreamName};
use forebay_wire::alert::{Alert, AlertKind};
use maud::{Markup, html};

use super::super::format;
use super::super::layout::name;
use super::super::view::View;
use crate::native::alerts::{Alerts, Delivery};

/// Alerts on the page.
const SHOWN: usize = 8;

/// The alerts, as far as a client may see them.
pub(super) struct Board {
    firing: Vec<Alert>,
    /// Name, state and number of waiting notifications. Only for a client that may see the whole server.
    receivers: Vec<(String, Delivery, usize)>,
}

impl Board {
    pub(super) fn of(alerts: &Alerts, caller: &Caller) -> Board {
        let is_seen = |alert: &Alert| {
            let names = (StreamName::of_any(&alert.stream), GroupName::parse(&alert.group));
            matches!(names, (Ok(stream), Ok(group)) if caller.sees_group(&stream, &group))
        };
        let receivers = match caller.sees_server() {
            true => alerts
                .receivers()
                .iter()
                .map(|one| (one.name().to_owned(), one.delivery(), one.waiting()))
                .collect(),
            false => Vec::new(),
        };
        Board { firing: alerts.firing().into_iter().filter(is_seen).collect(), receivers }
    }

    pub(super) fn write(&self, view: &View) -> Markup {
        html! {
            section.attention aria-labelledby="alerts-title" data-urgent=[(!self.firing.is_empty()).then_some("")] {
                h2 #alerts-title {
                    @if self.firing.is_empty() { "No alert is active" } @else {
                        "Active alerts" span.badge { (format::count(self.firing.len() as u64)) }
                    }
                }
                @if !self.firing.is_empty() {
                    ul {
                        @for alert in self.firing.iter().take(SHOWN) { li { (line(view, alert)) } }
                    }
                }
                @if self.firing.len() > SHOWN {
                    p.more {
                        a href=(view.to("ui/groups?sort=attention")) {
                            "and " (format::count((self.firing.len() - SHOWN) as u64)) " more"
                        }
                    }
                }
                @if !self.receivers.is_empty() {
                    ul.receivers {
                        @for (name, delivery, waiting) in &self.receivers {
                            li { (receiver(view, name, delivery, *waiting)) }
                        }
                    }
                }
            }
        }
    }
}

fn line(view: &View, alert: &Alert) -> Markup {
    let address = match alert.alert {
        AlertKind::Parked => view.parked(&alert.stream, &alert.group),
        _ => view.group(&alert.stream, &alert.group),
    };
    html! {
        span.mark.critical role="img" aria-label="alert" {}
        span.sentence {
            a href=(address) { (name(&alert.stream)) "/" (name(&alert.group)) }
            " " (alert.text)
            span.hint { " · for " (format::age(view.since(alert.since.0))) }
        }
    }
}

fn receiver(view: &View, name: &str, delivery: &Delivery, waiting: usize) -> Markup {
    html! {
        span class=(if delivery.failing.is_some() { "mark warning" } else { "mark" }) aria-hidden="true" {}
        span.sentence {
            strong { (name) }
            @match (&delivery.failing, delivery.last_sent) {
                (Some((since, error)), _) => {
                    " has not taken notifications for " (format::age(view.since(since.0))) ": " (error)
                }
                (None, Some(at)) => {
                    span.hint {
                        " · " (format::count_of(delivery.sent, "notification")) ", the last "
                        (format::age(view.since(at.0))) " ago"
                    }
                }
                (None, None) => { span.hint { " · no notification was needed" } }
            }
            @if waiting > 0 { span.hint { " · " (format::count(waiting as u64)) " waiting" } }
            @if delivery.dropped > 0 { span.hint { " · " (format::count(delivery.dropped)) " dropped" } }
        }
    }
}
