//! The history as the API gives it: `GET /history`, and the same for a group.

use axum::extract::State;
use axum::http::StatusCode;
use forebay_wire::json::{self, Time};

use super::Dashboard;
use super::history::{HOUR, Sample, WEEK};
use crate::native::http::Door;
use crate::native::http::failure::Failure;
use crate::native::http::live::Reply;
use crate::native::http::request::{Entered, InGroup, Query, bad_parameter};

/// Points of an answer if the request does not say, and at most.
const POINTS_DEFAULT: u64 = 60;
const POINTS_MAX: u64 = 1_000;

/// What a client asks for.
struct Wish {
    /// Seconds, a whole number of them for each point.
    span: u64,
    points: usize,
}

impl Wish {
    fn read(mut query: Query, span_max: u64) -> Result<Wish, Failure> {
        let (span, points) = (query.span("span")?, query.number::<u64>("points")?);
        query.end()?;
        let points = points.unwrap_or(POINTS_DEFAULT);
        if !(1..=POINTS_MAX).contains(&points) {
            return Err(bad_parameter(
                "points",
                &format!("must be between 1 and {POINTS_MAX}. value=`{points}`"),
            ));
        }
        let span = span.map_or(HOUR, |span| span.as_secs());
        if span < points || span > span_max {
            let rule = format!(
                "must be between {points}s, a second for each point, and {span_max}s. value=`{span}s`"
            );
            return Err(bad_parameter("span", &rule));
        }
        Ok(Wish { span: span / points * points, points: points as usize })
    }

    fn answer(&self, now: u64, points: impl Fn(fn(&Sample) -> f32) -> Vec<f32>) -> json::History {
        let step = self.span / self.points as u64;
        let from = (now / step + 1).saturating_sub(self.points as u64) * step;
        let line = |of: fn(&Sample) -> f32| {
            let shown = |value: f32| (!value.is_nan()).then(|| f64::from(value));
            points(of).into_iter().map(shown).collect()
        };
        json::History {
            from: Time(from * 1_000_000),
            step,
            arrived: line(|of| of.arrived),
            settled: line(|of| of.settled),
            lag: line(|of| of.lag),
            oldest_age: line(|of| of.oldest),
            in_flight: line(|of| of.in_flight),
            parked: line(|of| of.parked),
        }
    }
}

/// Needs the same right as the report on the server.
pub(in crate::native::http) async fn server(
    State(door): State<Door>,
    Entered(service): Entered,
    query: Query,
) -> Result<Reply<json::History>, Failure> {
    let wish = Wish::read(query, WEEK)?;
    service.server().await?;
    let now = Dashboard::snapshot(&door).await?.at.0 / 1_000_000;
    let history = door.dashboard().history();
    let answer = wish.answer(now, |of| history.points(now, wish.span, wish.points, of));
    Ok(Reply(StatusCode::OK, answer))
}

/// Needs the same right as the report on the group.
pub(in crate::native::http) async fn group(
    State(door): State<Door>,
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    query: Query,
) -> Result<Reply<json::History>, Failure> {
    let wish = Wish::read(query, HOUR)?;
    let report = service.group(stream, group).await?;
    let now = Dashboard::snapshot(&door).await?.at.0 / 1_000_000;
    let history = door.dashboard().history();
    let ring = history.of_group(report.stream.as_str(), report.name.as_str());
    let none = || vec![f32::NAN; wish.points];
    let points =
        |of: fn(&Sample) -> f32| ring.map_or_else(none, |ring| ring.points(now, wish.span, wish.points, of));
    Ok(Reply(StatusCode::OK, wish.answer(now, points)))
}
