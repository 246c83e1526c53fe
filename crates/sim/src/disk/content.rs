//! What a simulated file holds: pages that are shared until someone writes to them.
//!
//! A sweep copies a whole folder for every crash it tries, so copying must cost no more than a list of
//! pointers, and a segment that was zero-filled ahead of use must cost nothing at all. A page that was
//! never written, or only ever with zeros, is therefore not there.

use std::sync::Arc;

pub(super) const SECTOR: usize = 512;
const PAGE: usize = 4096;

/// Larger than any file of a simulated history. An offset past this is a defect of the caller, and is
/// reported rather than allocated.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 32;

type Page = [u8; PAGE];
static ZEROS: Page = [0; PAGE];

/// The bytes of a file. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    /// Pages past the end of this list are zeros, like those that are `None`.
    pages: Vec<Option<Arc<Page>>>,
    size: u64,
}

impl Content {
    pub(super) fn from_bytes(bytes: &[u8]) -> Content {
        let mut content = Content::default();
        content.resize(bytes.len() as u64);
        content.write(0, bytes);
        content
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.size as usize];
        self.read(0, &mut out);
        out
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Cuts or grows; the added part reads as zeros, also where there were bytes before a cut.
    pub(super) fn resize(&mut self, size: u64) {
        if size < self.size {
            self.pages.truncate(size.div_ceil(PAGE as u64) as usize);
            let (index, inside) = ((size / PAGE as u64) as usize, (size % PAGE as u64) as usize);
            if let Some(Some(page)) = self.pages.get_mut(index) {
                Arc::make_mut(page)[inside..].fill(0);
            }
        }
        self.size = size;
    }

    /// Writes within the present size.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.size, "a write lies within the size it was given");
        let mut offset = offset as usize;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (index, inside) = (offset / PAGE, offset % PAGE);
            let (now, later) = rest.split_at(rest.len().min(PAGE - inside));
            self.write_page(index, inside, now);
            offset += now.len();
            rest = later;
        }
    }

    fn write_page(&mut self, index: usize, inside: usize, bytes: &[u8]) {
        let zeros = *bytes == ZEROS[..bytes.len()];
        if zeros && !matches!(self.pages.get(index), Some(Some(_))) {
            return;
        }
        if self.pages.len() <= index {
            self.pages.resize(index + 1, None);
        }
        if zeros && bytes.len() == PAGE {
            self.pages[index] = None;
            return;
        }
        let page = self.pages[index].get_or_insert_with(|| Arc::new(ZEROS));
        Arc::make_mut(page)[inside..inside + bytes.len()].copy_from_slice(bytes);
    }

    /// Fills as much of the buffer as the file has from `offset` on.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let count = self.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut done = 0;
        while done < count {
            let at = offset as usize + done;
            let (index, inside) = (at / PAGE, at % PAGE);
            let step = (count - done).min(PAGE - inside);
            let page = self.pages.get(index).and_then(Option::as_deref).unwrap_or(&ZEROS);
            buffer[done..done + step].copy_from_slice(&page[inside..inside + step]);
            done += step;
        }
        count
    }

    /// One sector, zeros where the file does not reach.
    pub(super) fn sector(&self, index: u64) -> [u8; SECTOR] {
        let mut out = [0; SECTOR];
        self.read(index * SECTOR as u64, &mut out);
        out
    }

    /// Writes one sector, or as much of it as the size allows.
    pub(super) fn write_sector(&mut self, index: u64, bytes: &[u8]) {
        let offset = index * SECTOR as u64;
        let room = self.size.saturating_sub(offset).min(SECTOR as u64) as usize;
        self.write(offset.min(self.size), &bytes[..room]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    /// The plain thing that pages must agree with.
    #[test]
    fn pages_behave_like_a_vector_of_bytes() {
        let mut dice = Dice::from(3);
        let mut plain: Vec<u8> = Vec::new();
        let mut content = Content::default();
        for _ in 0..2_000 {
            match dice.roll(4) {
                0 => {
                    let size = dice.roll(20_000);
                    plain.resize(size as usize, 0);
                    content.resize(size);
                }
                1 if !plain.is_empty() => {
                    let at = dice.roll(plain.len() as u64) as usize;
                    let len = dice.roll((plain.len() - at) as u64 + 1) as usize;
                    plain[at..at + len].fill(0);
                    content.write(at as u64, &vec![0; len]);
                }
                _ if !plain.is_empty() => {
                    let at = dice.roll(plain.len() as u64) as usize;
                    let len = dice.roll((plain.len() - at) as u64 + 1) as usize;
                    let bytes = dice.bytes(len);
                    plain[at..at + len].copy_from_slice(&bytes);
                    content.write(at as u64, &bytes);
                }
                _ => {}
            }
            let copy = content.clone();
            assert_eq!(copy.to_bytes(), plain);
        }
    }

    #[test]
    fn zeros_take_no_space() {
        let mut content = Content::default();
        content.resize(1 << 20);
        content.write(0, &vec![0; 1 << 20]);
        assert!(content.pages.is_empty());
    }
}
