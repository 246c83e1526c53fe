//! As much of Kafka's protocol as the load needs, in the oldest versions that brokers still take.
//!
//! A request is `size: i32 | api: i16 | version: i16 | correlation: i32 | client: string | body`, an answer is
//! `size: i32 | correlation: i32 | body`, all big endian. Answers come in the order of the requests. A string
//! has an `i16` before it, an array and bytes an `i32`.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::peers::connection::Connection;
use crate::peers::contender::Failure;

/// What a request is about, and the version of it that we speak.
#[derive(Debug, Clone, Copy)]
pub(super) struct Api {
    key: i16,
    version: i16,
}

pub(super) const PRODUCE: Api = Api { key: 0, version: 3 };
pub(super) const FETCH: Api = Api { key: 1, version: 4 };
pub(super) const LIST_OFFSETS: Api = Api { key: 2, version: 1 };
pub(super) const OFFSET_COMMIT: Api = Api { key: 8, version: 2 };
pub(super) const OFFSET_FETCH: Api = Api { key: 9, version: 1 };
pub(super) const FIND_COORDINATOR: Api = Api { key: 10, version: 0 };
pub(super) const API_VERSIONS: Api = Api { key: 18, version: 0 };
pub(super) const CREATE_TOPICS: Api = Api { key: 19, version: 2 };

const NO_ERROR: i16 = 0;
const TOPIC_EXISTS: i16 = 36;

const CLIENT: &str = "forebay-bench";
/// No answer that we are ready for is larger, whatever it says.
const ANSWER_MAX: usize = 64 << 20;
const TIMEOUT_MS: i32 = 30_000;

/// A connection on which several requests may be on their way.
pub(super) struct Client {
    connection: Connection,
    asked: i32,
    answered: i32,
}

impl Client {
    pub(super) async fn open(port: u16) -> Result<Client, Failure> {
        Ok(Client { connection: Connection::open(port).await?, asked: 0, answered: 0 })
    }

    /// Adds a request to what [`flush`](Client::flush) writes.
    pub(super) fn put(&mut self, api: Api, body: impl FnOnce(&mut BytesMut)) {
        let out = &mut self.connection.output;
        let at = out.len();
        out.put_i32(0);
        out.put_i16(api.key);
        out.put_i16(api.version);
        out.put_i32(self.asked);
        put_string(out, CLIENT);
        body(out);
        set_length(out, at);
        self.asked = self.asked.wrapping_add(1);
    }

    /// Nothing is lost or written twice when it is dropped early.
    pub(super) async fn flush(&mut self) -> Result<(), Failure> {
        self.connection.flush().await
    }

    pub(super) async fn ask(&mut self, api: Api, body: impl FnOnce(&mut BytesMut)) -> Result<Bytes, Failure> {
        self.put(api, body);
        self.flush().await?;
        self.answer().await
    }

    /// Waits for the next answer. Nothing is lost when it is dropped early.
    pub(super) async fn answer(&mut self) -> Result<Bytes, Failure> {
        loop {
            if let Some(answer) = self.arrived()? {
                return Ok(answer);
            }
            self.connection.fill().await?;
        }
    }

    /// The next answer, if all of it has been read.
    pub(super) fn arrived(&mut self) -> Result<Option<Bytes>, Failure> {
        let input = &mut self.connection.input;
        let Some(size) = input.first_chunk::<4>() else { return Ok(None) };
        let size = usize::try_from(i32::from_be_bytes(*size))?;
        if size > ANSWER_MAX {
            return Err(format!("the broker sends an answer of {size} bytes").into());
        }
        if input.len() < 4 + size {
            // Once, and not again with every read.
            input.reserve(4 + size - input.len());
            return Ok(None);
        }
        let mut answer = input.split_to(4 + size).freeze();
        answer.advance(4);
        let correlation = answer.try_get_i32()?;
        if correlation != self.answered {
            return Err(format!("the broker answers {correlation} where {} was due", self.answered).into());
        }
        self.answered = self.answered.wrapping_add(1);
        Ok(Some(answer))
    }
}

pub(super) fn put_create_topic(out: &mut BytesMut, topic: &str, partitions: i32) {
    out.put_i32(1);
    put_string(out, topic);
    out.put_i32(partitions);
    // As many copies as there are brokers; where they lie and how they are kept is not ours to say.
    out.put_i16(1);
    out.put_i32(0);
    out.put_i32(0);
    out.put_i32(TIMEOUT_MS);
    out.put_u8(0);
}

pub(super) fn created(mut answer: Bytes) -> Result<(), Failure> {
    skip(&mut answer, 4)?;
    for _ in 0..array(&mut answer)? {
        skip_string(&mut answer)?;
        let error = answer.try_get_i16()?;
        skip_string(&mut answer)?;
        if error != NO_ERROR && error != TOPIC_EXISTS {
            return Err(refused("make a topic", error));
        }
    }
    Ok(())
}

pub(super) fn coordinator_found(mut answer: Bytes) -> Result<(), Failure> {
    check("coordinate the group", answer.try_get_i16()?)
}

/// Asks where these partitions begin: a way to know that they are served.
pub(super) fn put_list_offsets(out: &mut BytesMut, topic: &str, partitions: i32) {
    const EARLIEST: i64 = -2;
    out.put_i32(-1);
    put_topic(out, topic, 0..partitions, |out, _| out.put_i64(EARLIEST));
}

pub(super) fn listed(mut answer: Bytes) -> Result<(), Failure> {
    each_partition(&mut answer, |answer, _| {
        check("serve a partition", answer.try_get_i16()?)?;
        skip(answer, 16)
    })
}

/// Records for one partition, answered when the broker has taken them as far as it does.
pub(super) fn put_produce<'a>(
    out: &mut BytesMut,
    topic: &str,
    partition: i32,
    now_ms: i64,
    records: impl ExactSizeIterator<Item = (Option<u32>, &'a [u8])>,
) {
    const ALL_COPIES: i16 = -1;
    out.put_i16(-1);
    out.put_i16(ALL_COPIES);
    out.put_i32(TIMEOUT_MS);
    put_topic(out, topic, [partition], |_, _| {});
    // There is one partition, so what there is to say of it comes next.
    let at = out.len();
    out.put_i32(0);
    super::records::encode(out, now_ms, records);
    set_length(out, at);
}

pub(super) fn produced(mut answer: Bytes) -> Result<(), Failure> {
    each_partition(&mut answer, |answer, _| {
        check("take messages", answer.try_get_i16()?)?;
        skip(answer, 16)
    })
}

/// Asks for messages from these offsets on, or waits for them.
pub(super) fn put_fetch(out: &mut BytesMut, topic: &str, wait_ms: i32, bytes_max: i32, from: &[(i32, i64)]) {
    out.put_i32(-1);
    out.put_i32(wait_ms);
    out.put_i32(1);
    out.put_i32(bytes_max);
    out.put_u8(0);
    let partitions = from.iter().map(|(partition, _)| *partition).collect::<Vec<_>>();
    let mut offsets = from.iter().map(|(_, offset)| *offset);
    put_topic(out, topic, partitions, |out, _| {
        out.put_i64(offsets.next().unwrap_or(0));
        out.put_i32(bytes_max);
    });
}

/// Partitions with the records that came for them.
pub(super) fn fetched(mut answer: Bytes) -> Result<Vec<(i32, Bytes)>, Failure> {
    skip(&mut answer, 4)?;
    let mut fetched = Vec::new();
    each_partition(&mut answer, |answer, partition| {
        check("give messages", answer.try_get_i16()?)?;
        skip(answer, 16)?;
        for _ in 0..array(answer)? {
            skip(answer, 16)?;
        }
        let length = array(answer)?;
        if length > answer.len() {
            return Err(short());
        }
        fetched.push((partition, answer.split_to(length)));
        Ok(())
    })?;
    Ok(fetched)
}

/// Says that the group is done with everything before these offsets.
pub(super) fn put_commit(out: &mut BytesMut, group: &str, topic: &str, before: &[(i32, i64)]) {
    put_string(out, group);
    // Of no generation and no member: this group is one by name alone.
    out.put_i32(-1);
    put_string(out, "");
    out.put_i64(-1);
    let partitions = before.iter().map(|(partition, _)| *partition).collect::<Vec<_>>();
    let mut offsets = before.iter().map(|(_, offset)| *offset);
    put_topic(out, topic, partitions, |out, _| {
        out.put_i64(offsets.next().unwrap_or(0));
        out.put_i16(-1);
    });
}

pub(super) fn committed(mut answer: Bytes) -> Result<(), Failure> {
    each_partition(&mut answer, |answer, _| check("commit", answer.try_get_i16()?))
}

pub(super) fn put_offset_fetch(out: &mut BytesMut, group: &str, topic: &str, partition: i32) {
    put_string(out, group);
    put_topic(out, topic, [partition], |_, _| {});
}

/// Where the group goes on: at the beginning, if it never committed.
pub(super) fn offset_fetched(mut answer: Bytes) -> Result<i64, Failure> {
    let mut found = 0;
    each_partition(&mut answer, |answer, _| {
        found = answer.try_get_i64()?.max(0);
        skip_string(answer)?;
        check("tell what was committed", answer.try_get_i16()?)
    })?;
    Ok(found)
}

/// An array with one topic, and what there is to say of each of its partitions.
fn put_topic(
    out: &mut BytesMut,
    topic: &str,
    partitions: impl IntoIterator<Item = i32, IntoIter: ExactSizeIterator>,
    mut each: impl FnMut(&mut BytesMut, i32),
) {
    let partitions = partitions.into_iter();
    out.put_i32(1);
    put_string(out, topic);
    out.put_i32(i32::try_from(partitions.len()).expect("partitions are few"));
    for partition in partitions {
        out.put_i32(partition);
        each(out, partition);
    }
}

fn each_partition(
    answer: &mut Bytes,
    mut each: impl FnMut(&mut Bytes, i32) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for _ in 0..array(answer)? {
        skip_string(answer)?;
        for _ in 0..array(answer)? {
            let partition = answer.try_get_i32()?;
            each(answer, partition)?;
        }
    }
    Ok(())
}

/// The length of an array or of bytes, of which there may be none.
fn array(answer: &mut Bytes) -> Result<usize, Failure> {
    Ok(usize::try_from(answer.try_get_i32()?.max(0))?)
}

fn skip_string(answer: &mut Bytes) -> Result<(), Failure> {
    let length = answer.try_get_i16()?.max(0);
    skip(answer, usize::try_from(length)?)
}

fn skip(answer: &mut Bytes, count: usize) -> Result<(), Failure> {
    if answer.len() < count {
        return Err(short());
    }
    answer.advance(count);
    Ok(())
}

fn short() -> Failure {
    "the broker sends an answer that ends early".into()
}

fn check(what: &str, error: i16) -> Result<(), Failure> {
    if error == NO_ERROR { Ok(()) } else { Err(refused(what, error)) }
}

fn refused(what: &str, error: i16) -> Failure {
    format!("the broker does not {what}. error=`{error}`").into()
}

pub(super) fn put_string(out: &mut BytesMut, text: &str) {
    out.put_i16(i16::try_from(text.len()).expect("a name is short"));
    out.put_slice(text.as_bytes());
}

/// Writes how much followed a length of four bytes into that length.
fn set_length(out: &mut BytesMut, at: usize) {
    let length = i32::try_from(out.len() - at - 4).expect("a request is bounded by the window");
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_several_partitions_are_found() {
        let mut answer = BytesMut::new();
        answer.put_i32(0);
        put_topic(&mut answer, "t", [2, 3], |out, partition| {
            out.put_i16(NO_ERROR);
            out.put_i64(10);
            out.put_i64(10);
            out.put_i32(-1);
            out.put_i32(2);
            out.put_slice(&[b'r', b'0' + u8::try_from(partition).expect("a digit")]);
        });
        let answer = answer.freeze();
        let found = fetched(answer.clone()).expect("a good answer");
        assert_eq!(found, [(2, Bytes::from("r2")), (3, Bytes::from("r3"))]);
        for end in 0..answer.len() {
            assert!(fetched(answer.slice(..end)).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn an_error_is_told_by_its_number() {
        let mut answer = BytesMut::new();
        put_topic(&mut answer, "t", [0], |out, _| out.put_i16(16));
        let failure = committed(answer.freeze()).expect_err("it was refused");
        assert_eq!(failure.to_string(), "the broker does not commit. error=`16`");
    }
}
