//! Batches of records, as brokers keep them: version 2, not compressed.
//!
//! `base offset: i64 | length: i32 | leader epoch: i32 | version: i8 | crc32c: u32 | attributes: i16 |
//! last offset delta: i32 | first time: i64 | last time: i64 | producer id: i64 | producer epoch: i16 |
//! first sequence: i32 | count: i32 | records`, big endian; the checksum covers what follows it. A record is
//! `length | attributes: i8 | time delta | offset delta | key | value | headers`, with lengths and deltas as
//! zigzag numbers of variable length.

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::peers::contender::Failure;

/// Where the checksum begins, what it covers, and where the records begin.
const CHECKSUM: usize = 17;
const COVERED: usize = 21;
const RECORDS: usize = 61;
const VERSION: i8 = 2;
/// The attributes say how the batch is compressed, and whether it is for consumers at all.
const COMPRESSED: i16 = 0b111;
const CONTROL: i16 = 0b10_0000;

pub(super) fn encode<'a>(
    out: &mut BytesMut,
    now_ms: i64,
    records: impl ExactSizeIterator<Item = (Option<u32>, &'a [u8])>,
) {
    let at = out.len();
    let count = i32::try_from(records.len()).expect("a batch is bounded by the window");
    out.put_i64(0);
    out.put_i32(0);
    out.put_i32(-1);
    out.put_i8(VERSION);
    out.put_u32(0);
    out.put_i16(0);
    out.put_i32(count - 1);
    out.put_i64(now_ms);
    out.put_i64(now_ms);
    out.put_i64(-1);
    out.put_i16(-1);
    out.put_i32(-1);
    out.put_i32(count);
    for (offset, (key, value)) in records.enumerate() {
        let offset = i64::try_from(offset).expect("a batch is bounded by the window");
        let value_length = i64::try_from(value.len()).expect("a message is small");
        let key_size = if key.is_some() { varint_size(4) + 4 } else { varint_size(-1) };
        let size = 1 + 1 + varint_size(offset) + key_size + varint_size(value_length) + value.len() + 1;
        put_varint(out, i64::try_from(size).expect("a message is small"));
        out.put_i8(0);
        put_varint(out, 0);
        put_varint(out, offset);
        match key {
            Some(key) => {
                put_varint(out, 4);
                out.put_u32(key);
            }
            None => put_varint(out, -1),
        }
        put_varint(out, value_length);
        out.put_slice(value);
        put_varint(out, 0);
    }
    let length = i32::try_from(out.len() - at - 12).expect("a batch is bounded by the window");
    out[at + 8..at + 12].copy_from_slice(&length.to_be_bytes());
    let checksum = crc32c::crc32c(&out[at + COVERED..]);
    out[at + CHECKSUM..at + COVERED].copy_from_slice(&checksum.to_be_bytes());
}

/// Gives the records from an offset on, with their offsets, and returns the offset after the last batch that is
/// complete. The broker sends whole batches, and the last one may be cut.
pub(super) fn decode(records: &Bytes, from: i64, mut each: impl FnMut(i64, Bytes)) -> Result<i64, Failure> {
    let mut next = from;
    let mut at = 0;
    while records.len() - at >= RECORDS {
        let base = i64::from_be_bytes(records[at..at + 8].try_into()?);
        let length = usize::try_from(i32::from_be_bytes(records[at + 8..at + 12].try_into()?))?;
        let end = at + 12 + length;
        if end > records.len() {
            break;
        }
        let batch = records.slice(at..end);
        if batch.len() < RECORDS || batch[16] != VERSION.to_be_bytes()[0] {
            return Err("the broker sends a batch of another version".into());
        }
        let attributes = i16::from_be_bytes(batch[COVERED..COVERED + 2].try_into()?);
        if attributes & COMPRESSED != 0 {
            return Err("the broker sends a batch that is compressed".into());
        }
        let last = base + i64::from(i32::from_be_bytes(batch[23..27].try_into()?));
        if attributes & CONTROL == 0 {
            decode_batch(&batch, base, from, &mut each)?;
        }
        next = next.max(last + 1);
        at = end;
    }
    Ok(next)
}

fn decode_batch(
    batch: &Bytes,
    base: i64,
    from: i64,
    each: &mut impl FnMut(i64, Bytes),
) -> Result<(), Failure> {
    let mut at = RECORDS;
    while at < batch.len() {
        let size = usize::try_from(varint(batch, &mut at)?)?;
        let end = at + size;
        at += 1;
        varint(batch, &mut at)?;
        let offset = base + varint(batch, &mut at)?;
        let key = varint(batch, &mut at)?.max(0);
        at += usize::try_from(key)?;
        let value = usize::try_from(varint(batch, &mut at)?.max(0))?;
        if at + value > end || end > batch.len() {
            return Err("the broker sends a record that is longer than its batch".into());
        }
        if offset >= from {
            each(offset, batch.slice(at..at + value));
        }
        at = end;
    }
    Ok(())
}

fn varint_size(number: i64) -> usize {
    let bits = 64 - zigzag(number).leading_zeros().min(63);
    bits.div_ceil(7) as usize
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn put_varint(out: &mut BytesMut, number: i64) {
    let mut rest = zigzag(number);
    while rest >= 0x80 {
        out.put_u8((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

fn varint(input: &[u8], at: &mut usize) -> Result<i64, Failure> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *input.get(*at).ok_or("the broker sends a record that ends early")?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok((number >> 1).cast_signed() ^ -((number & 1).cast_signed()));
        }
    }
    Err("the broker sends a number without an end".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_as_many_bytes_as_they_say_and_come_back() {
        for number in [0, -1, 1, 63, 64, -64, -65, 8_191, 8_192, 1 << 40, i64::MAX, i64::MIN] {
            let mut out = BytesMut::new();
            put_varint(&mut out, number);
            assert_eq!(out.len(), varint_size(number), "{number}");
            let mut at = 0;
            assert_eq!(varint(&out, &mut at).expect("a number"), number);
            assert_eq!(at, out.len());
        }
        assert!(varint(&[0x80; 20], &mut 0).is_err() && varint(&[0x80], &mut 0).is_err());
    }

    #[test]
    fn records_come_back_from_where_they_are_asked_for() {
        let bodies: Vec<String> = (0..100).map(|n| format!("{n:0n$}")).collect();
        let mut out = BytesMut::new();
        let records =
            bodies.iter().enumerate().map(|(n, body)| (n.is_multiple_of(2).then_some(7), body.as_bytes()));
        encode(&mut out, 1_700_000_000_000, records);
        let whole = out.len();
        out[..8].copy_from_slice(&1_000_i64.to_be_bytes());
        // The next batch is cut.
        let cut = out[..whole - 1].to_vec();
        out.extend_from_slice(&cut);
        let mut seen = Vec::new();
        let next = decode(&out.freeze(), 1_090, |offset, body| seen.push((offset, body))).expect("records");
        assert_eq!(next, 1_100);
        let expected: Vec<(i64, Bytes)> =
            (90..100).map(|n| (1_000 + n as i64, Bytes::from(bodies[n].clone()))).collect();
        assert_eq!(seen, expected);
    }
}
