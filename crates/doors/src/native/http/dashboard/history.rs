//! Figures of the past, in bounded memory: an hour by the second and a week by the minute for the server, an hour
//! by ten seconds for each group.
//!
//! A [`Ring`] has a slot for each step of time. A sample goes into the slot of its time; slots without a sample are
//! gaps, which a chart shows as gaps. Nothing here reads a clock.

use std::collections::{HashMap, VecDeque};

/// One moment of a server or a group. Counters are rates for each second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Sample {
    pub(super) arrived: f32,
    pub(super) settled: f32,
    pub(super) lag: f32,
    /// Seconds.
    pub(super) oldest: f32,
    pub(super) parked: f32,
    pub(super) in_flight: f32,
}

impl Sample {
    const FIELDS: usize = 6;
    const GAP: Sample = Sample {
        arrived: f32::NAN,
        settled: f32::NAN,
        lag: f32::NAN,
        oldest: f32::NAN,
        parked: f32::NAN,
        in_flight: f32::NAN,
    };

    fn is_gap(&self) -> bool {
        self.lag.is_nan()
    }

    fn fields(&self) -> [f32; Sample::FIELDS] {
        [self.arrived, self.settled, self.lag, self.oldest, self.parked, self.in_flight]
    }

    fn of_fields([arrived, settled, lag, oldest, parked, in_flight]: [f32; Sample::FIELDS]) -> Sample {
        Sample { arrived, settled, lag, oldest, parked, in_flight }
    }
}

/// Samples of the last so many steps.
#[derive(Debug, Clone)]
pub(super) struct Ring {
    /// Seconds of one step.
    step: u64,
    slots_max: usize,
    /// The number of the step after the last slot.
    end: u64,
    slots: VecDeque<Sample>,
    /// How many samples the last slot is made of.
    merged: u32,
}

impl Ring {
    fn new(step: u64, slots_max: usize) -> Ring {
        Ring { step, slots_max, end: 0, slots: VecDeque::new(), merged: 0 }
    }

    /// Adds a sample of this second. Samples of one step are merged: rates as their mean, levels as their largest, so
    /// that a peak stays visible.
    fn push(&mut self, second: u64, sample: Sample) {
        let slot = second / self.step;
        if self.slots.is_empty() || slot >= self.end.saturating_add(self.slots_max as u64) {
            self.slots.clear();
            self.end = slot;
        }
        if slot + 1 == self.end
            && let Some(last) = self.slots.back_mut()
        {
            self.merged += 1;
            let part = 1.0 / self.merged as f32;
            last.arrived += (sample.arrived - last.arrived) * part;
            last.settled += (sample.settled - last.settled) * part;
            last.lag = last.lag.max(sample.lag);
            last.oldest = last.oldest.max(sample.oldest);
            last.parked = last.parked.max(sample.parked);
            last.in_flight = last.in_flight.max(sample.in_flight);
            return;
        }
        // A date that went back: the samples of then are there already.
        if slot < self.end {
            return;
        }
        while self.end < slot {
            self.add(Sample::GAP);
        }
        self.add(sample);
        self.merged = 1;
    }

    fn add(&mut self, sample: Sample) {
        if self.slots.len() == self.slots_max {
            self.slots.pop_front();
        }
        self.slots.push_back(sample);
        self.end += 1;
    }

    /// The last `span` seconds before `now` in so many points, from the oldest to the newest. A point without a
    /// sample is not a number. Rates are means, levels are maxima.
    pub(super) fn points(&self, now: u64, span: u64, points: usize, of: fn(&Sample) -> f32) -> Vec<f32> {
        let mut sums = vec![(0.0_f64, 0_u32, f32::NAN); points];
        let width = (span / points as u64).max(1);
        // Points begin at whole multiples of their width, so that a point keeps its value while time passes.
        let end = now / width + 1;
        let begin = end.saturating_sub(points as u64);
        for (index, sample) in self.slots.iter().enumerate().filter(|(_, sample)| !sample.is_gap()) {
            let second = (self.end - (self.slots.len() - index) as u64) * self.step;
            // A slot may be wider than a point.
            let (from, to) = (second / width, (second + self.step - 1) / width);
            for point in from.max(begin)..=to.min(end - 1) {
                let (sum, count, max) = &mut sums[(point - begin) as usize];
                let value = of(sample);
                *sum += f64::from(value);
                *count += 1;
                *max = max.max(value);
            }
        }
        let is_rate = of(&Sample { arrived: 1.0, settled: 1.0, ..Sample::default() }) > 0.0;
        let one = |(sum, count, max): (f64, u32, f32)| match count {
            0 => f32::NAN,
            _ if is_rate => (sum / f64::from(count)) as f32,
            _ => max,
        };
        bridged(sums.into_iter().map(one).collect(), width)
    }

    /// The seconds since the first sample that is there.
    pub(super) fn recorded(&self, now: u64) -> u64 {
        let first = self.end - self.slots.len() as u64;
        if self.slots.is_empty() { 0 } else { now.saturating_sub(first * self.step) }
    }

    /// The sample of the newest slot.
    #[cfg(test)]
    fn last(&self) -> Option<&Sample> {
        self.slots.back()
    }
}

/// Samples that are this far apart, in seconds, belong together: a busy server is looked at less often.
const BRIDGED: u64 = 60;

/// Points with short gaps closed by the value before.
fn bridged(mut points: Vec<f32>, width: u64) -> Vec<f32> {
    let most = (BRIDGED / width) as usize;
    let (mut before, mut gap) = (f32::NAN, 0);
    for n in 0..points.len() {
        if points[n].is_nan() {
            gap += 1;
        }
        let is_end = n + 1 == points.len();
        if !points[n].is_nan() || is_end {
            if gap <= most && !before.is_nan() {
                let first = n + usize::from(points[n].is_nan()) - gap;
                points[first..first + gap].fill(before);
            }
            gap = 0;
        }
        if !points[n].is_nan() {
            before = points[n];
        }
    }
    points
}

/// An hour by the second.
pub(super) const HOUR: u64 = 3_600;
/// A week by the minute.
pub(super) const WEEK: u64 = 7 * 86_400;
const MINUTE: u64 = 60;
/// The step of a group.
const GROUP_STEP: u64 = 10;
/// Groups with a history. Of more, the first ones that were seen.
pub(super) const GROUPS_MAX: usize = 2_000;

/// Bands of processing times.
pub(super) const BANDS: usize = forebay_broker::api::BANDS.len() + 1;
/// The step of a column of the picture of processing times, and how many columns there are: an hour.
const HEAT_STEP: u64 = 40;
const HEAT_COLUMNS: usize = (HOUR / HEAT_STEP) as usize;

/// How many messages took how long, over time.
#[derive(Debug, Clone, Default)]
pub(super) struct Heat {
    /// Counts of each band since the server started, as they were last.
    seen: [u64; BANDS],
    /// The number of the step after the last column.
    end: u64,
    columns: VecDeque<[u32; BANDS]>,
}

impl Heat {
    /// Takes in counts of times shorter than the end of each band.
    fn push(&mut self, second: u64, shorter: [u64; BANDS]) {
        let mut counts = shorter;
        for n in (1..BANDS).rev() {
            counts[n] = shorter[n].saturating_sub(shorter[n - 1]);
        }
        let slot = second / HEAT_STEP;
        let is_first = self.columns.is_empty();
        if is_first || slot >= self.end + HEAT_COLUMNS as u64 {
            self.columns.clear();
            self.end = slot;
        }
        while self.end <= slot {
            if self.columns.len() == HEAT_COLUMNS {
                self.columns.pop_front();
            }
            self.columns.push_back([0; BANDS]);
            self.end += 1;
        }
        // Counts from before the first look have no time.
        if let Some(column) = self.columns.back_mut().filter(|_| !is_first) {
            for (n, count) in column.iter_mut().enumerate() {
                let more = counts[n].saturating_sub(self.seen[n]);
                *count = count.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
            }
        }
        self.seen = counts;
    }

    /// Columns up to now, the oldest first, for so many seconds.
    pub(super) fn columns(&self, now: u64, span: u64) -> Vec<Vec<u64>> {
        let (end, count) = (now / HEAT_STEP + 1, span / HEAT_STEP);
        let first = self.end - self.columns.len() as u64;
        let column = |slot: u64| {
            let known = slot.checked_sub(first).and_then(|at| self.columns.get(at as usize));
            known.map_or(vec![0; BANDS], |column| column.iter().map(|count| u64::from(*count)).collect())
        };
        (end.saturating_sub(count)..end).map(column).collect()
    }
}

/// The past of a group.
#[derive(Debug)]
struct OfGroup {
    ring: Ring,
    heat: Heat,
}

/// The past of a server.
#[derive(Debug)]
pub(super) struct History {
    seconds: Ring,
    minutes: Ring,
    groups: HashMap<(String, String), OfGroup>,
}

impl Default for History {
    fn default() -> History {
        History {
            seconds: Ring::new(1, HOUR as usize),
            minutes: Ring::new(MINUTE, (WEEK / MINUTE) as usize),
            groups: HashMap::new(),
        }
    }
}

impl History {
    pub(super) fn push(&mut self, second: u64, sample: Sample) {
        self.seconds.push(second, sample);
        self.minutes.push(second, sample);
    }

    pub(super) fn push_group(
        &mut self,
        second: u64,
        stream: &str,
        group: &str,
        sample: Sample,
        bands: Option<[u64; BANDS]>,
    ) {
        let key = (stream.to_owned(), group.to_owned());
        if !self.groups.contains_key(&key) {
            if sample == Sample::default() || self.groups.len() >= GROUPS_MAX {
                return;
            }
            let ring = Ring::new(GROUP_STEP, (HOUR / GROUP_STEP) as usize);
            self.groups.insert(key.clone(), OfGroup { ring, heat: Heat::default() });
        }
        if let Some(of) = self.groups.get_mut(&key) {
            of.ring.push(second, sample);
            if let Some(bands) = bands {
                of.heat.push(second, bands);
            }
        }
    }

    /// Forgets groups without a sample in the last hour: they are deleted.
    pub(super) fn forget_before(&mut self, second: u64) {
        let oldest = second.saturating_sub(HOUR) / GROUP_STEP;
        self.groups.retain(|_, of| of.ring.end > oldest);
    }

    /// The server's last `span` seconds. Of an hour, points without a sample by the second are filled from the
    /// minutes.
    pub(super) fn points(&self, now: u64, span: u64, points: usize, of: fn(&Sample) -> f32) -> Vec<f32> {
        let minutes = self.minutes.points(now, span, points, of);
        if span > HOUR {
            return minutes;
        }
        // The first minute with a sample by the second has them for the rest of it, and no more is known.
        let first = (self.seconds.end - self.seconds.slots.len() as u64) / MINUTE * MINUTE;
        let width = (span / points as u64).max(1);
        let begin = (now / width + 1).saturating_sub(points as u64) * width;
        let seconds = self.seconds.points(now, span, points, of).into_iter().zip(minutes).enumerate();
        let one = |(n, (fine, coarse)): (usize, (f32, f32))| {
            let is_before = begin + (n as u64 + 1) * width <= first;
            if fine.is_nan() && is_before { coarse } else { fine }
        };
        seconds.map(one).collect()
    }

    /// The seconds since the first sample that is there.
    pub(super) fn recorded(&self, now: u64) -> u64 {
        self.minutes.recorded(now)
    }

    pub(super) fn of_group(&self, stream: &str, group: &str) -> Option<&Ring> {
        self.groups.get(&(stream.to_owned(), group.to_owned())).map(|of| &of.ring)
    }

    pub(super) fn heat_of(&self, stream: &str, group: &str) -> Option<&Heat> {
        self.groups.get(&(stream.to_owned(), group.to_owned())).map(|of| &of.heat)
    }
}

/// The first bytes of a kept day: a name and a version.
const MAGIC: &[u8; 8] = b"fbhist01";
const MINUTES_PER_DAY: u64 = 1_440;
/// How long a kept day is of use: the week, and the day that has begun.
pub(super) const KEPT_FOR: u64 = WEEK + 86_400;

/// The history by the minute as bytes, one value for each day in UTC, to keep it across restarts.
///
/// `magic (8) | first minute of the day (2) | minutes × 6 × bf16`, little endian. The upper half of a 32-bit float is
/// within half a percent of it, and a day takes 17 KB. The history by the second and those of groups are an hour at
/// most and are not kept.
impl History {
    /// The day of this second, from midnight on. `None` if there is nothing in it to keep.
    pub(super) fn encode_day(&self, second: u64) -> Option<(u64, Vec<u8>)> {
        let day = second / 86_400;
        let ring = &self.minutes;
        let first = ring.end - ring.slots.len() as u64;
        let slots = ring.slots.iter().enumerate().map(|(n, sample)| (first + n as u64, sample));
        let slots: Vec<_> = slots.filter(|(minute, _)| minute / MINUTES_PER_DAY == day).collect();
        if slots.iter().all(|(_, sample)| sample.is_gap() || **sample == Sample::default()) {
            return None;
        }
        let mut out = Vec::with_capacity(10 + slots.len() * Sample::FIELDS * 2);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&((slots[0].0 % MINUTES_PER_DAY) as u16).to_le_bytes());
        for field in slots.iter().flat_map(|(_, sample)| sample.fields()) {
            out.extend_from_slice(&((field.to_bits() >> 16) as u16).to_le_bytes());
        }
        Some((day, out))
    }

    /// Takes in a day that was kept. Days come in their order, before the first sample of now. False if these are
    /// not the bytes of a day.
    pub(super) fn decode_day(&mut self, day: u64, bytes: &[u8]) -> bool {
        let Some((first, rest)) = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_first_chunk::<2>())
        else {
            return false;
        };
        let first = u64::from(u16::from_le_bytes(*first));
        let minutes = rest.chunks_exact(Sample::FIELDS * 2);
        let is_whole = minutes.remainder().is_empty() && first + minutes.len() as u64 <= MINUTES_PER_DAY;
        if !is_whole {
            return false;
        }
        for (n, minute) in minutes.enumerate() {
            let field = |at: usize| {
                let half = u16::from_le_bytes([minute[at * 2], minute[at * 2 + 1]]);
                f32::from_bits(u32::from(half) << 16)
            };
            let sample = Sample::of_fields(std::array::from_fn(field));
            let minute = (day * MINUTES_PER_DAY).saturating_add(first + n as u64);
            if !sample.is_gap() {
                self.minutes.push(minute.saturating_mul(MINUTE), sample);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(settled: f32, lag: f32) -> Sample {
        Sample { settled, lag, ..Sample::default() }
    }

    #[test]
    fn a_ring_keeps_its_size_and_shows_gaps() {
        let mut ring = Ring::new(1, 10);
        for second in 0..25 {
            ring.push(second, sample(second as f32, 1.0));
        }
        assert_eq!(ring.slots.len(), 10);
        assert_eq!(ring.last().map(|last| last.settled), Some(24.0));
        ring.push(28, sample(28.0, 1.0));
        assert_eq!(ring.points(28, 10, 10, |sample| sample.settled)[6..], [24.0, 24.0, 24.0, 28.0]);
        let points: Vec<f32> = ring.slots.iter().map(|sample| sample.settled).collect();
        let shown: Vec<Option<f32>> = points.iter().map(|x| Some(*x).filter(|x| !x.is_nan())).collect();
        let some = |from: u8, to: u8| (from..=to).map(|n| Some(f32::from(n)));
        let expected: Vec<Option<f32>> = some(19, 24).chain([None, None, None]).chain([Some(28.0)]).collect();
        assert_eq!(shown, expected);
        ring.push(1_000_000, sample(1.0, 1.0));
        assert_eq!(ring.slots.len(), 1, "a long silence leaves nothing behind");
        ring.push(5, sample(1.0, 1.0));
        assert_eq!(ring.slots.len(), 1, "a date that goes back adds nothing");
    }

    #[test]
    fn samples_of_one_step_are_merged_as_means_and_peaks() {
        let mut ring = Ring::new(60, 10);
        for (second, settled, lag) in [(600, 1.0, 5.0), (601, 2.0, 50.0), (602, 3.0, 0.0)] {
            ring.push(second, sample(settled, lag));
        }
        assert_eq!(ring.last(), Some(&sample(2.0, 50.0)));
        let points = |of| ring.points(659, 120, 2, of);
        assert!(points(|sample: &Sample| sample.settled)[0].is_nan(), "nothing came before");
        assert_eq!(points(|sample: &Sample| sample.lag)[1], 50.0);
    }

    #[test]
    fn points_do_not_move_while_their_time_has_not_passed() {
        let mut ring = Ring::new(1, 3_600);
        for second in 900..1_000 {
            ring.push(second, sample(second as f32, 1.0));
        }
        let at = |now| ring.points(now, 600, 40, |sample| sample.settled);
        let text = |points: Vec<f32>| format!("{points:?}");
        assert_eq!(text(at(1_005)), text(at(1_019)));
        assert_ne!(text(at(1_005)), text(at(1_020)));
    }

    #[test]
    fn short_gaps_are_closed_and_long_ones_stay() {
        const GAP: f32 = f32::NAN;
        let shown = |points: &[f32]| {
            bridged(points.to_vec(), 30).iter().map(|x| Some(*x).filter(|x| !x.is_nan())).collect::<Vec<_>>()
        };
        let (one, two) = (Some(1.0), Some(2.0));
        assert_eq!(shown(&[GAP, 1.0, GAP, GAP, 2.0]), [None, one, one, one, two]);
        assert_eq!(shown(&[1.0, GAP, GAP, GAP, 2.0]), [one, None, None, None, two]);
        assert_eq!(shown(&[1.0, 2.0, GAP]), [one, two, two]);
        assert_eq!(shown(&[1.0, GAP, GAP, GAP]), [one, None, None, None]);
        assert_eq!(shown(&[GAP, GAP]), [None, None]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut history = History::default();
        for n in 0..GROUPS_MAX + 10 {
            history.push_group(0, "s", &n.to_string(), sample(1.0, 1.0), None);
        }
        history.push_group(0, "s", "quiet", Sample::default(), None);
        assert_eq!(history.groups.len(), GROUPS_MAX);
        history.push_group(HOUR * 2, "s", "0", sample(1.0, 1.0), None);
        history.forget_before(HOUR * 2);
        assert_eq!(history.groups.len(), 1);
    }

    #[test]
    fn a_kept_day_comes_back_and_other_bytes_are_not_taken() {
        let mut history = History::default();
        let day = 20_000 * 86_400;
        for second in (day - 600..day + 7_200).step_by(30) {
            history.push(second, sample(40.0, 3.0));
        }
        let (number, bytes) = history.encode_day(day).expect("a day");
        assert_eq!((number, bytes.len()), (20_000, 10 + 120 * 12));
        let mut kept = History::default();
        assert!(kept.decode_day(number, &bytes));
        assert_eq!(kept.minutes.slots.len(), 120);
        assert_eq!(kept.minutes.last(), history.minutes.last());
        assert_eq!(kept.minutes.end, history.minutes.end);
        let mut empty = History::default();
        for wrong in [&bytes[..bytes.len() - 1], b"", b"fbhist01", &[0; 100]] {
            assert!(!empty.decode_day(number, wrong));
        }
        empty.push(day, Sample::default());
        assert!(empty.encode_day(day).is_none(), "an idle server writes nothing");
    }

    #[test]
    fn processing_times_are_counted_by_band_and_time() {
        let mut heat = Heat::default();
        let mut shorter = [0; BANDS];
        let mut take = |heat: &mut Heat, second, band: usize, count| {
            shorter[band..].iter_mut().for_each(|n| *n += count);
            heat.push(second, shorter);
        };
        take(&mut heat, 0, 2, 100);
        take(&mut heat, 1, 2, 5);
        take(&mut heat, 39, 3, 1);
        take(&mut heat, 80, 2, 7);
        let columns = heat.columns(80, 160);
        let of = |band| columns.iter().map(|column| column[band]).collect::<Vec<_>>();
        assert_eq!((of(2), of(3)), (vec![5, 0, 7], vec![1, 0, 0]), "the first look has no time");
        take(&mut heat, HOUR * 100, 2, 7);
        assert_eq!(heat.columns.len(), 1);
        for second in HOUR * 100..HOUR * 102 {
            take(&mut heat, second, 1, 1);
        }
        assert_eq!(heat.columns.len(), HEAT_COLUMNS);
    }

    #[test]
    fn after_a_restart_the_hour_shows_the_minutes_that_were_kept() {
        let mut history = History::default();
        let day = 20_000 * 86_400;
        for minute in 0..60 {
            history.minutes.push(day + minute * 60, sample(40.0, 3.0));
        }
        history.push(day + 3_630, sample(50.0, 3.0));
        let points = history.points(day + 3_630, HOUR, 240, |sample| sample.settled);
        let gaps = points.iter().filter(|point| point.is_nan()).count();
        assert_eq!(gaps, 2, "the unknown part of the first minute stays open: {points:?}");
        assert_eq!((points[0], points[239]), (40.0, 50.0));
    }
}
