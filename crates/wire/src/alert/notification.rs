//! What receivers of alerts are sent: plain JSON, or the form that Slack and its relatives understand.

use serde::{Deserialize, Serialize};

use super::{Alert, Event};
use crate::json::Time;

/// Alerts in one notification. When thousands of groups cross a threshold at once, more are of no use.
pub const ALERTS_MAX: usize = 100;
/// Lines of one notification to a person.
const LINES_MAX: usize = 15;

/// Everything that began or ended at one look.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Notification {
    /// The same for each attempt to send it, and for no other notification.
    pub id: String,
    pub at: Time,
    /// The server, as its operator calls it.
    pub server: String,
    pub alerts: Vec<Alert>,
    /// How many more there were.
    pub more: usize,
}

impl Notification {
    /// Of these changes. `None`: there are none.
    pub fn new(server: &str, at: u64, number: u64, mut alerts: Vec<Alert>) -> Option<Notification> {
        if alerts.is_empty() {
            return None;
        }
        // The ones that begin are read first, and are not the ones that are left out.
        alerts.sort_by_key(|alert| alert.event == Event::Cleared);
        let more = alerts.len().saturating_sub(ALERTS_MAX);
        alerts.truncate(ALERTS_MAX);
        let id = format!("alert-{at}-{number}");
        Some(Notification { id, at: Time(at), server: server.to_owned(), alerts, more })
    }

    /// As plain JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("it is texts and numbers")
    }

    /// As Slack, Mattermost and others take it.
    pub fn slack(&self) -> String {
        let mut lines: Vec<String> = self.alerts.iter().take(LINES_MAX).map(line).collect();
        let left = self.alerts.len().saturating_sub(LINES_MAX) + self.more;
        if left > 0 {
            lines.push(format!("and {left} more"));
        }
        lines.push(format!("_{}_", escaped(&self.server)));
        serde_json::json!({ "text": lines.join("\n") }).to_string()
    }
}

fn line(alert: &Alert) -> String {
    let mark = match alert.event {
        Event::Fired => ":red_circle:",
        Event::Cleared => ":large_green_circle:",
    };
    format!("{mark} *{}/{}* {}", escaped(&alert.stream), escaped(&alert.group), escaped(&alert.text))
}

/// Names come from clients, and `<!channel>` would wake everybody.
fn escaped(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|char| if char.is_control() || "*_`~".contains(char) { ' ' } else { char })
        .collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
