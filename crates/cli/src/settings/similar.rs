//! Names that are nearly the name of a setting: typing mistakes.

use super::SETTINGS;

/// The variables of the environment that commands read and that are not settings.
const OTHER_VARIABLES: [&str; 10] = [
    "ADMIN_TOKEN",
    "CA",
    "CLIENT_CERT",
    "CLIENT_KEY",
    "CONFIG",
    "CONTEXT",
    "ENCRYPTION_KEY",
    "SERVER",
    "TOKEN",
    "TOKEN_FILE",
];

/// The setting whose name is nearest, if few letters differ.
pub(super) fn setting_like(name: &str) -> Option<&'static str> {
    let near = SETTINGS.iter().map(|setting| (distance(name, setting.name), setting.name)).min()?;
    let (letters, setting) = near;
    (letters > 0 && letters * 3 <= name.chars().count()).then_some(setting)
}

/// A sentence for each variable that looks like one of ours and sets nothing. Others may begin with `FOREBAY_` too:
/// Kubernetes sets `FOREBAY_PORT` beside a service of that name.
pub(crate) fn doubtful_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut doubtful: Vec<String> = names
        .filter_map(|name| {
            let ours = name.strip_prefix("FOREBAY_").filter(|rest| !OTHER_VARIABLES.contains(rest))?;
            let setting = setting_like(&ours.to_lowercase())?.to_uppercase();
            Some(format!("the variable {name} is not a setting, and has no effect; FOREBAY_{setting} is one"))
        })
        .collect();
    doubtful.sort();
    doubtful
}

/// How many letters have to be added, left out or changed to make one name the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (nth, letter) in one.chars().enumerate() {
        let mut before = std::mem::replace(&mut row[0], nth + 1);
        for (at, other) in other.chars().enumerate() {
            let changed = before + usize::from(letter != other);
            before = row[at + 1];
            row[at + 1] = changed.min(before + 1).min(row[at] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_mistake_is_near_and_another_word_is_not() {
        assert_eq!(setting_like("listn"), Some("listen"));
        assert_eq!(setting_like("max_conections"), Some("max_connections"));
        assert_eq!(setting_like("listen"), None, "it is a setting");
        assert_eq!(setting_like("port"), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn variables_with_typing_mistakes_are_named() {
        let names = ["FOREBAY_LISTN", "FOREBAY_LISTEN", "FOREBAY_PORT", "FOREBAY_TOKEN", "PATH"];
        let doubtful = doubtful_variables(names.map(str::to_owned).into_iter());
        assert_eq!(doubtful.len(), 1, "{doubtful:?}");
        assert!(doubtful[0].contains("FOREBAY_LISTN") && doubtful[0].contains("FOREBAY_LISTEN is"));
    }
}
