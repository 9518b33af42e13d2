//! placeholder for aligned pooled buffers

/// An aligned buffer from a pool.
#[derive(Debug)]
pub struct IoBuf(Vec<u8>);

/// A pool.
#[derive(Debug, Clone, Default)]
pub struct BufferPool;
impl BufferPool {
    /// A buffer of at least `length` bytes, zeroed or not; its length is exactly `length`.
    pub fn get(&self, length: usize) -> IoBuf {
        IoBuf(vec![0; length])
    }
}
impl std::ops::Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
impl std::ops::DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
