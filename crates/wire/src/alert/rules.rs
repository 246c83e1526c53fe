//! The thresholds of groups, as an operator writes them: `orders/*: age 1m, lag 10000; *: age 10m, parked 1`.

use std::fmt;
use std::str::FromStr;

use super::AlertKind;
use crate::json::Span;

/// More rules are refused.
pub const RULES_MAX: usize = 100;

/// Which thresholds count for which groups. The first rule whose pattern fits a group is the one that counts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rules(Vec<Rule>);

#[derive(Debug, Clone, PartialEq)]
struct Rule {
    stream: String,
    group: String,
    thresholds: Thresholds,
}

/// The thresholds of a group. A kind without one has no alerts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Thresholds([Option<f64>; AlertKind::ALL.len()]);

impl Thresholds {
    /// In messages or seconds.
    pub fn get(&self, kind: AlertKind) -> Option<f64> {
        self.0[kind as usize]
    }
}

impl Rules {
    /// The thresholds of a group. A group that no rule fits has none.
    pub fn of(&self, stream: &str, group: &str) -> Thresholds {
        let fits = |rule: &&Rule| matches(&rule.stream, stream) && matches(&rule.group, group);
        self.0.iter().find(fits).map(|rule| rule.thresholds).unwrap_or_default()
    }
}

/// Rules that cannot be understood, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRules(String);

impl fmt::Display for BadRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadRules {}

impl FromStr for Rules {
    type Err = BadRules;

    /// Rules are separated by semicolons or lines, conditions by commas.
    fn from_str(text: &str) -> Result<Rules, BadRules> {
        let lines = text.split([';', '\n']).map(str::trim).filter(|line| !line.is_empty());
        let rules: Vec<Rule> = lines.map(rule).collect::<Result<_, _>>()?;
        match rules.len() {
            0 => bad("expected a rule such as `*: age 10m, parked 1`"),
            1..=RULES_MAX => Ok(Rules(rules)),
            _ => bad(&format!("expected at most {RULES_MAX} rules")),
        }
    }
}

fn bad<T>(text: &str) -> Result<T, BadRules> {
    Err(BadRules(text.to_owned()))
}

fn rule(line: &str) -> Result<Rule, BadRules> {
    // The name of a stream may have a colon, and a threshold has none.
    let Some((pattern, conditions)) = line.rsplit_once(':') else {
        return bad(&format!(
            "a rule is a pattern, a colon and conditions, such as `orders/*: age 10m`. rule=`{line}`"
        ));
    };
    let (stream, group) = match pattern.trim().rsplit_once('/') {
        Some((stream, group)) if !stream.is_empty() && !group.is_empty() => (stream, group),
        None if pattern.trim() == "*" => ("*", "*"),
        _ => {
            return bad(&format!(
                "a pattern is `*` or STREAM/GROUP, with `*` for any characters. pattern=`{}`",
                pattern.trim()
            ));
        }
    };
    let mut thresholds = Thresholds::default();
    if conditions.trim() != "none" {
        for condition in conditions.split(',') {
            let (kind, threshold) = self::condition(condition.trim())?;
            if thresholds.0[kind as usize].replace(threshold).is_some() {
                return bad(&format!("{} is given twice. rule=`{line}`", kind.as_str()));
            }
        }
    }
    Ok(Rule { stream: stream.to_owned(), group: group.to_owned(), thresholds })
}

fn condition(text: &str) -> Result<(AlertKind, f64), BadRules> {
    let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let (kind, value) = (AlertKind::ALL.into_iter().find(|kind| kind.as_str() == name), value.trim());
    let Some(kind) = kind else {
        return bad(&format!(
            "a condition is age TIME, lag N, parked N, no_consumers TIME, or none alone. condition=`{text}`"
        ));
    };
    let threshold = if kind.is_time() {
        let span: Span =
            value.parse().map_err(|error| BadRules(format!("{name}: {error}. value=`{value}`")))?;
        span.0.as_secs_f64()
    } else {
        value.parse::<u32>().map(f64::from).map_err(|_| {
            BadRules(format!("{name} must be a whole number up to {}. value=`{value}`", u32::MAX))
        })?
    };
    match threshold > 0.0 {
        true => Ok((kind, threshold)),
        false => bad(&format!("{name} must be greater than zero. value=`{value}`")),
    }
}

/// Whether a name fits a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    let mut rest = rest;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_fits_counts() {
        let rules: Rules = "orders/bill*: age 1m, lag 10000; test-*/*: none\n *: age 10m, parked 1"
            .parse()
            .expect("they are sound");
        let billing = rules.of("orders", "billing");
        assert_eq!((billing.get(AlertKind::Age), billing.get(AlertKind::Lag)), (Some(60.0), Some(10_000.0)));
        assert_eq!((billing.get(AlertKind::Parked), billing.get(AlertKind::NoConsumers)), (None, None));
        assert_eq!(rules.of("test-a", "x"), Thresholds::default());
        assert_eq!(rules.of("a/b", "x").get(AlertKind::Parked), Some(1.0));
        let one: Rules = "a:b/c: lag 1".parse().expect("it is sound");
        assert_eq!(one.of("a:b", "c").get(AlertKind::Lag), Some(1.0));
        assert_eq!(one.of("a", "c"), Thresholds::default());
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acd", false),
            ("*b*", "abc", true),
            ("a*b*b", "ab", false),
            ("a*b*b", "abb", true),
            ("abc", "abcd", false),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn wrong_rules_say_what_is_wrong() {
        for (text, says) in [
            ("", "expected a rule"),
            (" ; ", "expected a rule"),
            ("orders", "a rule is a pattern"),
            ("orders: age 1m", "pattern=`orders`"),
            ("/x: age 1m", "pattern=`/x`"),
            ("*: age", "value=``"),
            ("*: age 5", "value=`5`"),
            ("*: age 0s", "age must be greater than zero"),
            ("*: lag -1", "lag must be a whole number"),
            ("*: parked 0", "parked must be greater than zero"),
            ("*: size 5", "condition=`size 5`"),
            ("*: age 1m, age 2m", "age is given twice"),
            ("*:", "condition=``"),
        ] {
            let wrong = text.parse::<Rules>().expect_err(text).to_string();
            assert!(wrong.contains(says), "{text}: {wrong}");
        }
        let many = "a/b: lag 1;".repeat(RULES_MAX + 1);
        assert!(many.parse::<Rules>().expect_err("too many").to_string().contains("at most 100"));
    }
}
