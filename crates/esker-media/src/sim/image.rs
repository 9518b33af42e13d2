//! Content of a simulated medium: pages shared until they are written, so that thousands of crash
//! states of one image cost only what differs between them.

use esker_base::hash::KeyHasher;
use esker_base::rng::Rng;
use std::fmt;
use std::sync::{Arc, OnceLock};

const PAGE_SIZE_BYTES: usize = 4096;

type Page = [u8; PAGE_SIZE_BYTES];

/// What a medium holds when a simulation begins.
#[derive(Clone, Debug, Default)]
pub enum Initial {
    /// Zeros: a new file.
    #[default]
    Zeros,
    /// `0xFF` everywhere: erased flash.
    Ones,
    /// Random bytes from the simulation's seed.
    Random,
    /// What an earlier run left: recycled media.
    Recycled(Image),
}

impl Initial {
    /// The image that stands for this, `size_bytes` long. A recycled image of another size is cut
    /// or padded with zeros.
    #[must_use]
    pub fn image(&self, size_bytes: u64, rng: &mut Rng) -> Image {
        match self {
            Initial::Zeros => Image::filled(size_bytes, 0),
            Initial::Ones => Image::filled(size_bytes, 0xFF),
            Initial::Random => Image::random(size_bytes, rng),
            Initial::Recycled(image) if image.size_bytes() == size_bytes => image.clone(),
            Initial::Recycled(image) => {
                let mut bytes = image.to_vec();
                bytes.resize(usize::try_from(size_bytes).unwrap_or(0), 0);
                Image::from_bytes(&bytes)
            }
        }
    }
}

/// Bytes of a medium. A clone shares all pages; a write copies the pages that it touches.
#[derive(Clone)]
pub struct Image {
    pages: Vec<Arc<Page>>,
    size_bytes: u64,
}

impl Image {
    /// `size_bytes` bytes, each `byte`.
    #[must_use]
    pub fn filled(size_bytes: u64, byte: u8) -> Image {
        let count = usize::try_from(size_bytes.div_ceil(PAGE_SIZE_BYTES as u64)).unwrap_or(0);
        let page = Arc::new([byte; PAGE_SIZE_BYTES]);
        Image { pages: vec![page; count], size_bytes }
    }

    /// Random bytes.
    #[must_use]
    pub fn random(size_bytes: u64, rng: &mut Rng) -> Image {
        let mut image = Image::filled(size_bytes, 0);
        for page in &mut image.pages {
            rng.fill(&mut Arc::make_mut(page)[..]);
        }
        image
    }

    /// A copy of `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Image {
        let mut image = Image::filled(bytes.len() as u64, 0);
        image.write(0, bytes);
        image
    }

    /// Makes it longer, with zeros; one that is as long already stays as it is.
    pub fn grow(&mut self, size_bytes: u64) {
        let count = usize::try_from(size_bytes.div_ceil(PAGE_SIZE_BYTES as u64)).unwrap_or(0);
        if count > self.pages.len() {
            self.pages.resize(count, Arc::new([0; PAGE_SIZE_BYTES]));
        }
        self.size_bytes = self.size_bytes.max(size_bytes);
    }

    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Calls `visit` with each piece of `length` bytes from `offset`: page, range in the page,
    /// position in the whole.
    fn pieces(
        offset: u64,
        length: usize,
        mut visit: impl FnMut(usize, std::ops::Range<usize>, usize),
    ) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut done = 0;
        while done < length {
            let at = start.saturating_add(done);
            let first = at % PAGE_SIZE_BYTES;
            let count = (PAGE_SIZE_BYTES - first).min(length - done);
            visit(at / PAGE_SIZE_BYTES, first..first + count, done);
            done += count;
        }
    }

    /// Fills `buf` from `offset`; what lies beyond the end stays as it is.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        Image::pieces(offset, buf.len(), |page, range, at| {
            let to = buf.get_mut(at..at + range.len());
            if let (Some(page), Some(to)) = (self.pages.get(page), to)
                && let Some(from) = page.get(range)
            {
                to.copy_from_slice(from);
            }
        });
    }

    /// Writes `bytes` at `offset`; what lies beyond the end is ignored.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        Image::pieces(offset, bytes.len(), |page, range, at| {
            let from = bytes.get(at..at + range.len());
            if let (Some(page), Some(from)) = (self.pages.get_mut(page), from)
                && let Some(to) = Arc::make_mut(page).get_mut(range)
            {
                to.copy_from_slice(from);
            }
        });
    }

    /// Turns one bit over.
    pub fn flip(&mut self, offset: u64, bit: u32) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        self.write(offset, &byte.map(|byte| byte ^ (1 << (bit % 8))));
    }

    /// All bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.size_bytes).unwrap_or(0)];
        self.read(0, &mut bytes);
        bytes
    }

    /// 128-bit hash of the whole content; equal for equal content, whichever way it came about.
    #[must_use]
    pub fn hash(&self, unit_size_bytes: usize) -> u128 {
        self.unit_hashes(unit_size_bytes).into_iter().fold(0, |all, one| all ^ one)
    }

    /// Hash of each unit of `unit_size_bytes`; the hash of the whole is all of them by exclusive or.
    pub(crate) fn unit_hashes(&self, unit_size_bytes: usize) -> Vec<u128> {
        let count = usize::try_from(self.size_bytes).unwrap_or(0) / unit_size_bytes;
        let mut unit = vec![0; unit_size_bytes];
        (0..count)
            .map(|index| {
                self.read((index * unit_size_bytes) as u64, &mut unit);
                place_hash(content_hash(&unit), index as u64)
            })
            .collect()
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Image) -> bool {
        self.size_bytes == other.size_bytes
            && self.pages.iter().zip(&other.pages).all(|(a, b)| Arc::ptr_eq(a, b) || a == b)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} bytes)", self.size_bytes)
    }
}

/// 128-bit hash of some bytes, wherever they stand.
pub(crate) fn content_hash(bytes: &[u8]) -> u128 {
    static HASHERS: OnceLock<(KeyHasher, KeyHasher)> = OnceLock::new();
    let (low, high) =
        HASHERS.get_or_init(|| (KeyHasher::new([0x5A; 16]), KeyHasher::new([0xC3; 16])));
    (u128::from(high.hash(bytes)) << 64) | u128::from(low.hash(bytes))
}

/// The same, bound to the place with number `index`.
pub(crate) fn place_hash(content: u128, index: u64) -> u128 {
    const ODD: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
    let mixed = (content ^ (u128::from(index) + 1).wrapping_mul(ODD)).wrapping_mul(ODD);
    (mixed ^ (mixed >> 67)).wrapping_mul(ODD | (1 << 90))
}

#[cfg(test)]
mod tests;
