//! Settings as requests of gRPC have them, checked, and lengths of time.

use std::time::Duration;

use forebay_model::limits::{INSTANT, YEAR};
use forebay_model::value::{Setting as _, lasting};
use forebay_model::{GroupPatch, GroupSettings, Rate, SettingsError, StreamPatch, StreamSettings};
use forebay_wire::settings::{model_name, refusal, requested};
use forebay_wire::v1;
use tonic::Status;

use super::status;

fn refuse(error: &SettingsError) -> Status {
    status::invalid(refusal(error))
}

pub(super) fn stream(wire: Option<v1::StreamSettings>) -> Result<StreamPatch, Status> {
    let patch: StreamPatch = requested(&wire.unwrap_or_default()).map_err(|error| refuse(&error))?;
    patch.check().map_err(|error| refuse(&error))?;
    Ok(patch)
}

pub(super) fn group(wire: Option<v1::GroupSettings>) -> Result<GroupPatch, Status> {
    let patch: GroupPatch = requested(&wire.unwrap_or_default()).map_err(|error| refuse(&error))?;
    patch.check().map_err(|error| refuse(&error))?;
    Ok(patch)
}

/// A change of a stream's settings: first the fields of `clear` go back to their defaults, then the given ones apply.
pub(super) fn stream_change(
    wire: Option<v1::StreamSettings>,
    clear: Vec<String>,
) -> Result<impl FnOnce(&mut StreamSettings) + Send + 'static, Status> {
    let patch = stream(wire)?;
    let clear = known(clear, |field| StreamSettings::default().reset(field), StreamSettings::FIELDS)?;
    Ok(move |settings: &mut StreamSettings| {
        for field in &clear {
            settings.reset(field);
        }
        patch.apply(settings);
    })
}

/// As [`stream_change`], of a group.
pub(super) fn group_change(
    wire: Option<v1::GroupSettings>,
    clear: Vec<String>,
) -> Result<impl FnOnce(&mut GroupSettings) + Send + 'static, Status> {
    let patch = group(wire)?;
    let clear = known(clear, |field| GroupSettings::default().reset(field), GroupSettings::FIELDS)?;
    Ok(move |settings: &mut GroupSettings| {
        for field in &clear {
            settings.reset(field);
        }
        patch.apply(settings);
    })
}

/// Names of fields, by their names here or in the model. Where a group begins cannot be changed.
fn known(
    names: Vec<String>,
    is_field: impl Fn(&str) -> bool,
    fields: &[forebay_model::Field],
) -> Result<Vec<String>, Status> {
    let known = names.into_iter().map(|name| {
        let field = model_name(fields, &name);
        if field == "start" || !is_field(field) {
            return Err(status::invalid(format!("clear: no such field. field=`{name}`")));
        }
        Ok(field.to_owned())
    });
    known.collect()
}

pub(super) fn rate(field: &str, wire: Option<v1::Rate>) -> Result<Option<Rate>, Status> {
    let rate = wire.map(Rate::from);
    rate.map_or(Ok(()), |rate| rate.check(field)).map_err(|error| refuse(&error))?;
    Ok(rate)
}

/// A length of time that may be none at all.
pub(super) fn duration(field: &str, millis: Option<u64>) -> Result<Option<Duration>, Status> {
    within(field, millis, Duration::ZERO)
}

/// A length of time.
pub(super) fn some_duration(field: &str, millis: Option<u64>) -> Result<Option<Duration>, Status> {
    within(field, millis, INSTANT)
}

fn within(field: &str, millis: Option<u64>, min: Duration) -> Result<Option<Duration>, Status> {
    let duration = millis.map(Duration::from_millis);
    duration.check(field, lasting(min, YEAR)).map_err(|error| refuse(&error))?;
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_out_of_range_is_refused_by_name() {
        let refused = |wire| group(Some(wire)).err().map(|status| status.message().to_owned());
        let wire = v1::GroupSettings { window_max: Some(0), ..Default::default() };
        assert_eq!(refused(wire).as_deref(), Some("window_max: must be at least 1. value=`0`"));
        let rate = Some(v1::Rate { per_second: f64::NAN, burst: 1 });
        let text = refused(v1::GroupSettings { rate, ..Default::default() });
        assert_eq!(text.as_deref(), Some("rate.per_second: must be between 0.001 and 10000000. value=`NaN`"));
        let wire = v1::GroupSettings { message_timeout_ms: Some(u64::MAX), ..Default::default() };
        assert!(refused(wire).is_some_and(|text| text.starts_with("message_timeout_ms: must be between")));
    }

    #[test]
    fn given_settings_apply_after_the_cleared_ones_and_fields_must_exist() {
        let rate = Some(v1::Rate { per_second: 5.0, burst: 1 });
        let wire = v1::GroupSettings { rate, ..Default::default() };
        let mut settings = GroupSettings { buffer: 7, ..GroupSettings::default() };
        settings.backoff.max = Duration::from_secs(1);
        let clear = ["rate", "buffer", "backoff.max_ms"].map(str::to_owned).to_vec();
        group_change(Some(wire), clear).expect("these are fields")(&mut settings);
        assert_eq!((settings.rate.map(|rate| rate.per_second), settings.buffer), (Some(5.0), 500));
        assert_eq!(settings.backoff.max, Duration::from_secs(30));
        for wrong in ["limit", "start", "key_lock", "buffer_ms"] {
            let refused = group_change(None, vec![wrong.to_owned()]).err();
            let text = refused.map(|status| status.message().to_owned());
            assert_eq!(text, Some(format!("clear: no such field. field=`{wrong}`")));
        }
    }
}
