//! Numbers and texts as the log writes them: variable-length integers (seven bits a byte, lowest first),
//! fixed integers in little endian, texts with their length in front.

/// Why bytes of the log could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    #[error("the bytes end in the middle of a value")]
    Short,
    #[error("a number has more digits than fit")]
    Overlong,
    #[error("a text is not UTF-8")]
    NotText,
    #[error("a value is outside its range: {0}")]
    OutOfRange(&'static str),
    #[error("an entry of a kind that this release does not know. kind=`{kind}`")]
    UnknownKind { kind: u8 },
    #[error("a field that this release does not know and must not ignore. field=`{field}`")]
    UnknownField { field: u64 },
    #[error("an entry contradicts the entries before it: {0}")]
    Contradiction(&'static str),
}

#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A number of either sign as one that is small when it is near zero.
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A place in a run of bytes, moving forward.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: bytes }
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    #[inline]
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err(DecodeError::Overlong);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Overlong)
    }

    pub fn varint_u32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.varint()?).map_err(|_| DecodeError::Overlong)
    }

    /// A count of things that take at least one byte each, so that nothing is allocated for a lie.
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        let count = self.varint()?;
        if count > self.rest.len() as u64 {
            return Err(DecodeError::Short);
        }
        Ok(count as usize)
    }

    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.count()?;
        self.take(len)
    }

    pub fn text(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| DecodeError::NotText)
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes were taken")))
    }

    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        Ok(u128::from_le_bytes(self.take(16)?.try_into().expect("sixteen bytes were taken")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_number_survives_the_round_trip(value: u64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut cursor = Cursor::new(&out);
            prop_assert_eq!(cursor.varint(), Ok(value));
            prop_assert!(cursor.is_at_end());
        }
    }

    #[test]
    fn a_number_that_does_not_fit_is_refused() {
        assert_eq!(Cursor::new(&[0xff; 10]).varint(), Err(DecodeError::Overlong));
        assert_eq!(Cursor::new(&[0x80]).varint(), Err(DecodeError::Short));
        assert_eq!(Cursor::new(&[200, 1]).count(), Err(DecodeError::Short));
    }
}
